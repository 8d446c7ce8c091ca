"""A picture of what a detector finds.

    .venv-detection/bin/python tools/detection/draw.py --model_dir=OUT --images=FOLDER \
      --output=detections.png

Of the first images of the validation set: masks, boxes, classes and scores from
OUT/detections.json, which mask_rcnn.py wrote.
"""

import json
from pathlib import Path
from typing import Any

import command
import matplotlib
import numpy as np
from absl import flags
from PIL import Image
from pycocotools import mask as masks

matplotlib.use("Agg")
from matplotlib import pyplot

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "Of mask_rcnn.py.", required=True)
flags.DEFINE_string("images", None, "Folder of the images.", required=True)
flags.DEFINE_string("output", None, "PNG to write.", required=True)
flags.DEFINE_integer("count", 6, "Images.", lower_bound=1)
flags.DEFINE_float("score", 0.5, "Least score to show.")


def main() -> None:
    """Draws and writes."""
    described, detections = stored("validation.json"), stored("detections.json")
    names = {c["id"]: c["name"] for c in described["categories"]}
    pictures = described["images"][: FLAGS.count]
    figure, axes = pyplot.subplots(
        1, len(pictures), figsize=(2.2 * len(pictures), 2.3), squeeze=False
    )
    colours = pyplot.get_cmap("tab10").colors
    for axis, picture in zip(axes[0], pictures):
        shown = pixels(picture["file_name"]) / 255.0
        axis.set_axis_off()
        for found in detections:
            if found["image_id"] != picture["id"] or found["score"] < FLAGS.score:
                continue
            colour = np.array(colours[found["category_id"] % len(colours)])
            mask = masks.decode(found["segmentation"]).astype(bool)
            shown = np.where(mask[..., None], 0.4 * shown + 0.6 * colour, shown)
            left, top, width, height = found["bbox"]
            axis.add_patch(
                pyplot.Rectangle((left, top), width, height, fill=False, color=colour)
            )
            axis.text(
                left,
                top - 1,
                f"{names[found['category_id']]} {found['score']:.2f}",
                color="white",
                fontsize=7,
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.5},
            )
        axis.imshow(shown)
    figure.tight_layout(pad=0.2)
    try:
        figure.savefig(FLAGS.output, dpi=120)
    except (OSError, ValueError) as error:  # the second: no ending of a picture
        raise ValueError(
            f"--output={FLAGS.output} cannot be written: {error}"
        ) from error


def stored(name: str) -> Any:
    """What mask_rcnn.py wrote.

    Raises:
      ValueError: it is not there, or damaged.
    """
    path = Path(FLAGS.model_dir) / name
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; --model_dir must be the folder "
            "of a mask_rcnn.py that has ended, and not diverged"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def pixels(name: str) -> np.ndarray:
    """uint8 [height, width, 3] of an image in --images.

    Raises:
      ValueError: it is not there, or none.
    """
    path = Path(FLAGS.images) / name
    try:
        return np.asarray(Image.open(path).convert("RGB"))
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error}); --images must be the folder of the "
            "validation's images"
        ) from error


if __name__ == "__main__":
    command.run(main)
