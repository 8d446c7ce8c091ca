"""Box and mask AP of detections, by pycocotools, over every image of a data set."""

import contextlib
import io
from typing import Any

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

NAMES = ("AP", "AP50", "AP75")


def average_precision(
    truth: dict[str, Any], detections: list[dict[str, Any]]
) -> dict[str, float]:
    """AP, AP50 and AP75 of boxes and masks, in percent, over all images there are.

    Args:
      truth: in COCO's format, with at least one object that is no crowd.
      detections: in COCO's format; none at all is an AP of 0.

    Returns:
      "box AP", "mask AP50" and so on.
    """
    if not detections:
        return {f"{kind} {name}": 0.0 for kind in ("box", "mask") for name in NAMES}
    ap = {}
    with contextlib.redirect_stdout(io.StringIO()):
        right = COCO()
        right.dataset = truth
        right.createIndex()
        found = right.loadRes([dict(detection) for detection in detections])
        for kind, name in (("bbox", "box"), ("segm", "mask")):
            evaluation = COCOeval(right, found, kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            for which, value in zip(NAMES, evaluation.stats):
                ap[f"{name} {which}"] = 100.0 * float(value)
    return ap


def table(ap: dict[str, float]) -> str:
    """In Markdown."""
    rows = ["| | AP | AP50 | AP75 |", "|---|---|---|---|"]
    for kind in ("box", "mask"):
        values = " | ".join(f"{ap[f'{kind} {name}']:.1f}" for name in NAMES)
        rows.append(f"| {kind} | {values} |")
    return "\n".join(rows)
