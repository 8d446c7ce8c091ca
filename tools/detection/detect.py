"""What a Mask R-CNN of the Model Garden finds, in COCO's format."""

from pathlib import Path
from typing import Any

import tensorflow as tf
from official.vision.evaluation import coco_evaluator, coco_utils

_OUTPUTS = (
    "detection_boxes",
    "detection_scores",
    "detection_classes",
    "detection_masks",
    "num_detections",
)


def detections(task: Any, model: Any, data: Any, truth: Path) -> list[dict[str, Any]]:
    """Runs a detector on all images of a data set.

    Args:
      task: the Model Garden's Mask R-CNN task.
      model: of that task.
      data: configuration of the images.
      truth: the same data set, a file in COCO's format.

    Returns:
      JSON values: image_id, category_id, score, bbox (left, top, width, height in
      pixels) and segmentation (compressed run lengths).
    """

    @tf.function
    def detect(images: tf.Tensor, labels: Any) -> Any:
        return model(
            images,
            anchor_boxes=labels["anchor_boxes"],
            image_shape=labels["image_info"][:, 1, :],
            training=False,
        )

    # It undoes the resizing of the images.
    collected = coco_evaluator.COCOEvaluator(str(truth), include_mask=True)
    for images, labels in task.build_inputs(data):
        outputs = detect(images, labels)
        found = {name: outputs[name] for name in _OUTPUTS}
        found["source_id"] = labels["groundtruths"]["source_id"]
        found["image_info"] = labels["image_info"]
        collected.update_state(labels["groundtruths"], found)
    return [
        _plain(detection)
        for detection in coco_utils.convert_predictions_to_coco_annotations(
            collected._predictions
        )
        if detection["score"] > 0  # the others fill up to 100 of an image
    ]


def _plain(detection: dict[str, Any]) -> dict[str, Any]:
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
