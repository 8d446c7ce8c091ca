"""Which virtual workers this process carries, and how they get onto its devices."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_goyal.cluster import assign


class Placement:
    """The layout of k virtual workers over the devices of a run.

    Args:
      strategy: the `tf.distribute.Strategy` of the run.
      rank: this process' rank.
      virtual_workers: k.

    Attributes:
      devices: number of devices in the run, R.
      local: the numbers of this process' devices, of 0 .. R - 1.
      workers: the virtual workers of this process.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, rank: int, virtual_workers: int
    ):
        self._strategy = strategy
        self._assigned = assign(virtual_workers, strategy.num_replicas_in_sync)
        count = len(strategy.extended.worker_devices)
        self.devices = strategy.num_replicas_in_sync
        self.local = range(rank * count, (rank + 1) * count)
        self.workers = range(
            self._assigned[self.local[0]].start, self._assigned[self.local[-1]].stop
        )

    def split_workers(self, batch: tf.Tensor) -> Any:
        """[m, ...] of this process' m workers -> [m_d, ...] on each of its devices."""
        first = self.workers.start
        return self.per_device(
            [
                batch[self._assigned[d].start - first : self._assigned[d].stop - first]
                for d in self.local
            ]
        )

    def split_signals(self, stop: bool, replaced: int) -> Any:
        """What a process tells the others in a step -> float32 [2] on its devices.

        Args:
          stop: whether it was asked to stop.
          replaced: broken records in its images.
        """
        first = tf.constant([float(stop), float(replaced)])
        rest = tf.constant([float(stop), 0.0])
        return self.per_device([first] + [rest] * (len(self.local) - 1))

    def per_device(self, values: Sequence[Any]) -> Any:
        """One value for each of this process' devices, as `strategy.run` takes them."""
        if self.devices == 1:
            return values[0]
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group - self.local[0]]
        )

    def local_results(self, value: Any) -> tuple[tf.Tensor, ...]:
        """What `strategy.run` returned, one tensor for each device here."""
        return self._strategy.experimental_local_results(value)
