"""The processes of a training step that is measured: one for each rank.

A tool starts itself once for each rank, behind --prefix where there is one ({host}
there is the host of its address and {number} is its rank + 1), and each rank makes the
same network on synthetic images that stay in memory.
"""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import flags as absl_flags
from bench_allreduce import addresses

from tf_goyal import flags, start
from tf_goyal.cluster import Cluster
from tf_goyal.config import MODELS, Config

CLASSES, TRAIN_IMAGES = 1000, 1_281_167  # ImageNet's


def define(values: absl_flags.FlagValues) -> None:
    """The flags that all such tools have."""
    for name, default, text in (
        ("processes", 2, "Number of processes."),
        ("batch", 32, "Images of each process in a step."),
        ("image_size", 64, "Height and width of the images, pixels."),
        ("deadline", 900, "Seconds after which the processes are killed."),
    ):
        absl_flags.DEFINE_integer(
            name, default, text, lower_bound=1, flag_values=values
        )
    absl_flags.DEFINE_enum(
        "model", "resnet50", MODELS, "The network.", flag_values=values
    )
    for name, default, text in (
        ("network", "loopback", "Name of the network in the result."),
        ("prefix", "", "Command that rank i is started with, see above."),
        ("addresses", "", "host:port of each rank, or one text with {number}."),
        ("rank_of", "", "Internal: what a started rank is told, as JSON."),
    ):
        absl_flags.DEFINE_string(name, default, text, flag_values=values)


def run(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Starts this tool once for each rank; its lines but the results are printed.

    Args:
      settings: what the ranks are told beside the flags of `define`.

    Returns:
      What each rank gave to `report`, in rank order.

    Raises:
      RuntimeError: a rank ended without a result.
    """
    values = flags.FLAGS
    names = ("batch", "image_size", "model", "deadline")
    settings = {**settings, **{name: values[name].value for name in names}}
    workers = addresses(values.addresses, values.processes)
    children = []
    for rank, address in enumerate(workers):
        place = {"host": address.rpartition(":")[0], "number": rank + 1}
        prefix = [part.format(**place) for part in shlex.split(values.prefix)]
        told = json.dumps({**settings, "workers": workers, "rank": rank})
        children.append(
            subprocess.Popen(
                [*prefix, sys.executable, sys.argv[0], f"--rank_of={told}"],
                stdout=subprocess.PIPE,
                stderr=None if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
        )

    def kill_all():
        for child in children:
            child.kill()

    clock = threading.Timer(values.deadline, kill_all)
    clock.start()
    try:
        return [_result(rank, child) for rank, child in enumerate(children)]
    finally:
        clock.cancel()
        kill_all()
        for child in children:
            child.wait()


def _result(rank: int, child: subprocess.Popen) -> dict[str, Any]:
    for line in child.stdout:
        if line.startswith("{"):
            return json.loads(line)
        print(line, end="", flush=True)
    raise RuntimeError(
        f"rank {rank} ended without a result: rank 0's message stands above, or "
        "--deadline passed"
    )


def report(result: dict[str, Any]) -> None:
    """Gives a rank's result to the tool, and waits to be killed.

    A process that ends aborts its peers, so none may end before all are done.
    """
    print(json.dumps(result), flush=True)
    time.sleep(3600)


class Rank:
    """A rank: its part of the cluster, the network, and its images.

    Args:
      told: as `run` tells it.

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
        # Nobody outlives the tool, whatever happens to it.
        clock = threading.Timer(told["deadline"] + 10, os._exit, [1])
        clock.daemon = True
        clock.start()
        start.tensorflow()
        import tensorflow as tf

        from tf_goyal import build, cluster, step
        from tf_goyal.placement import Placement

        # It takes a step for each contestant for retracing.
        tf.get_logger().setLevel("ERROR")
        self.told, self.rank = told, told["rank"]
        self._cluster = Cluster(tuple(told["workers"]), self.rank)
        config = self.config()
        build.prepare_tensorflow(config)
        self.strategy = cluster.strategy(self._cluster)
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
