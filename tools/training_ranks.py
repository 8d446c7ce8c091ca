"""The processes of a training step that is measured: one for each rank.

Each makes the same network on synthetic images that stay in memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import rank_processes
from absl import flags as absl_flags
from one_device_step import CLASSES, TRAIN_IMAGES

from tf_goyal import flags
from tf_goyal.cluster import Cluster
from tf_goyal.config import MODELS, Config


def define(values: absl_flags.FlagValues) -> None:
    """The flags that all such tools have."""
    rank_processes.define(values)
    for name, default, text in (
        ("processes", 2, "Number of processes."),
        ("batch", 32, "Images of each process in a step."),
        ("image_size", 64, "Height and width of the images, pixels."),
    ):
        absl_flags.DEFINE_integer(
            name, default, text, lower_bound=1, flag_values=values
        )
    absl_flags.DEFINE_enum(
        "model", "resnet50", MODELS, "The network.", flag_values=values
    )


def run(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """`rank_processes.run` with settings beside the flags of `define`."""
    values = flags.FLAGS
    names = ("batch", "image_size", "model")
    told = {**settings, **{name: values[name].value for name in names}}
    return rank_processes.run(values.processes, told)


class Rank:
    """A rank: its part of the cluster, the network, and its images.

    Args:
      told: as `rank_processes.begin` returns it.

    Attributes:
      told: the same.
      rank: its number.
      strategy: of the cluster.
      placement: of one virtual worker on each process.
      model: the network, under `strategy`.
      optimizer: the paper's, built on it.
      batch: what a step of `step.train_step` takes.
      device_sum: `step.device_sum`'s.
    """

    def __init__(self, told: dict[str, Any]):
        import tensorflow as tf

        from tf_goyal import build, cluster, step
        from tf_goyal.placement import Placement

        self.told, self.rank = told, told["rank"]
        self._cluster = Cluster(tuple(told["workers"]), self.rank)
        config = self.config()
        build.prepare_tensorflow(config)
        allreduce = told.get("changes", {}).get("allreduce", config.allreduce)
        self.strategy = cluster.strategy(self._cluster, allreduce=allreduce, devices=1)
        self.placement = Placement(self.strategy, self.rank, config.virtual_workers)
        with self.strategy.scope():
            self.model = build.model(config, CLASSES)
            self.optimizer = build.optimizer(config, TRAIN_IMAGES)
            self.optimizer.build(self.model.trainable_variables)
        self.device_sum = step.device_sum(self.strategy, self.placement)
        random = np.random.default_rng(self.rank)
        size = told["image_size"]
        images = random.integers(0, 256, (1, told["batch"], size, size, 3), np.uint8)
        labels = random.integers(0, CLASSES, (1, told["batch"]), np.int32)
        self.batch = (
            self.placement.split_workers(tf.constant(images)),
            self.placement.split_workers(tf.constant(labels)),
            self.placement.split_signals(False, 0),
        )

    def config(self, **changes: Any) -> Config:
        """The configuration of the step, with some fields changed."""
        told = self.told
        return Config(
            model=told["model"],
            image_size=told["image_size"],
            worker_batch=told["batch"],
            global_batch=told["batch"] * len(told["workers"]),
            **changes,
        )

    def choice(self, **changes: Any):
        """`ReductionChoice` by these fields of the configuration, chosen.

        Returns:
          The all-reduce, and what `ReductionChoice.choose` told.
        """
        from tf_goyal.reduction_choice import ReductionChoice

        choice = ReductionChoice(
            self.config(**changes),
            self._cluster,
            self.model,
            self.strategy,
            self.placement,
            self.device_sum,
        )
        chosen = choice.choose()
        return choice.all_reduce, chosen

    def step(
        self, all_reduce: Callable[[Any], Any], optimizer: Any = None
    ) -> Callable[[], float]:
        """The train step with this all-reduce (and optimizer). Returns the loss."""
        from tf_goyal import step

        config = self.config()
        train_step = step.train_step(
            self.model,
            optimizer or self.optimizer,
            self.strategy,
            global_batch=config.global_batch,
            groups=config.virtual_workers,
            together=False,
            exact=False,
            all_reduce=all_reduce,
        )
        return lambda: float(train_step(*self.batch).loss)

    def wait_for_all(self) -> None:
        """Returns when every rank has come here."""
        self.device_sum(np.zeros([1, 1], np.int64))
