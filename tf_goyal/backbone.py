"""A network's weights as a detector's backbone: an object checkpoint of TensorFlow.

The names are those of the Model Garden's ResNet (tf-models-official 2.20), whose Mask
R-CNN reads a checkpoint with a child `backbone`:

    backbone/layer_with_weights-0/kernel  the stem's convolution
    backbone/layer_with_weights-1/gamma   its BatchNorm: beta, moving_mean and so on
    backbone/layer_with_weights-2/_conv1/kernel, .../_norm1/gamma  the first block, ...
    backbone/layer_with_weights-2/_shortcut/kernel, .../_norm0/gamma  if it has them
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_goyal.export_files import BACKBONE, METADATA

_PREFIX = "backbone"  # of the files in the folder, and the root's child
_ATTRIBUTE = "/.ATTRIBUTES/VARIABLE_VALUE"


def names(variables: Any) -> dict[str, str]:
    """Path of each variable of a network -> its name there; the head has none.

    Args:
      variables: of one of `export_files.BACKBONE_MODELS`.

    >>> from tf_goyal import resnet
    >>> len(names(resnet.build("resnet50", classes=2, image_size=64).variables))
    265
    """
    layers: dict[str, str] = {}
    blocks = 2  # 0 and 1 are the stem's convolution and BatchNorm

    def place(layer: str) -> str:
        nonlocal blocks
        if layer.startswith("stem_"):
            return f"layer_with_weights-{int(layer.endswith('bn'))}"
        block, _, part = layer.rpartition("_")
        if part in ("conv", "bn"):  # of the shortcut
            block = block.removesuffix("_shortcut")
            part = "_shortcut" if part == "conv" else "_norm0"
        else:
            part = part.replace("conv", "_conv").replace("bn", "_norm")
        if block not in layers:
            layers[block] = f"layer_with_weights-{blocks}"
            blocks += 1
        return f"{layers[block]}/{part}"

    found = {}
    for variable in variables:
        layer, _, attribute = variable.path.rpartition("/")
        if layer != "head":
            found[variable.path] = f"{_PREFIX}/{place(layer)}/{attribute}"
    return found


def write(model: keras.Model, folder: Path, metadata: str) -> None:
    """Writes `folder`/backbone, which is what `init_checkpoint` is told there.

    Args:
      model: one of `export_files.BACKBONE_MODELS`.
      folder: to make it in.
      metadata: JSON text, which is laid beside the checkpoint.
    """
    places = names(model.variables)
    tree: dict[str, Any] = {}
    for variable in model.variables:
        if variable.path in places:
            *parents, leaf = places[variable.path].split("/")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = tf.Variable(np.asarray(variable))
    (folder / BACKBONE).mkdir()
    _checkpoint(tree).write(str(folder / BACKBONE / _PREFIX))
    # So that the folder's name will do: tf.train.latest_checkpoint reads it here.
    state = f'model_checkpoint_path: "{_PREFIX}"\n'
    (folder / BACKBONE / "checkpoint").write_text(state)
    (folder / BACKBONE / METADATA).write_text(metadata, encoding="utf-8")


def _checkpoint(tree: Mapping[str, Any]) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(
        **{
            name: _checkpoint(child) if isinstance(child, dict) else child
            for name, child in tree.items()
        }
    )


def read_into(model: keras.Model, folder: Path) -> None:
    """Gives a network the weights that `write` left in a folder, all but the head's.

    Args:
      model: of the same architecture.
      folder: that `write` was given.

    Raises:
      ValueError: the file lacks a variable of the network, has one of another shape,
        or has one that the network lacks; each is named.
    """
    path = tf.train.latest_checkpoint(str(folder / BACKBONE))
    if path is None:
        raise ValueError(f"{folder / BACKBONE} must hold a checkpoint, there is none")
    reader = tf.train.load_checkpoint(path)
    shapes = {
        name.removesuffix(_ATTRIBUTE): tuple(shape)
        for name, shape in reader.get_variable_to_shape_map().items()
        if name.endswith(_ATTRIBUTE)
    }
    places = names(model.variables)
    wrong = [f"{name} is not the network's" for name in {*shapes} - {*places.values()}]
    for variable in model.variables:
        name = places.get(variable.path)
        if name is None:
            continue
        if name not in shapes:
            wrong.append(f"{name} ({variable.path}) is missing")
        elif shapes[name] != tuple(variable.shape):
            wrong.append(
                f"{name} ({variable.path}) must be of shape {tuple(variable.shape)}, "
                f"got {shapes[name]}"
            )
    if wrong:
        raise ValueError(
            f"{path} does not fit {model.name}: {'; '.join(sorted(wrong))}"
        )
    for variable in model.variables:
        if variable.path in places:
            variable.assign(reader.get_tensor(places[variable.path] + _ATTRIBUTE))
