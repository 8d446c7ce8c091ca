"""The Model Garden's ResNet with the weights of our export.

Runs in the environment that tools/detection/setup makes, where this project is not.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import tf_keras
from official.vision.configs import backbones as backbone_configs
from official.vision.configs import common
from official.vision.modeling.backbones import factory
from official.vision.ops import preprocess_ops

VARIABLES = {50: 265, 101: 520, 152: 775}
STAGES = ("2", "3", "4", "5")
PADDINGS = ("same", "symmetric")


def metadata(folder: Path) -> dict:
    """What the export says of itself.

    Args:
      folder: RUN/export/backbone.

    Raises:
      ValueError: it is no export, or of a network or of pixels that the Model Garden
        cannot be told of.
    """
    path = folder / "metadata.json"
    if not path.exists() or tf.train.latest_checkpoint(str(folder)) is None:
        raise ValueError(
            f"{folder} must be the folder backbone/ of an export, with metadata.json "
            "and a checkpoint: python -m tf_goyal.export --formats=backbone"
        )
    try:
        about = json.loads(path.read_text("utf-8"))
        how = about["preprocessing"]
        told = {
            "model": depth(about) in VARIABLES,
            "padding": about["padding"] in PADDINGS,
            "batch_norm": 0 < about["batch_norm"]["epsilon"] < 1,
            "preprocessing": how["channel_order"] == "RGB",
        }
        scales = np.array([how["mean"], how["std"]], np.float64)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not as tf_goyal.export writes it: {error!r}"
        ) from error
    if wrong := [name for name, right in told.items() if not right]:
        raise ValueError(
            f"{path} must be of a ResNet-50, 101 or 152, with an epsilon from 0 to 1, "
            f"RGB images and the padding {' or '.join(PADDINGS)}; it has "
            f"{ {name: about[name] for name in wrong} }"
        )
    theirs = (preprocess_ops.MEAN_RGB, preprocess_ops.STDDEV_RGB)
    if scales.shape != (2, 3) or not np.allclose(scales, theirs, rtol=1e-6):
        raise ValueError(
            f"{path} has mean {how['mean']} and standard deviation {how['std']}; the "
            f"Model Garden's input takes {theirs[0]} and {theirs[1]}"
        )
    return about


def depth(about: dict) -> int:
    """50, 101 or 152."""
    return int(about["model"].removeprefix("resnet"))


def backbone(folder: Path, image_shape: tuple[int, int]) -> tf_keras.Model:
    """The Model Garden's ResNet of an export, every variable of it matched.

    Args:
      folder: RUN/export/backbone.
      image_shape: height and width.

    Raises:
      ValueError: a variable of either side has no partner; TensorFlow's error names it.
    """
    about = metadata(folder)
    network = factory.build_backbone(
        input_specs=tf_keras.layers.InputSpec(shape=[None, *image_shape, 3]),
        backbone_config=backbone_configs.Backbone(
            type="resnet", resnet=backbone_configs.ResNet(model_id=depth(about))
        ),
        norm_activation_config=common.NormActivation(
            use_sync_bn=False,
            norm_momentum=0.9,
            norm_epsilon=about["batch_norm"]["epsilon"],
        ),
    )
    read(folder, network)
    return network


def read(folder: Path, network: tf_keras.Model) -> None:
    """Gives a ResNet of the Model Garden the weights and the padding of an export.

    Args:
      folder: RUN/export/backbone.
      network: of the same depth.

    Raises:
      ValueError: a variable of either side has no partner; TensorFlow's error names it.
    """
    about = metadata(folder)
    expected = VARIABLES[depth(about)]
    if len(network.variables) != expected:
        raise ValueError(
            f"this Model Garden's ResNet has {len(network.variables)} variables, that "
            f"of {folder} has {expected}: is it of the same depth, and of the version "
            "that tools/detection/setup installs?"
        )
    path = tf.train.latest_checkpoint(str(folder))
    try:
        tf.train.Checkpoint(backbone=network).read(path).assert_consumed()
    except (AssertionError, ValueError) as error:
        raise ValueError(f"{path} does not fit the Model Garden's: {error}") from error
    except (tf.errors.OpError, IndexError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if about["padding"] == "symmetric":
        pad_symmetrically(network)


def pad_symmetrically(network: tf_keras.Model) -> None:
    """Makes strided layers pad (k - 1) / 2 pixels on every side, as the paper's do.

    The Model Garden's pad one less on the top and left of even sizes. Shapes stay.
    """
    for layer in network.submodules:
        if getattr(layer, "strides", (1, 1)) == (1, 1):
            continue
        if isinstance(layer, tf_keras.layers.Conv2D):
            layer.convolution_op = _convolution(layer)
        elif isinstance(layer, tf_keras.layers.MaxPooling2D):
            layer.pool_function = _max_pool


def _convolution(layer: tf_keras.layers.Conv2D) -> Callable:
    def convolve(inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        padded = _padded(inputs, layer.kernel_size[0])
        return tf.nn.conv2d(padded, kernel, layer.strides, "VALID")

    return convolve


def _max_pool(inputs: tf.Tensor, ksize, strides, **_) -> tf.Tensor:
    # Zeros lose against what comes out of a ReLU.
    return tf.nn.max_pool2d(_padded(inputs, ksize[1]), ksize, strides, "VALID")


def _padded(inputs: tf.Tensor, kernel: int) -> tf.Tensor:
    side = [(kernel - 1) // 2] * 2
    return tf.pad(inputs, [[0, 0], side, side, [0, 0]])


def normalized(images: np.ndarray, about: dict) -> np.ndarray:
    """uint8 [b, H, W, 3] as the backbone takes them: (pixel - mean) / std."""
    how = about["preprocessing"]
    return (images.astype(np.float32) - how["mean"]) / np.float32(how["std"])
