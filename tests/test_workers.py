"""One device's virtual workers, against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import workers
from tf_goyal.batch_norm import BatchNormalization

K, N, CLASSES = 3, 4, 5


def linear(dtype="float32"):
    """Logits = the mean colour times a kernel [3, 5]; gradients known by hand."""
    images = keras.Input([2, 2, 3], dtype="uint8")
    x = keras.layers.Rescaling(1 / 255, dtype="float32")(images)
    x = keras.layers.GlobalAveragePooling2D(dtype="float32")(x)
    logits = keras.layers.Dense(
        CLASSES,
        use_bias=False,
        kernel_initializer=keras.initializers.GlorotUniform(seed=1),
        dtype=dtype,
        name="head",
    )(x)
    return keras.Model(images, keras.ops.cast(logits, "float32"))


def batch(seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, [K, N, 2, 2, 3], np.uint8)
    return images, random.integers(0, CLASSES, [K, N]).astype(np.int32)


def run(model, images, labels, **settings):
    """The sums of workers that `images` [m, n, ...] holds, as one device's."""
    defaults = {"global_batch": K * N, "groups": K, "together": False, "exact": False}
    function = workers.virtual_workers(model, **{**defaults, **settings})
    return tf.function(function)(tf.constant(images), tf.constant(labels))


def by_hand(model, images, labels):
    """Gradient, loss and error of the mean over all images, in float64."""
    x = images.reshape(-1, 4, 3).mean(1) / 255
    logits = x @ model.weights[0].numpy().astype(np.float64)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    one_hot = np.eye(CLASSES)[labels.reshape(-1)]
    gradient = x.T @ (p - one_hot) / len(x)
    loss = -np.log((p * one_hot).sum(1)).mean()
    return gradient, loss, (p.argmax(1) != labels.reshape(-1)).mean()


@pytest.mark.parametrize("exact", [False, True])
def test_sums_over_all_workers_are_the_means_over_all_images(exact):
    """M2: Σ over workers of ∇(Σ losses)/kn, nothing averaged twice."""
    model = linear()
    images, labels = batch()
    sums = run(model, images, labels, exact=exact)
    scale = 2.0**-50 if exact else 1.0
    gradient, loss, error = by_hand(model, images, labels)
    np.testing.assert_allclose(sums.gradients[0].numpy() * scale, gradient, atol=1e-7)
    np.testing.assert_allclose(sums.loss.numpy() * scale, loss, rtol=1e-6)
    np.testing.assert_allclose(sums.error.numpy() * scale, error, rtol=1e-6)
    assert not sums.faults.numpy().any()


def test_devices_add_up_whatever_they_carry():
    """3 workers on one device, or 1 there and 2 elsewhere: integers, no rounding."""
    model = linear()
    images, labels = batch()
    whole = run(model, images, labels, exact=True)
    one = run(model, images[:1], labels[:1], exact=True)
    two = run(model, images[1:], labels[1:], exact=True)
    np.testing.assert_array_equal(
        whole.gradients[0], one.gradients[0] + two.gradients[0]
    )
    assert whole.loss == one.loss + two.loss


def test_images_with_a_negative_label_are_not_learned_from():
    """D2: the last step of a run may hold fewer images than kn."""
    model = linear()
    images, labels = batch()
    labels[2, 1:] = -1
    sums = run(model, images, labels)
    counted = labels.reshape(-1) >= 0
    gradient, loss, error = by_hand(
        model, images.reshape(-1, 2, 2, 3)[counted], labels.reshape(-1)[counted]
    )
    share = counted.sum() / (K * N)  # still divided by kn
    np.testing.assert_allclose(sums.gradients[0], gradient * share, atol=1e-7)
    np.testing.assert_allclose(sums.loss, loss * share, rtol=1e-6)
    np.testing.assert_allclose(sums.error, error * share, rtol=1e-6)


def normalised():
    images = keras.Input([2, 2, 3], dtype="uint8")
    x = BatchNormalization(name="bn")(keras.layers.Rescaling(1 / 255)(images))
    x = keras.layers.GlobalAveragePooling2D()(x)
    logits = keras.layers.Dense(CLASSES, name="head")(x)
    return keras.Model(images, logits)


def test_running_statistics_are_the_mean_of_the_workers():
    """§2.3: each worker normalises over its own n images."""
    model = normalised()
    images, labels = batch()
    mean, variance = run(model, images, labels).statistics
    pixels = (images / 255).reshape(K, -1, 3)  # a worker's N = n * 2 * 2 pixels
    np.testing.assert_allclose(mean, 0.9 * 0 + 0.1 * pixels.mean(1).mean(0), rtol=1e-5)
    np.testing.assert_allclose(
        variance, 0.9 * 1 + 0.1 * pixels.var(1, ddof=1).mean(0), rtol=1e-5
    )
    # The model's own are as they were: they are assigned once, after the all-reduce.
    assert model.get_layer("bn").moving_mean.numpy().tolist() == [0, 0, 0]


def test_statistics_over_everything_are_those_of_one_batch():
    model = normalised()
    images, labels = batch()
    _, variance = run(model, images, labels, groups=1, together=True).statistics
    pixels = (images / 255).reshape(-1, 3)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * pixels.var(0, ddof=1), rtol=1e-5)


def test_float16_gradients_do_not_underflow():
    """Divided by kn they are below float16's smallest number, 6e-8."""
    model = linear(dtype="mixed_float16")
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    images, labels = batch()
    kn = 2**26
    sums = run(model, images, labels, global_batch=kn)
    gradient, _, _ = by_hand(model, images, labels)
    expected = gradient * K * N / kn
    assert np.abs(expected).max() < 6e-8
    np.testing.assert_allclose(
        sums.gradients[0].numpy(), expected, rtol=0.02, atol=1e-11
    )


def test_what_the_fixed_point_cannot_hold_is_counted():
    model = linear()
    model.set_weights([np.full([3, CLASSES], np.nan, np.float32)])
    images, labels = batch()
    assert run(model, images, labels, exact=True).faults.numpy().any()
