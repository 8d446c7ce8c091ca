"""A picture of what a detector finds.

    .venv-detection/bin/python tools/detection/draw.py --model_dir=OUT --images=FOLDER \
      --output=detections.png

Of the first images of the validation set: masks, boxes, classes and scores from
OUT/detections.json, which mask_rcnn.py wrote.
"""

import json
from pathlib import Path

import matplotlib
import numpy as np
from absl import app, flags
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


def main(_: list[str]) -> None:
    """Draws and writes."""
    folder = Path(FLAGS.model_dir)
    described = json.loads((folder / "validation.json").read_text())
    detections = json.loads((folder / "detections.json").read_text())
    names = {c["id"]: c["name"] for c in described["categories"]}
    pictures = described["images"][: FLAGS.count]
    figure, axes = pyplot.subplots(
        1, len(pictures), figsize=(2.2 * len(pictures), 2.3), squeeze=False
    )
    colours = pyplot.get_cmap("tab10").colors
    for axis, picture in zip(axes[0], pictures):
        pixels = np.asarray(
            Image.open(Path(FLAGS.images) / picture["file_name"]).convert("RGB")
        )
        shown = pixels / 255.0
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
    figure.savefig(FLAGS.output, dpi=120)


if __name__ == "__main__":
    app.run(main)
