"""What somebody who uses an exported model must know about it."""

from typing import TYPE_CHECKING, Any

from tf_goyal import checkpoint, provenance, run_log
from tf_goyal.trained import TrainedModel

if TYPE_CHECKING:
    import keras

# What each format makes of an image, [b, classes].
RETURNS = {
    "saved_model": "probabilities",
    "keras": "logits",
    "tflite": "probabilities",
    "onnx": "probabilities",
}


def metadata(found: TrainedModel, model: "keras.Model") -> dict[str, Any]:
    """Labels, preprocessing, padding, recipe, step, error and hash. JSON values."""
    from tf_goyal import augment, resnet
    from tf_goyal.batch_norm import BatchNormalization

    settings = found.settings
    sha256 = checkpoint.weights_sha256(checkpoint.arrays_of("model", model.variables))
    (epsilon,) = {
        layer.epsilon for layer in model.layers if isinstance(layer, BatchNormalization)
    }
    return {
        "model": settings.model,
        "labels": found.labels,
        "preprocessing": {
            "channel_order": "RGB",
            "pixel_range": [0, 255],
            "image_size": settings.image_size,
            "resize_shorter_side": settings.eval_shorter_side,
            "resize_method": f"{settings.resize}, half-pixel centers, not antialiased; "
            "then rounded to whole levels",
            "crop": "center",
            "exif_orientation": "ignored",
            "jpeg_dct_method": augment.DCT[settings.dct],
            "normalization": "(pixel - mean) / std, inside the model",
            "mean": list(resnet.MEAN),
            "std": list(resnet.STD),
        },
        "padding": settings.padding,
        "batch_norm": {"epsilon": epsilon, "statistics": "running"},
        "returns": RETURNS,
        "precision": settings.precision,
        "step": found.step,
        "epoch": found.epoch,
        "evaluation": _logged_evaluation(settings.model_dir, found.step, sha256),
        "weights_sha256": sha256,
        "recipe": {name: getattr(settings, name) for name in settings.recipe_fields},
        "trained_with": {
            name: found.metadata.get(name) for name in ("versions", "git_commit")
        },
        "exported_with": provenance.versions(),
    }


def _logged_evaluation(model_dir: str, step: int, sha256: str) -> dict[str, Any] | None:
    """Loss and errors that the run's log has for these very weights."""
    try:
        lines = run_log.read(model_dir)
    except OSError:
        return None
    for line in reversed(lines):
        if line["kind"] == "eval" and line["step"] == step:
            names = ("images", "loss", "top1_error", "top5_error")
            same = line.get("weights_sha256") == sha256 and set(names) <= set(line)
            return {name: line[name] for name in names} if same else None
    return None
