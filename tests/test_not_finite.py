"""Who made a loss that is not finite: numbers by hand."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import not_finite
from tf_goyal.workers import Sums

NAMES = ["stem/kernel", "bn/gamma", "head/kernel"]


def table(rows, names=NAMES, per_process=1, most=5):
    """`report` where device i of all gave rows[i]; this process has the first ones."""
    devices = len(rows)

    def device_sum(mine):
        assert mine.shape == (per_process, devices * (1 + len(names)))
        others = np.zeros([devices, devices, 1 + len(names)], np.int64)
        for device in range(per_process, devices):
            others[device, device] = np.float32(rows[device]).view(np.int32)
        return mine.sum(0) + others.sum(0).ravel()

    placement = types.SimpleNamespace(local=range(per_process), devices=devices)
    mine = [np.float32(row) for row in rows[:per_process]]
    return not_finite.report(mine, names, device_sum, placement, most)


def test_the_rank_and_what_is_not_finite_first():
    """F4: rank 1 of 2 has it; its largest norms, not rank 0's."""
    found = table([[0.5, 900.0, 1.0, 1.0], [np.nan, 3.0, np.inf, 4.0]])
    assert found == {
        "ranks": [1],
        "gradient_norms": {"bn/gamma": "inf", "head/kernel": 4.0, "stem/kernel": 3.0},
    }
    assert list(found["gradient_norms"]) == ["bn/gamma", "head/kernel", "stem/kernel"]


def test_negative_bits_survive_the_sum():
    """A NaN with its sign bit set is a negative integer."""
    negative = np.uint32(0xFFC00000).view(np.float32)
    assert table([[1.0, 1, 1, 1], [negative, 1, 1, 1]])["ranks"] == [1]


def test_devices_of_a_process_are_its_rank():
    rows = [[1.0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, np.nan, 1, 1]]
    assert table(rows, per_process=2)["ranks"] == [1]
    assert table(rows, per_process=1)["ranks"] == [3]


def test_where_only_the_sum_is_not_finite_nobody_is_blamed():
    found = table([[1.0, 2.0, 3.0, 4.0], [1.0, 9.0, 3.0, 2.0]], most=2)
    assert found == {
        "ranks": [],
        "gradient_norms": {"stem/kernel": 9.0, "head/kernel": 4.0},
    }


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_a_gradient_that_is_not_finite_makes_the_loss_nan(value, where):
    """The first layer's kernel, or any vector; a later kernel is not looked at."""
    gradients = [tf.ones([2, 2]), tf.ones([3]), tf.ones([2, 2])]
    assert not_finite.checked(tf.constant(0.5), gradients) == 0.5
    gradients[where] = gradients[where] * np.float32(value)
    assert np.isnan(not_finite.checked(tf.constant(0.5), gradients))


def test_evidence_by_hand():
    sums = Sums(
        gradients=[tf.constant([3.0, 4.0]), tf.constant([[np.inf]])],
        statistics=[],
        loss=tf.constant(np.nan),
        error=tf.constant(0.0),
        faults=tf.zeros([4]),
    )
    mine = not_finite.evidence(sums, tf.constant(np.nan), exact=False)
    np.testing.assert_array_equal(mine, [np.nan, 5.0, np.inf])
    assert not not_finite.evidence(sums, tf.constant(1.0), exact=False).numpy().any()


def test_evidence_of_the_exact_sum_is_in_its_faults():
    """Gradients, a statistic, loss, error: what did not fit is encoded as 0."""
    unit = 2**50
    sums = Sums(
        gradients=[
            tf.constant([3 * unit, 4 * unit], tf.int64),
            tf.zeros([1], tf.int64),
        ],
        statistics=[tf.zeros([1], tf.int64)],
        loss=tf.constant(2 * unit, tf.int64),
        error=tf.constant(0, tf.int64),
        faults=tf.constant([0, 1, 1, 0, 0], tf.int64),
    )
    mine = not_finite.evidence(sums, tf.constant(np.nan), exact=True)
    np.testing.assert_array_equal(mine, [2.0, 5.0, np.inf])
