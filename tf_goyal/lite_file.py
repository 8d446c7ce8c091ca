"""A network as a TensorFlow Lite file, in float32."""

import warnings
import zipfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tf_goyal.export_files import METADATA, TFLITE

LABELS = "labels.txt"


def write(
    model: keras.Model, image_size: int, folder: Path, metadata: str, labels: list[str]
) -> None:
    """Writes `TFLITE`: uint8 `images` [b, S, S, 3] to float32 `probabilities`.

    Its metadata and the names of its classes are in a zip archive at its end, as
    TensorFlow Lite's own tools append files: `unzip` lists them, and the interpreter
    reads past them.

    Args:
      model: uint8 images to logits, float32.
      image_size: S.
      folder: to write into.
      metadata: JSON text.
      labels: names of the classes.
    """
    shape = [None, image_size, image_size, 3]

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.uint8, "images")])
    def classify(images):
        return {"probabilities": tf.nn.softmax(model(images, training=False))}

    # Only what a module of TensorFlow's holds becomes constants of the file.
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [classify.get_concrete_function()], module
    )
    (folder / TFLITE).write_bytes(converter.convert())
    with zipfile.ZipFile(folder / TFLITE, "a") as archive:
        archive.writestr(METADATA, metadata)
        archive.writestr(LABELS, "\n".join(labels) + "\n")


def probabilities(folder: Path, images: np.ndarray) -> np.ndarray:
    """What the file makes of images.

    Args:
      folder: that `write` was given.
      images: uint8 [b, S, S, 3].

    Returns:
      float32 [b, classes].
    """
    with warnings.catch_warnings():  # that it will leave TensorFlow one day
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(model_path=str(folder / TFLITE))
    (given,), (result,) = (
        interpreter.get_input_details(),
        interpreter.get_output_details(),
    )
    interpreter.resize_tensor_input(given["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], images)
    interpreter.invoke()
    return interpreter.get_tensor(result["index"])
