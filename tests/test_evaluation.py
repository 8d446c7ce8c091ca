"""Every image once, on any layout."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import evaluation, step
from tf_goyal.placement import Placement
from tf_goyal.samples import InputError


class Layout:
    """Stands for the devices of one process among R."""

    def __init__(self, devices, local):
        self.devices, self.local = devices, local


@pytest.mark.parametrize(
    ("devices", "local", "expected"),
    [
        (1, range(1), [[0], [1], [2], [3]]),
        (2, range(1), [[0], [2]]),
        (2, range(1, 2), [[1], [3]]),
        (3, range(1, 3), [[1, 2], [4, 5]]),  # batches 4 and 5 are padding
        (8, range(6, 8), [[6, 7]]),
    ],
)
def test_batches_of_50_images_by_16(devices, local, expected):
    """D8: 4 batches; every device runs equally many rounds."""
    assert evaluation.batches_of(50, 16, Layout(devices, local)) == expected


@pytest.mark.parametrize(("images", "rounds"), [(31, 1), (32, 1), (33, 2)])
def test_rounds_at_the_boundary(images, rounds):
    assert len(evaluation.batches_of(images, 16, Layout(2, range(1)))) == rounds


def as_logits():
    """A "model" whose pixels are its logits: uint8 [B, 1, 6, 3] -> [B, 6]."""
    images = keras.Input([1, 6, 3], dtype="uint8")
    return keras.Model(images, keras.ops.cast(images[:, 0, :, 0], "float32"))


def evaluate(logits, labels, valid, batch, broken=None, leave_off=lambda: False):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    placement = Placement(strategy, 0, 1)
    images = np.repeat(logits[:, None, :, None], 3, 3).astype(np.uint8)
    broken = np.full(len(labels), -1) if broken is None else broken
    evaluated = evaluation.evaluate(
        step.eval_step(as_logits(), strategy),
        step.device_sum(strategy, placement),
        [
            tuple(
                map(
                    tf.constant,
                    (
                        images[i : i + batch],
                        labels[i : i + batch],
                        valid[i : i + batch],
                        broken[i : i + batch],
                    ),
                )
            )
            for i in range(0, len(labels), batch)
        ],
        placement,
        leave_off,
    )
    if evaluated is None:
        return None
    result, left_out = evaluated
    assert left_out == broken[broken >= 0].tolist()
    return result


def test_numbers_by_hand():
    """One right, one second of five, one sixth of six, one that is padding."""
    logits = np.array(
        [[9, 1, 2, 3, 4, 5], [9, 8, 2, 3, 4, 5]] + [[0, 1, 2, 3, 4, 5]] * 2
    )
    labels = np.int32([0, 1, 0, 0])
    valid = np.array([True, True, True, False])
    result = evaluate(logits, labels, valid, 2)
    assert result.images == 3
    assert result.top1_error == pytest.approx(200 / 3)
    assert result.top5_error == pytest.approx(100 / 3)
    log_sum = np.log(np.exp(logits[:3]).sum(1))
    expected = (log_sum - logits[np.arange(3), labels[:3]]).mean()
    assert result.loss == pytest.approx(expected, rel=1e-6)


def test_constant_logits_are_not_right():
    """in_top_k would count ties as right; top_k names five classes."""
    labels = np.int32([0, 4, 5, 5])
    result = evaluate(np.zeros([4, 6]), labels, np.ones(4, bool), 4)
    assert (result.top1_error, result.top5_error) == (75.0, 50.0)


def test_a_broken_record_does_not_count():
    """D5: it is told, and the error is over the others."""
    logits = np.array([[9, 1, 2, 3, 4, 5]] * 3)
    labels, valid = np.int32([0, 0, 1]), np.array([True, False, True])
    result = evaluate(logits, labels, valid, 3, broken=np.array([-1, 7, -1]))
    assert (result.images, result.top1_error) == (2, 50.0)


def test_nothing_to_count_is_an_error():
    with pytest.raises(InputError, match="no image"):
        evaluate(np.zeros([2, 6]), np.zeros(2, np.int32), np.zeros(2, bool), 2)


def test_the_split_into_batches_does_not_show():
    random = np.random.default_rng(0)
    logits = random.integers(0, 20, [24, 6])
    labels = random.integers(0, 6, 24).astype(np.int32)
    results = [evaluate(logits, labels, np.ones(24, bool), b) for b in (3, 8, 24)]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(("batches", "whole"), [(0, False), (1, False), (2, True)])
def test_an_evaluation_can_be_left_off(batches, whole):
    """F2, SIGTERM during evaluation: after 0 or 1 of 2 batches; after 2 it is done."""
    done = iter([False] * batches + [True] * 9)
    arguments = np.zeros([4, 6]), np.zeros(4, np.int32), np.ones(4, bool), 2
    result = evaluate(*arguments, leave_off=lambda: next(done))
    assert (result is not None) == whole
