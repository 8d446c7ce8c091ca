"""What an export consists of. Imports no TensorFlow."""

import importlib.util

METADATA = "metadata.json"
SAVED_MODEL = "saved_model"
KERAS, PLAIN_KERAS = "model.keras", "plain.keras"
BACKBONE = "backbone"
TFLITE = "model.tflite"
ONNX = "model.onnx"

# What each format leaves in the folder.
FORMATS = {
    "saved_model": (SAVED_MODEL,),
    "keras": (KERAS, PLAIN_KERAS),
    "backbone": (BACKBONE,),
    "tflite": (TFLITE,),
    "onnx": (ONNX,),
}

# The Model Garden's ResNet-18 and 34 have a projection at the start of stage 2, ours
# do not; the small networks it does not have.
BACKBONE_MODELS = ("resnet50", "resnet101", "resnet152")


def check(formats: list[str], model: str) -> None:
    """Raises ValueError where a model cannot be exported so, or not here.

    Args:
      formats: of `FORMATS`.
      model: name of the network.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ValueError(
            f"--formats must be of {', '.join(FORMATS)}, separated by commas, received "
            f"{', '.join(map(repr, unknown)) or 'none'}"
        )
    if "backbone" in formats and model not in BACKBONE_MODELS:
        raise ValueError(
            f"--formats=backbone must be of a network that the Model Garden has too, "
            f"{', '.join(BACKBONE_MODELS)}; this run's is {model}: leave it out, or "
            "train one of those"
        )
    needed = ("onnx", "onnxruntime", "tf2onnx") if "onnx" in formats else ()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"--formats=onnx needs {', '.join(missing)}: install them with "
            'pip install "tf_goyal[onnx]"'
        )
