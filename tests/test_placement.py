"""Which virtual workers are where; real devices are in test_layouts.py."""

import numpy as np
import pytest
import tensorflow as tf

from tf_goyal.placement import Placement


class Strategy:
    """A stand-in for R devices, of which each process has some."""

    def __init__(self, devices, here):
        self.num_replicas_in_sync = devices
        self.extended = self
        self.worker_devices = ["CPU:0"] * here

    def experimental_distribute_values_from_function(self, function):
        first = self.rank * len(self.worker_devices)
        contexts = []
        for device in range(first, first + len(self.worker_devices)):
            context = type("Context", (), {"replica_id_in_sync_group": device})
            contexts.append(function(context))
        return contexts


@pytest.mark.parametrize(
    ("devices", "here", "rank", "workers"),
    [
        (1, 1, 0, range(8)),
        (3, 1, 0, range(2)),  # 2 + 3 + 3
        (3, 1, 1, range(2, 5)),
        (3, 1, 2, range(5, 8)),
        (4, 2, 1, range(4, 8)),
        (8, 1, 7, range(7, 8)),
    ],
)
def test_a_process_carries_neighbouring_workers(devices, here, rank, workers):
    assert Placement(Strategy(devices, here), rank, 8).workers == workers


def test_each_device_gets_its_workers():
    """3 devices for 8 workers, all in this process: 2, 3 and 3."""
    strategy = Strategy(3, 3)
    strategy.rank = 0
    placement = Placement(strategy, 0, 8)
    parts = placement.split_workers(tf.range(8))
    assert [part.numpy().tolist() for part in parts] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    signals = placement.split_signals(True, 5)
    np.testing.assert_array_equal(np.stack(signals), [[1, 5], [1, 0], [1, 0]])
    assert signals[0].dtype == tf.float32


def test_the_second_process_counts_from_its_own_first_worker():
    strategy = Strategy(4, 2)
    strategy.rank = 1
    placement = Placement(strategy, 1, 8)
    parts = placement.split_workers(tf.constant([4, 5, 6, 7]))
    assert [part.numpy().tolist() for part in parts] == [[4, 5], [6, 7]]
