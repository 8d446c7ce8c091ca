"""What needs no second process; the sums over real ones are in test_layouts.py."""

import tensorflow as tf

from tf_goyal import halving_doubling, hierarchical
from tf_goyal.allreduce import IN_FLIGHT, AllReduce
from tf_goyal.reduction_plan import Bucket


def test_nothing_happens_on_one_device():
    values = [tf.constant([1.0, 2.0]), tf.constant(3.0)]
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    reduce = AllReduce(lambda sizes: 1 / 0)
    results = strategy.run(lambda: reduce(values))
    assert all(a is b for a, b in zip(results, values, strict=True))


class TwoDevices:
    """As much of a replica context as is asked for."""

    num_replicas_in_sync = 2


class Recorded(AllReduce):
    """Adds nothing up, and keeps what it was to add up."""

    def _reduce(self, flat, algorithm, dtype):
        total = tf.identity(flat, name="total")
        self.recorded.append((flat, algorithm, dtype, total))
        return total


def recorded(monkeypatch, tensors, plan, **options):
    """What `AllReduce` does with the buckets of a plan, in a graph."""
    monkeypatch.setattr(tf.distribute, "get_replica_context", TwoDevices)
    reduce = Recorded(plan, **options)
    reduce.recorded = []
    with tf.Graph().as_default():
        reduce([tf.zeros(shape) for shape in tensors])
    return reduce.recorded


def test_a_bound_on_buckets_under_way(monkeypatch):
    """Bucket n waits for n - IN_FLIGHT, and for nothing later."""
    count = 2 * IN_FLIGHT + 1
    buckets = recorded(
        monkeypatch,
        [[3]] * count,
        lambda sizes: [Bucket([i], 12, "auto") for i in range(count)],
    )
    for number, (flat, *_) in enumerate(buckets):
        waited = [op.outputs[0] for op in flat.op.control_inputs]
        expected = [buckets[number - IN_FLIGHT][3]] if number >= IN_FLIGHT else []
        assert all(a is b for a, b in zip(waited, expected, strict=True))


def test_only_gradients_travel_in_the_wire_dtype(monkeypatch):
    """Positions 0 and 1 are numbers and statistics: 4 bytes an element."""
    seen = []

    def plan(sizes):
        seen.extend(sizes)
        return [Bucket([0, 1], 20, "ring"), Bucket([2], 14, "halving_doubling")]

    buckets = recorded(
        monkeypatch, [[2], [3], [7]], plan, wire_dtype=tf.bfloat16, gradients_from=2
    )
    assert seen == [8, 12, 14]
    assert [(algorithm, dtype) for _, algorithm, dtype, _ in buckets] == [
        ("ring", tf.float32),
        ("halving_doubling", tf.bfloat16),
    ]


def test_algorithms_do_not_take_each_others_messages():
    """Bucket 5 has the same numbers for its messages, whichever algorithm it has."""
    arguments = {"rank": 0, "bucket": 5}
    with tf.Graph().as_default() as graph:
        halving_doubling.all_reduce(
            tf.zeros([3 * 2**20]), ranks=[0, 1, 2, 3], **arguments
        )
        hierarchical.all_reduce(tf.zeros([9]), hosts=[[0, 1], [2, 3]], **arguments)
        instances = [
            int(tf.get_static_value(op.inputs[-2 if "Recv" in op.type else 3]))
            for op in graph.get_operations()
            if op.type.startswith("CollectiveBcast")
        ]
    each = halving_doubling.MESSAGES_PER_BUCKET
    assert len(set(instances)) > 4
    assert {instance // 2 // each for instance in instances} == {5}
