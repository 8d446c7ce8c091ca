"""A network as an ONNX file, in float32, by tf2onnx; checked by ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np

from tf_goyal.export_files import ONNX

OPSET = 17


def write(classify: Any, folder: Path, metadata: str, labels: list[str]) -> None:
    """Writes `ONNX`.

    Args:
      classify: a `tf.function` with a signature, uint8 `images` [b, S, S, 3] to
        {"probabilities": float32 [b, classes]}.
      folder: to write into.
      metadata: JSON text; the file's property "metadata".
      labels: names of the classes; its property "labels", one a line.
    """
    import tf2onnx

    converted, _ = tf2onnx.convert.from_function(
        classify, input_signature=classify.input_signature, opset=OPSET
    )
    for key, value in (("metadata", metadata), ("labels", "\n".join(labels))):
        entry = converted.metadata_props.add()
        entry.key, entry.value = key, value
    (folder / ONNX).write_bytes(converted.SerializeToString())


def probabilities(folder: Path, images: np.ndarray) -> np.ndarray:
    """What the file makes of images: uint8 [b, S, S, 3] to float32 [b, classes]."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(folder / ONNX), providers=["CPUExecutionProvider"]
    )
    return session.run(["probabilities"], {"images": images})[0]
