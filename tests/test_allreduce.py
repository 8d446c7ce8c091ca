"""Buckets; the sums over real processes are in test_layouts.py."""

import pytest
import tensorflow as tf

from tf_goyal import allreduce


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"),
    [
        (0, [[0], [1], [2], [3]]),
        (1, [[0], [1], [2], [3]]),
        (3, [[0], [1, 2], [3]]),  # 4 | 2 + 2 | 8
        (4, [[0], [1, 2], [3]]),
        (5, [[0, 1], [2, 3]]),
        (8, [[0, 1, 2], [3]]),
        (9, [[0, 1, 2, 3]]),
        (1000, [[0, 1, 2, 3]]),
    ],
)
def test_buckets_are_full_when_they_hold_enough(bucket_bytes, expected):
    """C3: 0, between, larger than everything."""
    assert allreduce.buckets([4, 2, 2, 8], bucket_bytes) == expected


def test_no_tensors_need_no_bucket():
    assert allreduce.buckets([], 8) == []


def test_nothing_happens_on_one_device():
    values = [tf.constant([1.0, 2.0]), tf.constant(3.0)]
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    results = strategy.run(lambda: allreduce.all_reduce(values, 0))
    assert all(a is b for a, b in zip(results, values, strict=True))
