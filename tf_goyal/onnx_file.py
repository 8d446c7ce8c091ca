"""A network as an ONNX file, in float32, by tf2onnx; checked by ONNX Runtime."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tf_goyal.export_files import ONNX

OPSET = 17


def write(
    model: keras.Model, image_size: int, folder: Path, metadata: str, labels: list[str]
) -> None:
    """Writes `ONNX`: uint8 `images` [b, S, S, 3] to float32 `probabilities`.

    Args:
      model: uint8 images to logits, float32.
      image_size: S.
      folder: to write into.
      metadata: JSON text; the file's property "metadata".
      labels: names of the classes; its property "labels", one a line.
    """
    import tf2onnx

    shape = [None, image_size, image_size, 3]
    given = tf.TensorSpec(shape, tf.uint8, "images")

    @tf.function(input_signature=[given])
    def classify(images):
        return {"probabilities": tf.nn.softmax(model(images, training=False))}

    converted, _ = tf2onnx.convert.from_function(
        classify, input_signature=[given], opset=OPSET
    )
    for key, value in (("metadata", metadata), ("labels", "\n".join(labels))):
        entry = converted.metadata_props.add()
        entry.key, entry.value = key, value
    (folder / ONNX).write_bytes(converted.SerializeToString())


def probabilities(folder: Path, images: np.ndarray) -> np.ndarray:
    """What the file makes of images.

    Args:
      folder: that `write` was given.
      images: uint8 [b, S, S, 3].

    Returns:
      float32 [b, classes].
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(folder / ONNX), providers=["CPUExecutionProvider"]
    )
    return session.run(["probabilities"], {"images": images})[0]
