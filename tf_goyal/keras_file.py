"""A network as .keras files: for this package, and for Keras alone."""

import zipfile
from pathlib import Path

import keras

from tf_goyal.batch_norm import BatchNormalization
from tf_goyal.export_files import KERAS, PLAIN_KERAS

# Beside Keras' own metadata.json in the archive, which Keras reads past.
METADATA = "tf_goyal.json"


def write(model: keras.Model, folder: Path, metadata: str) -> None:
    """Writes `KERAS` and `PLAIN_KERAS`.

    Args:
      model: uint8 images to logits.
      folder: to write into.
      metadata: JSON text, which both carry as `METADATA`.
    """
    for name, kept in ((KERAS, model), (PLAIN_KERAS, plain(model))):
        kept.save(folder / name)
        with zipfile.ZipFile(folder / name, "a") as archive:
            archive.writestr(METADATA, metadata)


def plain(model: keras.Model) -> keras.Model:
    """The same network with Keras' own BatchNormalization in place of ours.

    It computes the same from running statistics. Trained further it takes its
    statistics over whatever it is called with, and averages the biased variance.
    """

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        if not isinstance(layer, BatchNormalization):
            return layer.__class__.from_config(layer.get_config())
        return keras.layers.BatchNormalization(
            momentum=layer.momentum,
            epsilon=layer.epsilon,
            gamma_initializer=layer.gamma_initializer,
            dtype=layer.dtype_policy,
            name=layer.name,
        )

    other = keras.models.clone_model(model, clone_function=clone)
    other.set_weights(model.get_weights())
    return other


def read(folder: Path) -> list[keras.Model]:
    """Both, read back without running any code that a file brings along."""
    return [
        keras.models.load_model(folder / name, compile=False, safe_mode=True)
        for name in (KERAS, PLAIN_KERAS)
    ]
