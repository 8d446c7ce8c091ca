"""BatchNormalization against NumPy, alone and under a strategy of two devices."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_goyal.batch_norm import BatchNormalization

EPSILON = 1e-5
# What one rounding of a value of about 4 costs, and a few sums of such.
TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 0.05, "mixed_float16": 0.01}


def _images(shape, seed=0):
    values = np.random.default_rng(seed).normal(3.0, 2.0, shape)
    # Numbers that all three types hold exactly, so that only the layer rounds.
    return np.round(values * 8).clip(-64, 64).astype(np.float32) / 8


def _layer(channels, **kwargs):
    layer = BatchNormalization(**kwargs)
    layer.build((None, None, None, channels))
    layer.gamma.assign(np.linspace(0.5, 2.0, channels))
    layer.beta.assign(np.linspace(-1.0, 1.0, channels))
    return layer


def _reference(x, gamma, beta, upstream):
    """y, its gradients and the unbiased variance, in float64 by the textbook."""
    x, upstream = x.astype(np.float64), upstream.astype(np.float64)
    axes, elements = (0, 1, 2), x[..., 0].size
    mean, variance = x.mean(axes), x.var(axes)
    scale = 1.0 / np.sqrt(variance + EPSILON)
    normalised = (x - mean) * scale
    d_gamma, d_beta = (upstream * normalised).sum(axes), upstream.sum(axes)
    d_x = gamma * scale * (upstream - (d_beta + normalised * d_gamma) / elements)
    unbiased = variance * elements / max(elements - 1, 1)
    return gamma * normalised + beta, d_x, d_gamma, d_beta, mean, unbiased


@pytest.mark.parametrize("policy", TOLERANCE)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [False, True])
def test_training_equals_numpy(policy, compiled, rows):
    shape = (4, 5, 6, 7)
    x, upstream = _images(shape), _images(shape, seed=1) / 8
    layer = _layer(7, dtype=policy, rows=rows)

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(tf.cast(y, tf.float32) * upstream)
        return y, *tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])

    got = (tf.function(run) if compiled else run)(tf.constant(x))
    assert got[0].dtype == layer.compute_dtype
    *want, mean, unbiased = _reference(
        x, np.linspace(0.5, 2.0, 7), np.linspace(-1.0, 1.0, 7), upstream
    )
    for name, a, b in zip(("y", "d_x", "d_gamma", "d_beta"), got, want):
        scale = TOLERANCE[policy] * max(1.0, np.abs(b).max())
        np.testing.assert_allclose(
            tf.cast(a, tf.float32), b, atol=scale, rtol=0, err_msg=name
        )
    # One step of the running averages by hand, from their initial 0 and 1; float32
    # sums whatever the policy.
    np.testing.assert_allclose(layer.moving_mean, 0.1 * mean, rtol=1e-4)
    np.testing.assert_allclose(layer.moving_variance, 0.9 + 0.1 * unbiased, rtol=1e-4)


@pytest.mark.parametrize("policy", [*TOLERANCE, "bfloat16"])
def test_weights_are_named_as_in_keras_and_float32(policy):
    layer = _layer(3, dtype=policy)
    assert [w.name for w in layer.trainable_variables] == ["gamma", "beta"]
    assert [w.name for w in layer.non_trainable_variables] == [
        "moving_mean",
        "moving_variance",
    ]
    assert {w.dtype for w in layer.variables} == {"float32"}
    layer(_images((2, 3, 3, 3)), training=True)
    assert {w.value.dtype for w in layer.variables} == {tf.float32}


@pytest.mark.parametrize("elements", [1, 2, 3])
def test_few_elements_per_channel(elements):
    """N = 1: no variance to divide by N - 1 = 0; 2 and 3: by 1 and 2."""
    layer = _layer(2)
    x = np.arange(2.0 * elements, dtype=np.float32).reshape(elements, 1, 1, 2)
    y = layer(x, training=True)
    variance = x.reshape(-1, 2).var(0, ddof=1) if elements > 1 else 0.0
    np.testing.assert_allclose(layer.moving_variance, 0.9 + 0.1 * variance, rtol=1e-6)
    if elements == 1:
        np.testing.assert_array_equal(y[0, 0, 0], layer.beta)


def test_running_averages_over_three_steps():
    layer = _layer(1, momentum=0.75)
    mean, variance = 0.0, 1.0
    for step in range(3):
        x = _images((2, 2, 2, 1), seed=step)
        layer(x, training=True)
        mean = 0.75 * mean + 0.25 * x.mean()
        variance = 0.75 * variance + 0.25 * x.var(ddof=1)
    np.testing.assert_allclose(layer.moving_mean, [mean], rtol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, [variance], rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_momentum_at_its_bounds(momentum):
    layer = _layer(1, momentum=momentum)
    x = _images((2, 2, 2, 1))
    layer(x, training=True)
    np.testing.assert_allclose(layer.moving_mean, [(1 - momentum) * x.mean()])


def test_inference_uses_the_running_averages_image_by_image():
    """X2: an image alone and among others gives the same answer."""
    layer = _layer(3)
    layer.moving_mean.assign([1.0, 2.0, 3.0])
    layer.moving_variance.assign([4.0, 1.0, 0.25])
    x = _images((4, 3, 3, 3))
    y = layer(x)
    want = (x - [1, 2, 3]) / np.sqrt(np.array([4.0, 1.0, 0.25]) + EPSILON)
    np.testing.assert_allclose(y, want * layer.gamma + layer.beta, atol=1e-5)
    np.testing.assert_array_equal(y[:1], layer(x[:1]))
    np.testing.assert_array_equal(layer.moving_mean, [1.0, 2.0, 3.0])


def test_a_frozen_layer_is_in_inference_mode():
    layer, x = _layer(3), _images((4, 3, 3, 3))
    inference = layer(x, training=False)
    layer.trainable = False
    np.testing.assert_array_equal(layer(x, training=True), inference)
    np.testing.assert_array_equal(layer.moving_mean, np.zeros(3))


def test_stateless_call_yields_the_statistics_as_data():
    """M8: nothing is assigned behind the train step's back."""
    layer = _layer(2)
    model = keras.Sequential([keras.Input((3, 3, 2)), layer])
    x = _images((4, 3, 3, 2))
    before = [v.numpy() for v in layer.non_trainable_variables]
    _, (mean, variance) = tf.function(
        lambda x: model.stateless_call(
            model.trainable_variables, model.non_trainable_variables, x, training=True
        )
    )(x)
    for variable, value in zip(layer.non_trainable_variables, before):
        np.testing.assert_array_equal(variable, value)
    flat = x.reshape(-1, 2)
    np.testing.assert_allclose(mean, 0.1 * flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * flat.var(0, ddof=1), rtol=1e-5)


def test_saving_and_config(tmp_path):
    layer = _layer(
        3,
        statistics="global",
        momentum=0.8,
        epsilon=1e-3,
        gamma_initializer="zeros",
        rows=True,
    )
    copy = BatchNormalization.from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    model = keras.Sequential([keras.Input((5, 5, 3)), layer])
    x = _images((4, 5, 5, 3))
    layer(x, training=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x), model(x))


@pytest.mark.parametrize(
    "kwargs, named",
    [
        ({"statistics": "local"}, "statistics"),
        ({"momentum": -0.1}, "momentum"),
        ({"momentum": 1.1}, "momentum"),
        ({"epsilon": -1e-5}, "epsilon"),
        ({"dtype": "float64"}, "float64"),
    ],
)
def test_bad_arguments_are_named(kwargs, named):
    with pytest.raises(ValueError, match=named):
        BatchNormalization(**kwargs)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 3), (2, 3, 3, 3, 3)])
def test_other_ranks_are_refused(shape):
    with pytest.raises(ValueError, match=r"\[B, H, W, C\]"):
        BatchNormalization()(np.zeros(shape, np.float32))


def test_unknown_channels_are_refused():
    with pytest.raises(ValueError, match="channels"):
        BatchNormalization().build((None, 3, 3, None))


@pytest.mark.parametrize("check", ["check_global", "check_fit"])
def test_on_two_devices(python, check):
    """In a process of its own: logical devices must be set before TensorFlow runs."""
    done = python(__file__, check)
    assert done.returncode == 0, done.stderr


def _two_devices():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def check_global():
    """statistics="global": 3 images and 1 on two devices equal 4 on one."""
    strategy = _two_devices()
    x, upstream = _images((4, 3, 3, 5)), _images((4, 3, 3, 5), seed=1) / 8
    one = _layer(5, statistics="global")
    with strategy.scope():
        two = _layer(5, statistics="global")

    def run(layer, x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(y * upstream)
        return y, *tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])

    def part(array):
        parts = [array[:3], array[3:]]
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    @tf.function
    def distributed(x, upstream):
        return strategy.run(run, args=(two, x, upstream))

    want = run(one, tf.constant(x), upstream)
    got = [
        strategy.experimental_local_results(v)
        for v in distributed(*map(part, (x, upstream)))
    ]
    for (a, b), whole in zip(got[:2], want[:2]):
        np.testing.assert_allclose(np.concatenate([a, b]), whole, atol=1e-5)
    for (a, b), whole in zip(got[2:], want[2:]):
        np.testing.assert_allclose(a + b, whole, atol=1e-4)
    for copies, variable in zip(
        two.non_trainable_variables, one.non_trainable_variables
    ):
        for copy in strategy.experimental_local_results(copies.value):
            np.testing.assert_allclose(copy, variable, rtol=1e-5)


def check_fit():
    """M8: in `fit`, dark and bright workers end up with the mean of both."""
    strategy = _two_devices()
    dark, bright = _images((4, 3, 3, 2)), _images((4, 3, 3, 2), seed=1) + 50
    with strategy.scope():
        layer = BatchNormalization()
        model = keras.Sequential(
            [
                keras.Input((3, 3, 2)),
                layer,
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    x, y = np.concatenate([dark, bright]), np.zeros((8, 1), np.float32)
    model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    means = [part.reshape(-1, 2).mean(0) for part in (dark, bright)]
    variances = [part.reshape(-1, 2).var(0, ddof=1) for part in (dark, bright)]
    for variable, want in (
        (layer.moving_mean, 0.1 * np.mean(means, 0)),
        (layer.moving_variance, 0.9 + 0.1 * np.mean(variances, 0)),
    ):
        copies = strategy.experimental_local_results(variable.value)
        assert len(copies) == 2
        for copy in copies:
            np.testing.assert_allclose(copy, want, rtol=1e-5)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
