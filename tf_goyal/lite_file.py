"""A network as a TensorFlow Lite file, in float32."""

import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_goyal.export_files import METADATA, TFLITE

LABELS = "labels.txt"


def write(
    classify: Any,
    variables: Sequence[tf.Variable],
    folder: Path,
    metadata: str,
    labels: list[str],
) -> None:
    """Writes `TFLITE`.

    Its metadata and the names of its classes are in a zip archive at its end, as
    TensorFlow Lite's own tools append files: `unzip` lists them, and the interpreter
    reads past them.

    Args:
      classify: a `tf.function` with a signature, uint8 `images` [b, S, S, 3] to
        {"probabilities": float32 [b, classes]}.
      variables: all that it uses.
      folder: to write into.
      metadata: JSON text.
      labels: names of the classes.
    """
    # Only what a module of TensorFlow's holds becomes constants of the file.
    module = tf.Module()
    module.weights = list(variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [classify.get_concrete_function()], module
    )
    (folder / TFLITE).write_bytes(converter.convert())
    with zipfile.ZipFile(folder / TFLITE, "a") as archive:
        archive.writestr(METADATA, metadata)
        archive.writestr(LABELS, "\n".join(labels) + "\n")


def probabilities(folder: Path, images: np.ndarray) -> np.ndarray:
    """What the file makes of images: uint8 [b, S, S, 3] to float32 [b, classes]."""
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
