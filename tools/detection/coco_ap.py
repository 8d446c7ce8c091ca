"""Box and mask AP of a detector, by pycocotools, over every image of a data set."""

import contextlib
import io
from pathlib import Path
from typing import Any

import tensorflow as tf
from official.vision.evaluation import coco_evaluator, coco_utils
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

NAMES = ("AP", "AP50", "AP75")


def evaluate(
    task: Any, model: Any, data: Any, annotations: Path
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Runs a detector on all images of a data set.

    Args:
      task: the Model Garden's Mask R-CNN task.
      model: of that task.
      data: configuration of the images, one a batch.
      annotations: in COCO's format.

    Returns:
      "box AP", "mask AP50" and so on, in percent; the detections in COCO's format.
    """
    collected = coco_evaluator.COCOEvaluator(str(annotations), include_mask=True)

    @tf.function
    def detect(images: tf.Tensor, labels: Any) -> Any:
        return model(
            images,
            anchor_boxes=labels["anchor_boxes"],
            image_shape=labels["image_info"][:, 1, :],
            training=False,
        )

    for images, labels in task.build_inputs(data):
        outputs = detect(images, labels)
        found = {
            name: outputs[name]
            for name in (
                "detection_boxes",
                "detection_scores",
                "detection_classes",
                "detection_masks",
                "num_detections",
            )
        }
        found["source_id"] = labels["groundtruths"]["source_id"]
        found["image_info"] = labels["image_info"]
        collected.update_state(labels["groundtruths"], found)
    detections = [
        _plain(detection)
        for detection in coco_utils.convert_predictions_to_coco_annotations(
            collected._predictions
        )
        if detection["score"] > 0  # the others fill up to 100 of an image
    ]
    return average_precision(annotations, detections), detections


def average_precision(
    annotations: Path, detections: list[dict[str, Any]]
) -> dict[str, float]:
    """AP, AP50 and AP75 of boxes and masks, in percent, over all images there are.

    Args:
      annotations: in COCO's format.
      detections: in COCO's format; none at all is an AP of 0.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(annotations))
        if not detections:
            return {f"{kind} {n}": 0.0 for kind in ("box", "mask") for n in NAMES}
        found = truth.loadRes(
            [dict(detection) for detection in detections]
        )  # it adds to them
        ap = {}
        for kind, name in (("bbox", "box"), ("segm", "mask")):
            evaluation = COCOeval(truth, found, kind)  # of all images of the file
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            ap |= {
                f"{name} {n}": 100.0 * float(value)
                for n, value in zip(NAMES, evaluation.stats)
            }
    return ap


def _plain(detection: dict[str, Any]) -> dict[str, Any]:
    """As JSON values: image, category, score, box and run lengths."""
    code = detection["segmentation"]
    counts = code["counts"]
    return {
        "image_id": int(detection["image_id"]),
        "category_id": int(detection["category_id"]),
        "score": float(detection["score"]),
        "bbox": [float(value) for value in detection["bbox"]],
        "segmentation": {
            "size": [int(n) for n in code["size"]],
            "counts": counts.decode() if isinstance(counts, bytes) else counts,
        },
    }


def table(ap: dict[str, float]) -> str:
    """In Markdown."""
    rows = ["| | AP | AP50 | AP75 |", "|---|---|---|---|"]
    for kind in ("box", "mask"):
        values = " | ".join(f"{ap[f'{kind} {name}']:.1f}" for name in NAMES)
        rows.append(f"| {kind} | {values} |")
    return "\n".join(rows)
