"""What needs no second process; the sums over real ones are in test_layouts.py."""

import tensorflow as tf

from tf_goyal.allreduce import AllReduce


def test_nothing_happens_on_one_device():
    values = [tf.constant([1.0, 2.0]), tf.constant(3.0)]
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    reduce = AllReduce(lambda sizes: 1 / 0)
    results = strategy.run(lambda: reduce(values))
    assert all(a is b for a, b in zip(results, values, strict=True))
