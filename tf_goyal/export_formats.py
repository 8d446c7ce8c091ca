"""The formats of an export: each written, read back, and held against the network."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_goyal import (
    backbone,
    build,
    keras_file,
    lite_file,
    onnx_file,
    resnet,
    saved_model,
)
from tf_goyal.config import Config
from tf_goyal.export_files import METADATA, SAVED_MODEL

# The largest difference of a probability, or of a feature in units of the largest one.
# What computes in the precision of the training differs by the order of its operations.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
OTHER_RUNTIME = 1e-4  # TensorFlow Lite and ONNX Runtime, in float32


@dataclasses.dataclass(frozen=True)
class Trained:
    """What every format is made of.

    Attributes:
      model: uint8 images of any size to logits, in the precision of the training.
      settings: of the run.
      labels: names of the classes.
      metadata: JSON text; also in `folder`/metadata.json.
      folder: to write into.
      encoded: images as files, to check with.
      images: the same as evaluation presents them, uint8 [b, S, S, 3].
    """

    model: keras.Model
    settings: Config
    labels: list[str]
    metadata: str
    folder: Path
    encoded: list[bytes]
    images: np.ndarray

    def in_float32(self) -> keras.Model:
        """The network with the same weights, computing in float32."""
        policy = keras.config.dtype_policy()
        keras.config.set_dtype_policy("float32")
        try:
            model = build.model(self.settings, len(self.labels), any_size=True)
        finally:
            keras.config.set_dtype_policy(policy)
        model.set_weights(self.model.get_weights())
        return model


class Checked(NamedTuple):
    """How far a file that was read back is from the network: NaN is no success."""

    difference: float
    allowed: float


def evaluation_settings(settings: Config) -> dict[str, Any]:
    """What `augment.eval_image` is told."""
    return {
        "image_size": settings.image_size,
        "eval_resize": settings.eval_shorter_side,
        "resize": settings.resize,
        "dct": settings.dct,
    }


def _saved_model(trained: Trained) -> Checked:
    saved_model.write(
        trained.model,
        evaluation_settings(trained.settings),
        trained.folder,
        trained.folder / METADATA,
        trained.labels,
    )
    difference = saved_model_difference(
        trained.folder / SAVED_MODEL,
        trained.model,
        trained.encoded,
        trained.images,
    )
    return Checked(difference, TOLERANCE[trained.settings.precision])


def saved_model_difference(
    folder: Path, model: keras.Model, encoded: list[bytes], images: np.ndarray
) -> float:
    """Loads a SavedModel and holds its three signatures against the network.

    Args:
      folder: of the SavedModel.
      model: that it was made from.
      encoded: images as files.
      images: the same images as evaluation presents them, uint8 [b, S, S, 3].

    Returns:
      The largest difference, see `TOLERANCE`.
    """
    serve = tf.saved_model.load(str(folder)).signatures
    expected = probabilities(model, images)
    differences = [
        _difference(serve["serving_default"](encoded=tf.constant(encoded)), expected),
        _difference(serve["images"](images=tf.constant(images)), expected),
    ]
    for given in (images, _larger(images)):
        found = serve["features"](images=tf.constant(given))
        differences.append(_difference(found, features(model, given)))
    return largest(differences)


def _larger(images: np.ndarray) -> np.ndarray:
    """Two images of another size, not square: of each some pixels repeated."""
    repeated = np.repeat(np.repeat(images[:2], 2, axis=1), 2, axis=2)
    return repeated[:, :-5, :-2]


def _keras(trained: Trained) -> Checked:
    keras_file.write(trained.model, trained.folder, trained.metadata)
    expected = probabilities(trained.model, trained.images)
    difference = largest(
        _difference(probabilities(model, trained.images), expected)
        for model in keras_file.read(trained.folder)
    )
    return Checked(difference, TOLERANCE[trained.settings.precision])


def _backbone(trained: Trained) -> Checked:
    model, other = trained.in_float32(), trained.in_float32()
    backbone.write(model, trained.folder, trained.metadata)
    other.set_weights([np.zeros_like(weight) for weight in other.get_weights()])
    backbone.read_into(other, trained.folder)
    given = _larger(trained.images)
    difference = _difference(features(other, given), features(model, given))
    return Checked(difference, TOLERANCE["float32"])


def _tflite(trained: Trained) -> Checked:
    model = trained.in_float32()
    variables = [variable.value for variable in model.variables]
    classify = _classifier(model, trained.settings.image_size)
    lite_file.write(
        classify, variables, trained.folder, trained.metadata, trained.labels
    )
    found = lite_file.probabilities(trained.folder, trained.images)
    return _by_another_runtime(trained, model, found)


def _onnx(trained: Trained) -> Checked:
    model = trained.in_float32()
    classify = _classifier(model, trained.settings.image_size)
    onnx_file.write(classify, trained.folder, trained.metadata, trained.labels)
    found = onnx_file.probabilities(trained.folder, trained.images)
    return _by_another_runtime(trained, model, found)


def _classifier(model: keras.Model, size: int) -> Any:
    """A `tf.function`: uint8 `images` [b, size, size, 3] to `probabilities`."""
    given = tf.TensorSpec([None, size, size, 3], tf.uint8, "images")

    @tf.function(input_signature=[given])
    def classify(images):
        return {"probabilities": tf.nn.softmax(model(images, training=False))}

    return classify


def _by_another_runtime(
    trained: Trained, model: keras.Model, found: np.ndarray
) -> Checked:
    expected = probabilities(model, trained.images)
    return Checked(_difference({"probabilities": found}, expected), OTHER_RUNTIME)


WRITERS: Mapping[str, Callable[[Trained], Checked]] = {
    "saved_model": _saved_model,
    "keras": _keras,
    "backbone": _backbone,
    "tflite": _tflite,
    "onnx": _onnx,
}


def probabilities(model: keras.Model, images: np.ndarray) -> dict[str, np.ndarray]:
    """What a network makes of uint8 images [b, S, S, 3]: float32 [b, classes]."""
    classify = tf.function(lambda x: tf.nn.softmax(model(x, training=False)))
    return {"probabilities": classify(images).numpy()}


def features(model: keras.Model, images: np.ndarray) -> dict[str, np.ndarray]:
    """The stages' outputs for uint8 images [b, H, W, 3], in float32."""
    staged = keras.Model(model.inputs, resnet.stages(model))
    compute = tf.function(lambda x: staged(x, training=False))
    return {
        name: tf.cast(stage, tf.float32).numpy()
        for name, stage in compute(images).items()
    }


def _difference(found: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> float:
    """The largest of all, in units of the largest number there if that is above 1."""
    return largest(
        float(np.max(np.abs(np.asarray(found[name]) - values)))
        / max(1.0, float(np.max(np.abs(values))))
        for name, values in expected.items()
    )


def largest(numbers: Iterable[float]) -> float:
    """NaN where one is, which Python's max may pass over."""
    return float(np.max(list(numbers)))
