"""The Model Garden's ResNet with the weights of our export.

Runs in the environment that tools/detection/setup makes, where this project is not.
"""

import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import tf_keras
from official.vision.configs import backbones as backbone_configs
from official.vision.configs import common
from official.vision.modeling.backbones import factory

VARIABLES = {50: 265, 101: 520, 152: 775}
STAGES = ("2", "3", "4", "5")


def metadata(folder: Path) -> dict:
    """What the export says of itself.

    Args:
      folder: RUN/export/backbone.
    """
    path = folder / "metadata.json"
    if not path.exists():
        raise SystemExit(
            f"{folder} must be the folder backbone/ of an export: python -m "
            f"tf_goyal.export --formats=backbone; there is no {path.name} in it"
        )
    return json.loads(path.read_text("utf-8"))


def model_id(about: dict) -> int:
    """50, 101 or 152."""
    return int(about["model"].removeprefix("resnet"))


def backbone(
    folder: Path, image_shape: tuple[int | None, int | None]
) -> tf_keras.Model:
    """The Model Garden's ResNet of an export, every variable of it matched.

    Args:
      folder: RUN/export/backbone.
      image_shape: height and width, None where open.

    Raises:
      SystemExit: a variable of either side has no partner; TensorFlow's error names it.
    """
    about = metadata(folder)
    network = factory.build_backbone(
        input_specs=tf_keras.layers.InputSpec(shape=[None, *image_shape, 3]),
        backbone_config=backbone_configs.Backbone(
            type="resnet", resnet=backbone_configs.ResNet(model_id=model_id(about))
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
    """Gives a ResNet of the Model Garden the weights of an export.

    Args:
      folder: RUN/export/backbone.
      network: of the same depth.

    Raises:
      SystemExit: a variable of either side has no partner; TensorFlow's error names it.
    """
    depth = model_id(metadata(folder))
    if len(network.variables) != VARIABLES[depth]:
        raise SystemExit(
            f"this Model Garden's ResNet-{depth} has {len(network.variables)} "
            f"variables, {VARIABLES[depth]} are expected: tools/detection/setup makes "
            "an environment that fits"
        )
    path = tf.train.latest_checkpoint(str(folder))
    status = tf.train.Checkpoint(backbone=network).read(path)
    try:
        status.assert_consumed()
    except AssertionError as error:
        raise SystemExit(f"{path} does not fit the Model Garden's: {error}") from error


def normalized(images: np.ndarray, about: dict) -> np.ndarray:
    """uint8 [b, H, W, 3] as the backbone takes them: (pixel - mean) / std."""
    how = about["preprocessing"]
    return (images.astype(np.float32) - how["mean"]) / np.float32(how["std"])
