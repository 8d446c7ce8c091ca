"""How a run's gradients are added up: the buckets and their algorithms, chosen once.

With --allreduce=auto and several processes the algorithms are measured on the network
at hand; else the flags say it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_goyal import (
    allreduce,
    gradient_order,
    network_probe,
    reduction_plan,
)
from tf_goyal.arrivals import Arrivals
from tf_goyal.cluster import Cluster, ranks_by_host
from tf_goyal.config import Config
from tf_goyal.network_probe import Measured, Watched, unwatched
from tf_goyal.placement import Placement
from tf_goyal.reduction_plan import Bucket


def message_sizes(config: Config, model: keras.Model) -> list[int]:
    """Bytes of everything that a step sums over the devices, in the order it leaves.

    As `step.train_step` sends it: loss, error, faults, the two signals, the running
    statistics, and the gradients from the last layer's to the first's.
    """
    variables = [*model.non_trainable_variables, *reversed(model.trainable_variables)]
    numbers = [1, 1, 1, 2, *(math.prod(variable.shape) for variable in variables)]
    exact, gradients_from = config.reduction == "exact", _gradients_from(model)
    return [
        count * (8 if exact else 4 if i < gradients_from else _wire_dtype(config).size)
        for i, count in enumerate(numbers)
    ]


def _gradients_from(model: keras.Model) -> int:
    """Position of the first gradient among what a step adds up."""
    return 4 + len(model.non_trainable_variables)


def _wire_dtype(config: Config) -> tf.DType:
    return tf.as_dtype(config.gradient_dtype)


def plan(
    config: Config, model: keras.Model, measured: Measured | None = None
) -> list[Bucket]:
    """The buckets of a step.

    Args:
      config: of the run.
      model: its network.
      measured: what --allreduce=auto goes by, if there is something.
    """
    sizes = message_sizes(config, model)
    gradients = gradient_order.gradients(model) if measured else []
    ready = [0.0] * (len(sizes) - len(gradients)) + [g.ready for g in gradients]
    return reduction_plan.plan(
        sizes,
        ready,
        bucket_bytes=None if config.bucket_mb < 0 else int(config.bucket_mb * 2**20),
        algorithm=measured.best if measured else lambda size: config.allreduce,
        cost=measured.cost if measured else None,
        in_flight=allreduce.IN_FLIGHT,
        gradients_from=_gradients_from(model),
    )


class ReductionChoice:
    """Makes the choice, and the all-reduce that goes by it.

    Args:
      config: of the run.
      cluster: that this process belongs to.
      model: its network.
      strategy: of the run.
      placement: of the run.
      device_sum: `step.device_sum`'s.

    Attributes:
      all_reduce: for `step.train_step`; works once `choose` was called.
      arrivals: of its messages.
    """

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        placement: Placement,
        device_sum: Callable[[np.ndarray], np.ndarray],
    ):
        self._config, self._cluster, self._model = config, cluster, model
        self._strategy, self._placement = strategy, placement
        self._device_sum = device_sum
        self._hosts = ranks_by_host(cluster.workers) or [[0]]
        self._buckets: Sequence[Bucket] = ()
        self.arrivals = Arrivals()
        wire_dtype = _wire_dtype(config)
        self.all_reduce = allreduce.AllReduce(
            lambda sizes: self._buckets,
            rank=cluster.rank,
            hosts=self._hosts,
            arrivals=self.arrivals if cluster.processes > 1 else None,
            wire_dtype=None if wire_dtype == tf.float32 else wire_dtype,
            gradients_from=_gradients_from(model),
        )

    def choose(self, watched: Watched = unwatched) -> dict[str, Any]:
        """Measures if it has to, chooses and tries; every process of the run calls it.

        Args:
          watched: see `network_probe.Watched`.

        Returns:
          JSON values: "measured" (algorithm -> bytes -> seconds, or None) and "buckets"
          (bytes and algorithm of each).

        Raises:
          RuntimeError: an algorithm that was chosen adds up wrongly.
        """
        measured = None
        if self._config.allreduce == "auto" and self._cluster.processes > 1:
            measured = self._measure(watched)
        self._buckets = plan(self._config, self._model, measured)
        if self._placement.devices > 1:
            network_probe.check(
                sorted({bucket.algorithm for bucket in self._buckets}),
                strategy=self._strategy,
                placement=self._placement,
                rank=self._cluster.rank,
                hosts=self._hosts,
                watched=watched,
            )
        return {
            "measured": measured and measured.seconds,
            "buckets": [
                {"bytes": bucket.bytes, "algorithm": bucket.algorithm}
                for bucket in self._buckets
            ],
        }

    def _measure(self, watched: Watched) -> Measured:
        gpus = tf.config.list_physical_devices("GPU")
        # TensorFlow's NCCL adds no bfloat16.
        nccl = gpus and _wire_dtype(self._config) != tf.bfloat16
        names = ["nccl" if nccl else "ring", "halving_doubling", "doubling"]
        if 1 < len(self._hosts) < self._cluster.processes:
            names.append("hierarchical")
        return network_probe.measure(
            names,
            strategy=self._strategy,
            placement=self._placement,
            device_sum=watched("a sum over all processes", self._device_sum),
            rank=self._cluster.rank,
            hosts=self._hosts,
            watched=watched,
        )
