"""Momentum correction and coupled weight decay: M2, M3, M4, and use inside Keras."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_goyal.schedule import GoyalSchedule
from tf_goyal.sgd import SGD

STEP = [3.2] * 8 + [0.32] * 12
ZEROS = [0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.2, 0.0, 0.3, 0.3]
RAMP = list(np.linspace(0.1, 3.2, 60)) + [3.2] * 5 + [0.32] * 5


def form_a(rates, gradients, *, nesterov, momentum=0.9, decay=0.0, start=0.0):
    """§3, eq. 9 in float64: the weight after every step."""
    u, w, weights = 0.0, np.float64(start), []
    for eta, gradient in zip(np.float64(np.float32(rates)), gradients):
        g = gradient + decay * w
        u = momentum * u + g
        w = w - eta * (g + momentum * u if nesterov else u)
        weights.append(w)
    return np.array(weights)


def variable(value=0.0, name="bias", dtype="float32", shape=(3,)):
    return keras.Variable(np.full(shape, value), name=name, dtype=dtype)


def run(optimizer, w, rates, gradients, *, compiled=False):
    """Steps `optimizer` (of a settable rate); the weight after every step."""

    def step(gradient):
        optimizer.apply_gradients([(gradient, w)])

    if compiled:
        step = tf.function(step)
    weights = []
    for eta, gradient in zip(rates, gradients):
        optimizer.learning_rate = eta
        step(tf.fill(w.shape, tf.cast(gradient, w.dtype)))
        weights.append(w.numpy()[0])
    return np.array(weights)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("rates", [STEP, RAMP, ZEROS], ids=["step", "ramp", "zeros"])
def test_m3_equals_form_a(rates, nesterov, compiled):
    """M3: constant gradient, changing rate; float64 weights show the rule's error."""
    w = variable(dtype="float64")
    optimizer = SGD(0.1, 0.9, nesterov)
    weights = run(optimizer, w, rates, [1.0] * len(rates), compiled=compiled)
    expected = form_a(rates, [1.0] * len(rates), nesterov=nesterov)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_m3_in_float32(nesterov):
    """M3: what the training runs in."""
    weights = run(SGD(0.1, 0.9, nesterov), variable(), STEP, [1.0] * len(STEP))
    expected = form_a(STEP, [1.0] * len(STEP), nesterov=nesterov)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("rates", [STEP, RAMP, ZEROS], ids=["step", "ramp", "zeros"])
def test_m3_equals_form_a_for_random_gradients(rates, nesterov):
    """M3 with gradients of both signs, and with weight decay."""
    gradients = np.random.default_rng(0).normal(size=len(rates))
    w = variable(0.5, "kernel", "float64")
    optimizer = SGD(0.1, 0.9, nesterov, weight_decay=0.01)
    expected = form_a(rates, gradients, nesterov=nesterov, decay=0.01, start=0.5)
    np.testing.assert_allclose(
        run(optimizer, w, rates, gradients), expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("at", [7, 8, 9])
@pytest.mark.parametrize("rates", [STEP, ZEROS], ids=["step", "zeros"])
def test_m3_save_and_restore_around_the_change(rates, at):
    """M3: the optimiser's variables as arrays, restored before the change (8)."""
    gradients = [1.0] * len(rates)
    whole = run(SGD(0.1), variable(), rates, gradients)

    w = variable()
    first = SGD(0.1)
    before = run(first, w, rates[:at], gradients[:at])
    stored = [v.numpy() for v in first.variables]

    second = SGD(0.1)
    second.build([w])
    for v, array in zip(second.variables, stored):
        v.assign(array)
    after = run(second, w, rates[at:], gradients[at:])
    np.testing.assert_array_equal(np.concatenate([before, after]), whole)


def test_a_constant_rate_is_the_update_of_keras():
    """Nothing is rescaled when the rate stays: no error may enter."""
    gradients = np.random.default_rng(0).normal(size=30)
    for nesterov in (False, True):
        ours, theirs = variable(0.5), variable(0.5)
        run(SGD(0.1, 0.9, nesterov), ours, [0.1] * 30, gradients)
        run(keras.optimizers.SGD(0.1, 0.9, nesterov), theirs, [0.1] * 30, gradients)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-7)


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_correction_it_is_keras_with_its_fault(nesterov):
    """§3: after 3.2 -> 0.32 the stored velocity is ten times too large."""
    gradients = [1.0] * len(STEP)
    faulty = run(
        SGD(0.1, 0.9, nesterov, momentum_correction=False), variable(), STEP, gradients
    )
    theirs = run(keras.optimizers.SGD(0.1, 0.9, nesterov), variable(), STEP, gradients)
    np.testing.assert_array_equal(faulty, theirs)

    expected = form_a(STEP, gradients, nesterov=nesterov)
    np.testing.assert_allclose(faulty[:8], expected[:8], rtol=1e-6)
    assert np.all(faulty[8:] < 1.05 * expected[8:])  # both are negative


@pytest.mark.parametrize("momentum_correction", [False, True])
def test_without_momentum_there_is_no_velocity(momentum_correction):
    """w <- w - eta (g + lambda w), by hand: 1 - 0.5 (1 + 0.5), then again."""
    w = variable(1.0, "kernel")
    optimizer = SGD(0.5, 0.0, weight_decay=0.5, momentum_correction=momentum_correction)
    np.testing.assert_array_equal(
        run(optimizer, w, [0.5, 0.5], [1.0, 1.0]), [0.25, -0.3125]
    )
    assert [v.name for v in optimizer.variables] == ["iteration", "learning_rate"]


def test_an_infinite_velocity_does_not_reach_the_weights_while_the_rate_is_0():
    """A rate of 0 leaves the weights alone whatever the gradient is."""
    w = variable(1.0)
    run(SGD(0.1), w, [0.0], [np.inf])
    np.testing.assert_array_equal(w.numpy(), np.ones(3))


def layers():
    """Every kind of variable: 4 kernels, biases, gamma and beta."""
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.layers.Conv2D(4, 3, name="conv"),
            keras.layers.BatchNormalization(name="bn"),
            keras.layers.DepthwiseConv2D(3, name="depthwise"),
            keras.layers.SeparableConv2D(4, 2, name="separable"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, name="fc"),
        ],
        name="net",
    )


DECAYED = [
    "net/conv/kernel",
    "net/depthwise/kernel",
    "net/separable/depthwise_kernel",
    "net/separable/pointwise_kernel",
    "net/fc/kernel",
]


@pytest.mark.parametrize("nesterov", [False, True])
def test_m4_weight_decay_alone(nesterov):
    """M4: zero data gradient for 100 steps: kernels shrink by L2, nothing else."""
    variables = layers().trainable_variables
    start = [v.numpy() for v in variables]
    optimizer = SGD(3.2, 0.9, nesterov, weight_decay=1e-4)
    optimizer.build(variables)
    assert [v.path for v in optimizer.decayed_variables] == DECAYED

    @tf.function
    def step():
        optimizer.apply_gradients([(tf.zeros(v.shape), v) for v in variables])

    for _ in range(100):
        step()
    decay = float(np.float32(1e-4))
    shrink = form_a([3.2] * 100, [0.0] * 100, nesterov=nesterov, decay=decay, start=1.0)
    assert 0.5 < shrink[-1] < 0.8
    for v, w in zip(variables, start):
        if v.path in DECAYED:
            np.testing.assert_allclose(v.numpy(), w * shrink[-1], rtol=1e-5)
        else:
            np.testing.assert_array_equal(v.numpy(), w)


def test_weight_decay_is_not_keras_decoupled_one():
    """The trap: Keras' decay passes by the momentum, so it is ten times weaker."""
    ours, theirs = variable(1.0, "kernel"), variable(1.0, "kernel")
    run(SGD(0.1, 0.9, False, weight_decay=1e-3), ours, [0.1] * 200, [0.0] * 200)
    decoupled = keras.optimizers.SGD(0.1, 0.9, False, weight_decay=1e-3)
    run(decoupled, theirs, [0.1] * 200, [0.0] * 200)
    np.testing.assert_allclose(theirs.numpy(), (1 - 1e-4) ** 200, rtol=1e-5)
    assert 8 < (1 - ours.numpy()[0]) / (1 - theirs.numpy()[0]) < 10


def test_weight_decay_is_twice_keras_regularizer():
    """The trap: L2(x) adds x w^2 to the loss, so the gradient 2 x w."""
    ours, theirs = variable(1.0, "kernel"), variable(1.0, "kernel")
    coupled, plain = SGD(0.1, weight_decay=0.02), SGD(0.1)
    regularizer = keras.regularizers.L2(0.01)
    for _ in range(20):
        coupled.apply_gradients([(tf.zeros(3), ours)])
        with tf.GradientTape() as tape:
            loss = regularizer(theirs.value)
        plain.apply_gradients([(tape.gradient(loss, theirs.value), theirs)])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


def test_weight_decay_is_the_rates_alone():
    """§3, remark 1: a loss 8 times as large leaves the decay as it is."""
    for scale in (1.0, 8.0):
        w = variable(1.0, "kernel")
        optimizer = SGD(0.5, 0.0, weight_decay=0.25)
        run(optimizer, w, [0.5], [scale])
        np.testing.assert_array_equal(w.numpy(), 1 - 0.5 * scale - 0.5 * 0.25)


def test_exclude_from_weight_decay_is_honoured():
    variables = layers().trainable_variables
    optimizer = SGD(weight_decay=1e-4)
    optimizer.exclude_from_weight_decay(
        var_names=["depthwise"], var_list=[v for v in variables if "fc" in v.path]
    )
    optimizer.build(variables)
    assert [v.path for v in optimizer.decayed_variables] == [
        "net/conv/kernel",
        "net/depthwise/kernel",  # its name is "kernel"
        "net/separable/pointwise_kernel",
    ]


def test_sparse_gradients_count_as_dense_ones():
    """A gathered row's gradient: the other rows coast on their velocity."""
    table = keras.Variable(np.ones((4, 2)), name="embeddings", dtype="float32")
    dense = keras.Variable(np.ones((4, 2)), name="embeddings", dtype="float32")
    sparse_sgd, dense_sgd = SGD(0.1), SGD(0.1)
    for row in (1, 2, 3):
        slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([row]), (4, 2))
        sparse_sgd.apply_gradients([(slices, table)])
        dense_sgd.apply_gradients([(tf.convert_to_tensor(slices), dense)])
    np.testing.assert_array_equal(table.numpy(), dense.numpy())


def test_accumulated_gradients_are_one_step():
    """The old rate is replaced only where the weights move."""
    once, twice = variable(1.0, "kernel"), variable(1.0, "kernel")
    rates = [0.1, 0.1, 0.2, 0.3]
    run(SGD(0.1, weight_decay=0.1), once, rates, [1.0, 2.0, 3.0, 4.0])
    accumulating = SGD(0.1, weight_decay=0.1, gradient_accumulation_steps=2)
    run(
        accumulating,
        twice,
        [r for eta in rates for r in (9.9, eta)],
        [0.0, 2.0, 0.0, 4.0, 0.0, 6.0, 0.0, 8.0],
        compiled=True,
    )
    np.testing.assert_allclose(once.numpy(), twice.numpy(), rtol=1e-6)


def test_loss_scaling_does_not_scale_the_decay():
    """float16: the scaled gradients are unscaled before weight decay joins."""
    plain, scaled = variable(1.0, "kernel"), variable(1.0, "kernel")
    inner = SGD(0.1, weight_decay=0.1)
    wrapper = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)
    optimizer = SGD(0.1, weight_decay=0.1)
    for gradient in (1.0, 2.0, 3.0):
        optimizer.apply_gradients([(tf.fill((3,), gradient), plain)])
        wrapper.apply_gradients([(tf.fill((3,), 1024 * gradient), scaled)])
    np.testing.assert_array_equal(plain.numpy(), scaled.numpy())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"weight_decay": -1e-4}, "weight_decay must not be negative.*-0.0001"),
        ({"momentum": 1.5}, "momentum"),
    ],
)
def test_refuses_impossible_values(kwargs, message):
    with pytest.raises(ValueError, match=message):
        SGD(**kwargs)


def test_serialises():
    """get_config carries our weight decay; Keras finds this class, not its own."""
    optimizer = SGD(
        GoyalSchedule(0.1, 512, 1024),
        0.8,
        False,
        weight_decay=0.5,
        momentum_correction=False,
        clipnorm=1.0,
        name="sgd",
    )
    config = keras.optimizers.serialize(optimizer)
    assert config["registered_name"] == "tf_goyal>SGD"
    again = keras.optimizers.deserialize(config)
    assert type(again) is SGD
    assert again.get_config() == optimizer.get_config()
    assert again.get_config()["weight_decay"] == 0.5
    assert again.weight_decay is None  # Keras' decoupled decay is off


def regression():
    rng = np.random.default_rng(0)
    return rng.normal(size=(16, 6, 6, 2)), rng.normal(size=(16, 3))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_equals_form_a(jit_compile):
    """model.fit of one weight per output, compiled by TensorFlow or by XLA."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    schedule = GoyalSchedule(0.1, 512, 512, warmup_epochs=4.0, boundaries=(6.0,))
    model.compile(
        SGD(schedule, weight_decay=0.01),
        lambda _, prediction: prediction,  # gradient 1
        jit_compile=jit_compile,
    )
    model.set_weights([np.ones((1, 1))])
    model.fit(np.ones((10, 1)), np.ones((10, 1)), batch_size=1, verbose=0)
    rates = [schedule.value(s) for s in range(10)]
    expected = form_a(rates, [1.0] * 10, nesterov=True, decay=0.01, start=1.0)
    np.testing.assert_allclose(model.get_weights()[0], expected[-1:, None], rtol=1e-6)


def test_saved_keras_file_goes_on_with_the_same_bits(tmp_path):
    """A compiled model saved in the warmup, loaded, and trained further."""
    x, y = regression()

    def compiled():
        keras.utils.set_random_seed(0)
        model = layers()
        schedule = GoyalSchedule(0.01, 512, 512, warmup_epochs=8.0)
        model.compile(SGD(schedule, weight_decay=1e-2), "mse")
        return model

    def train(model):
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)

    whole = compiled()
    train(whole)
    whole.save(tmp_path / "model.keras")
    train(whole)

    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is SGD
    last = loaded.optimizer.previous_learning_rate.numpy()  # 4 steps were done
    assert last == np.float32(0.01 + 0.01 * 3 / 8)
    train(loaded)
    for a, b in zip(whole.variables, loaded.variables):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_keeps_float32_state(policy):
    """The weights and the velocity stay float32, the loss falls."""
    x, y = regression()
    keras.config.set_dtype_policy(policy)
    try:
        model = layers()
        model.compile(SGD(0.01, weight_decay=1e-4), "mse", jit_compile=False)
        losses = model.fit(x, y, epochs=5, verbose=0).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    assert losses[-1] < losses[0]
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    state = [*model.trainable_variables, *optimizer.momentums]
    assert {v.dtype for v in state} == {"float32"}


TWO_DEVICES = """
import hashlib, json, sys
import numpy as np
import tensorflow as tf
import keras
from tf_goyal.schedule import GoyalSchedule
from tf_goyal.sgd import SGD

tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
result = {}

def values(variable):  # one value per device
    return [float(v.numpy().flat[0]) for v in strategy.experimental_local_results(
        variable.value)]

# Gradient 1 everywhere: 4 images on each device, each loss divided by kn = 8.
def weight_after(steps, where, momentum, rates, decay=0.0):
    with strategy.scope():
        w = keras.Variable(np.ones(3), name="kernel", dtype="float32")
        optimizer = SGD(rates, momentum, False, weight_decay=decay)
        optimizer.build([w])

    def replica():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.ones((4, 1)) * w) / 8
        gradient = tape.gradient(loss, w.value)
        if where == "replica":
            optimizer.apply_gradients([(gradient, w)])
            return 0.0
        return tf.distribute.get_replica_context().all_reduce("SUM", gradient)

    @tf.function
    def step():
        gradient = strategy.run(replica)
        if where == "scope":
            with strategy.scope():
                optimizer.apply_gradients([(gradient, w)])
        elif where == "outside":
            optimizer.apply_gradients([(gradient, w)])
        elif where == "tensors":
            gradient = strategy.experimental_local_results(gradient)[0]
            optimizer.apply_gradients([(gradient, w)])

    for _ in range(steps):
        step()
    return values(w), values(optimizer.previous_learning_rate) if momentum else []

for where in ("replica", "scope", "outside", "tensors"):
    for momentum in (0.0, 0.9):
        result[f"m2 {where} {momentum}"] = weight_after(1, where, momentum, 1.0)
    schedule = GoyalSchedule(0.1, 512, 512, warmup_epochs=4.0, boundaries=(6.0,))
    result[f"m3 {where}"] = weight_after(10, where, 0.9, schedule, 0.01)

with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(SGD(1.0, 0.9, False), lambda _, prediction: prediction)
    model.set_weights([np.ones((1, 1))])
model.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=8, verbose=0)
result["m2 fit"] = [values(model.trainable_variables[0]), []]

# Large enough that TensorFlow would split the kernels over threads.
w = keras.Variable(np.linspace(-1, 1, 2**20), name="kernel", dtype="float32")
g = tf.constant(np.sin(np.arange(2**20)), tf.float32)
optimizer = SGD(GoyalSchedule(0.1, 512, 512, warmup_epochs=3.0), weight_decay=0.01)
for _ in range(5):
    optimizer.apply_gradients([(g, w)])
result["sha256"] = hashlib.sha256(w.numpy().tobytes()).hexdigest()
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def two_devices():
    """Results of two logical CPUs, with 1 and with 2 intra-op threads."""
    results = []
    for threads in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", TWO_DEVICES, threads],
            cwd=Path(__file__).parents[1],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout.splitlines()[-1]))
    return results


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("where", ["replica", "scope", "outside", "tensors"])
def test_m2_two_devices_move_by_the_mean(two_devices, where, momentum):
    """M2: exactly the mean gradient, 1: not 2, not 1/2; on both devices."""
    weights, previous = two_devices[0][f"m2 {where} {momentum}"]
    assert weights == [0.0, 0.0]
    assert previous == ([1.0, 1.0] if momentum else [])


def test_m2_two_devices_in_fit(two_devices):
    """M2: model.fit under MirroredStrategy."""
    assert two_devices[0]["m2 fit"][0] == [0.0, 0.0]


@pytest.mark.parametrize("where", ["replica", "scope", "outside", "tensors"])
def test_m3_on_two_devices(two_devices, where):
    """M3: warmup and a change of rate; decay and correction once per step."""
    schedule = GoyalSchedule(0.1, 512, 512, warmup_epochs=4.0, boundaries=(6.0,))
    rates = [schedule.value(s) for s in range(10)]
    expected = form_a(rates, [1.0] * 10, nesterov=False, decay=0.01, start=1.0)
    weights, previous = two_devices[0][f"m3 {where}"]
    assert weights[0] == weights[1] == pytest.approx(expected[-1], rel=1e-6)
    assert previous == [np.float32(rates[-1])] * 2


def test_bits_do_not_depend_on_the_thread_count(two_devices):
    """The update is elementwise: 1 and 2 intra-op threads agree on everything."""
    assert two_devices[0] == two_devices[1]
