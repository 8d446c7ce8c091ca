"""A network as a SavedModel: it loads with TensorFlow alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tf_goyal import augment, resnet
from tf_goyal.export_files import SAVED_MODEL


def write(
    model: keras.Model,
    evaluation: Mapping[str, Any],
    folder: Path,
    metadata_file: Path,
    labels: list[str],
) -> None:
    """Writes `folder`/saved_model, with a metadata file as its asset.

    Signatures: `serving_default` classifies encoded images, which it crops as
    evaluation does, `images` uint8 images of the model's size, both into
    `probabilities`, `classes` and `labels`; `features` takes uint8 images of any size
    and returns float32 [b, h, w, channels] of each stage, "stage2" and on. All use the
    running statistics of BatchNorm.

    Args:
      model: uint8 images of any size to float32 logits [b, classes], made outside of
        any strategy: so there is no collective and no device name in its graph.
      evaluation: what `augment.eval_image` is told.
      folder: to write into.
      metadata_file: JSON.
      labels: names of the classes.
    """
    size = evaluation["image_size"]
    staged = keras.Model(model.inputs, resnet.stages(model))

    @tf.function(
        input_signature=[tf.TensorSpec([None, size, size, 3], tf.uint8, "images")]
    )
    def classify_images(images):
        # A loaded signature is not held to its own shapes.
        images = tf.ensure_shape(images, [None, size, size, 3])
        probabilities = tf.nn.softmax(model(images, training=False))
        classes = tf.argmax(probabilities, axis=1)
        return {
            "probabilities": probabilities,
            "classes": classes,
            "labels": tf.gather(tf.constant(labels), classes),
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "encoded")])
    def classify_encoded(encoded):
        images = tf.map_fn(
            lambda image: augment.eval_image(image, **evaluation),
            encoded,
            fn_output_signature=tf.TensorSpec([size, size, 3], tf.uint8),
        )
        return classify_images(images)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, "images")]
    )
    def features(images):
        images = tf.ensure_shape(images, [None, None, None, 3])
        stages = staged(images, training=False)
        return {name: tf.cast(stage, tf.float32) for name, stage in stages.items()}

    # Plain variables and functions in a plain module: nothing of Keras is needed to
    # load them.
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    module.metadata = tf.saved_model.Asset(str(metadata_file))
    tf.saved_model.save(
        module,
        str(folder / SAVED_MODEL),
        signatures={
            "serving_default": classify_encoded,
            "images": classify_images,
            "features": features,
        },
    )
