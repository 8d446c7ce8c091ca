"""The learning rate: M5, M6, M7, exactness, and use inside Keras."""

import doctest
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import schedule as schedule_module
from tf_goyal.schedule import GoyalSchedule

TRAIN_IMAGES = 1_281_167
# Worked out by hand, N / 8192 = 156.392...: 5 epochs are 781.96 steps, 30 are
# 4691.77, 60 are 9383.55, 80 are 12511.40.
WARMUP_STEPS, EPOCH_30, EPOCH_60, EPOCH_80 = 782, 4692, 9384, 12512
SCALED = {"linear": 3.2, "sqrt": 0.1 * math.sqrt(32), "none": 0.1}


def paper(global_batch: int = 8192, **kwargs) -> GoyalSchedule:
    return GoyalSchedule(0.1, global_batch, TRAIN_IMAGES, **kwargs)


@pytest.mark.parametrize("scaling", SCALED)
@pytest.mark.parametrize("warmup", ["gradual", "constant", "none"])
def test_m5_boundaries_of_the_8192_recipe(warmup, scaling):
    """M5: the last step before and the first at each boundary."""
    schedule = paper(warmup=warmup, scaling=scaling)
    scaled = SCALED[scaling]
    last_warm = 0.1 + (scaled - 0.1) * 781 * 8192 / (5 * TRAIN_IMAGES)
    expected = {
        0: {"gradual": 0.1, "constant": 0.1, "none": scaled}[warmup],
        WARMUP_STEPS - 1: {"gradual": last_warm, "constant": 0.1, "none": scaled}[
            warmup
        ],
        WARMUP_STEPS: scaled,
        WARMUP_STEPS + 1: scaled,
        EPOCH_30 - 1: scaled,
        EPOCH_30: scaled / 10,
        EPOCH_30 + 1: scaled / 10,
        EPOCH_60 - 1: scaled / 10,
        EPOCH_60: scaled / 100,
        EPOCH_60 + 1: scaled / 100,
        EPOCH_80 - 1: scaled / 100,
        EPOCH_80: scaled / 1000,
        EPOCH_80 + 1: scaled / 1000,
        2 * EPOCH_80: scaled / 1000,
    }
    for step, rate in expected.items():
        assert schedule.value(step) == pytest.approx(rate, rel=1e-14), step
        assert schedule(step).dtype == tf.float32
        assert float(schedule(step)) == np.float32(rate), step


def test_m5_boundary_steps_are_the_first_of_their_epoch():
    """M5: s kn >= b N at the step, and not at the step before, in integers."""
    for step, epoch in ((WARMUP_STEPS, 5), (EPOCH_30, 30), (EPOCH_80, 80)):
        assert (step - 1) * 8192 < epoch * TRAIN_IMAGES <= step * 8192


def test_gradual_warmup_rises_by_equal_increments():
    """§2.2: the same increment every iteration."""
    schedule = paper()
    increments = np.diff([schedule.value(s) for s in range(WARMUP_STEPS)])
    expected = 3.1 * 8192 / (5 * TRAIN_IMAGES)
    np.testing.assert_allclose(increments, expected, rtol=1e-11)


def test_boundary_that_falls_on_a_step_belongs_to_it():
    """5 steps an epoch: epoch 30 begins with step 150."""
    schedule = GoyalSchedule(0.1, 256, 1280)
    assert [schedule.value(s) for s in (149, 150, 151)] == pytest.approx(
        [0.1, 0.01, 0.01]
    )


def test_epochs_are_read_as_decimals():
    """0.07 of 100 images are 7 images; in float64 they would be a little more."""
    assert 0.07 * 100 > 7
    schedule = GoyalSchedule(1.0, 1, 100, boundaries=(0.07, 7.1), scaling="none")
    steps = (6, 7, 8, 709, 710)
    assert [schedule.value(s) for s in steps] == pytest.approx([1, 0.1, 0.1, 0.1, 0.01])


@pytest.mark.parametrize("first", [2**24 + 1, 30 * TRAIN_IMAGES, 2**40 - 1, 2**40])
def test_exact_beyond_2_to_24_steps(first):
    """Float32 cannot tell these steps from their neighbours."""
    schedule = GoyalSchedule(0.1, 8192, 8192, boundaries=(first,), warmup="none")
    rates = [float(schedule(s)) for s in (first - 1, first, first + 1)]
    assert rates == [np.float32(3.2), np.float32(0.32), np.float32(0.32)]


def test_warmup_exact_beyond_2_to_24_steps():
    """The ramp goes on rising by single steps where float32 steps stand still."""
    schedule = GoyalSchedule(0.1, 257, 2**30, warmup_epochs=2**12, boundaries=())
    end = math.ceil(2**42 / 257)
    assert end > 2**32
    slope = (0.1 * 257 / 256 - 0.1) / 2**42
    for step in (2**25, 2**25 + 1, end - 1):
        expected = 0.1 + slope * step * 257
        assert schedule.value(step) == pytest.approx(expected, rel=1e-15, abs=0)
    assert schedule.value(end) == 0.1 * 257 / 256


def test_m6_a_resumed_run_has_the_same_bits():
    """M6: eager, compiled, all in one go, int32 and int64: one value per step."""
    schedule = paper()
    epoch_31 = math.ceil(31 * TRAIN_IMAGES / 8192)
    steps = [*range(0, 900, 7), 300, WARMUP_STEPS - 1, WARMUP_STEPS, epoch_31]

    @tf.function
    def one(step):
        return schedule(step)

    @tf.function
    def in_one_go():
        steps_tensor = tf.constant(steps, tf.int64)
        return tf.map_fn(schedule, steps_tensor, fn_output_signature=tf.float32)

    run = in_one_go().numpy()
    for rate, step in zip(run, steps):
        eager = schedule(step).numpy()
        assert rate == eager == np.float32(schedule.value(step)), step
        assert eager == schedule(keras.Variable(step, dtype="int64")).numpy()
        for dtype in (tf.int32, tf.int64):
            assert eager == one(tf.constant(step, dtype)).numpy(), step


@pytest.mark.parametrize("warmup", ["gradual", "constant"])
@pytest.mark.parametrize("warmup_epochs", [0, 0.0])
def test_m7_warmup_of_no_epochs(warmup, warmup_epochs):
    """M7: the scaled rate from step 0 on."""
    schedule = paper(warmup=warmup, warmup_epochs=warmup_epochs)
    assert [schedule.value(s) for s in (0, 1, 2)] == [3.2, 3.2, 3.2]


@pytest.mark.parametrize("warmup", ["gradual", "constant"])
@pytest.mark.parametrize("warmup_epochs", [1e-6, 0.001, 1.0])
def test_m7_warmup_of_one_step_or_less(warmup, warmup_epochs):
    """M7: one step at the base rate, then the scaled one."""
    schedule = GoyalSchedule(
        0.1, 8192, 8192, warmup=warmup, warmup_epochs=warmup_epochs
    )
    assert [schedule.value(s) for s in (0, 1, 2)] == [0.1, 3.2, 3.2]


def test_m7_warmup_of_two_steps():
    """M7: half way at step 1."""
    schedule = GoyalSchedule(0.1, 8192, 8192, warmup_epochs=2.0)
    assert [schedule.value(s) for s in (0, 1, 2)] == pytest.approx([0.1, 1.65, 3.2])


@pytest.mark.parametrize("warmup", ["gradual", "constant", "none"])
@pytest.mark.parametrize("global_batch", [1, 128, 255, 256])
def test_m7_no_warmup_up_to_256(global_batch, warmup):
    """M7, §5.1: warmup is used for kn > 256 only."""
    schedule = paper(global_batch, warmup=warmup)
    expected = 0.1 * global_batch / 256
    assert schedule.value(0) == schedule.value(1) == pytest.approx(expected, rel=1e-15)


def test_m7_warmup_from_257():
    """M7: the first batch size with a warmup."""
    schedule = paper(257)
    assert schedule.value(0) == 0.1
    assert 0.1 < schedule.value(1) < 0.1 * 257 / 256


def test_boundary_inside_the_warmup_decays_it():
    """Step 1 of 4: half the ramp's rate."""
    schedule = GoyalSchedule(
        0.1, 512, 512, warmup_epochs=4.0, boundaries=(1.0,), decay=0.5
    )
    rates = [schedule.value(s) for s in (0, 1, 2, 4)]
    assert rates == pytest.approx([0.1, 0.0625, 0.075, 0.1])


def test_docstring_shows_true_values():
    assert doctest.testmod(schedule_module) == doctest.TestResults(0, 3)


def test_no_boundaries():
    assert paper(boundaries=()).value(10**6) == 3.2


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"scaling": "cubic"}, "scaling .* linear, sqrt, none.*'cubic'"),
        ({"warmup": "slow"}, "warmup .* gradual, constant, none.*'slow'"),
        ({"base_batch": 0}, "base_batch .*0"),
        ({"global_batch": 0}, "global_batch .*0"),
    ],
)
def test_refuses_what_it_does_not_know(kwargs, message):
    with pytest.raises(ValueError, match=message):
        paper(**kwargs)


def test_serialises():
    """get_config, and Keras' own round trip under the registered name."""
    schedule = paper(512, scaling="sqrt", warmup="constant", boundaries=[3, 7.1])
    config = keras.optimizers.schedules.serialize(schedule)
    assert config["registered_name"] == "tf_goyal>GoyalSchedule"
    again = keras.optimizers.schedules.deserialize(config)
    assert isinstance(again, GoyalSchedule)
    assert again.get_config() == schedule.get_config()


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_drives_keras_optimizers_in_fit(optimizer):
    """3 steps of a ramp of 4: the optimiser's next rate is that of step 3."""
    schedule = GoyalSchedule(0.1, 512, 512, warmup_epochs=4.0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer(schedule), "mse")
    model.fit(np.ones((12, 2)), np.ones((12, 1)), batch_size=4, verbose=0)
    assert float(model.optimizer.learning_rate) == np.float32(0.175)
