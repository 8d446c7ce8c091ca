"""How fast the algorithms are on the network at hand: measured once, at the start.

Every process measures; the mean over all of them is what each goes by, so that all
choose alike (--allreduce=auto).
"""

import bisect
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_goyal.allreduce import AllReduce
from tf_goyal.cost_model import Duration
from tf_goyal.placement import Placement
from tf_goyal.reduction_plan import Bucket

_SIZES = (2**10, 2**16, 2**18, 2**20, 2**22, 2**24)  # bytes
_ROUNDS = (5, 9)  # fewest and most
_ENOUGH = 0.5  # seconds for an algorithm and a size, unless the fewest take longer
_AS_GOOD_AS_EQUAL = 1.05  # as often as not a second measurement turns them round
_LONG = 0.5  # seconds: what takes longer is not measured with larger buffers

# What it does, for people, and a function that waits for all processes -> one that is
# looked at meanwhile, as `Watchdog.watched` makes it.
Watched = Callable[[str, Callable[..., Any]], Callable[..., Any]]


def unwatched(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The `Watched` of somebody who has no watchdog."""
    return function


class Measured:
    """Seconds of an all-reduce, by algorithm and size.

    Args:
      seconds: algorithm -> bytes -> seconds, all from the same smallest size on.
    """

    def __init__(self, seconds: Mapping[str, Mapping[int, float]]):
        self.seconds = {name: dict(times) for name, times in seconds.items()}

    def of(self, algorithm: str, size: int) -> float:
        """Seconds for `size` bytes: between two measurements on their straight line.

        Below the smallest it takes as long as that, and beyond the largest the time
        grows with the size.
        """
        times = self.seconds[algorithm]
        sizes = sorted(times)
        if size <= sizes[0]:
            return times[sizes[0]]
        if size >= sizes[-1]:
            return times[sizes[-1]] * size / sizes[-1]
        above = bisect.bisect_right(sizes, size)
        low, high = sizes[above - 1], sizes[above]
        part = (size - low) / (high - low)
        return times[low] + part * (times[high] - times[low])

    def best(self, size: int) -> str:
        """The quickest algorithm for a buffer of `size` bytes.

        Beyond what was measured, where doubling with and without halving were as good
        as equal, the one that adds and copies less.
        """
        quickest = min(self.seconds, key=lambda name: self.of(name, size))
        times = self.seconds.get("halving_doubling", {})
        if quickest == "doubling" and times and size > max(times):
            halved = self.of("halving_doubling", size)
            if halved <= _AS_GOOD_AS_EQUAL * self.of(quickest, size):
                return "halving_doubling"
        return quickest

    def cost(self, size: int) -> Duration:
        """Of the quickest; what grows with the size is taken for what all share."""
        name = self.best(size)
        whole, idle = self.of(name, size), self.of(name, 1)
        return Duration(whole, max(0.0, whole - idle), idle)


def measure(
    algorithms: Sequence[str],
    *,
    strategy: tf.distribute.Strategy,
    placement: Placement,
    device_sum: Callable[[np.ndarray], np.ndarray],
    rank: int,
    hosts: Sequence[Sequence[int]],
    watched: Watched,
) -> Measured:
    """Measures algorithms; called by every process of the run, with the same arguments.

    Args:
      algorithms: of `allreduce.AllReduce`.
      strategy: of the run.
      placement: of the run.
      device_sum: `step.device_sum`'s.
      rank: this process'.
      hosts: the ranks on each host.
      watched: see `Watched`.
    """

    def mean(mine: Sequence[float]) -> list[float]:
        """Of what all processes measured: the same numbers everywhere."""
        rows = [[round(each * 1e9) for each in mine]] * len(placement.local)
        total = device_sum(np.array(rows, np.int64))
        return (total / placement.devices / 1e9).tolist()

    seconds: dict[str, dict[int, float]] = {name: {} for name in algorithms}
    going = list(algorithms)
    for size in _SIZES:
        runs = [
            watched(
                f"measuring --allreduce={name}",
                _compiled(name, size, strategy, rank, hosts),
            )
            for name in going
        ]
        for run in runs:
            _time(run)
        first = max(mean([_time(run) for run in runs]))
        rounds = min(max(_ROUNDS[0], round(_ENOUGH / first)), _ROUNDS[1])
        # In turns, so that whatever else the machine does hits all of them.
        taken = [[_time(run) for run in runs] for _ in range(rounds)]
        medians = mean([statistics.median(turns) for turns in zip(*taken, strict=True)])
        for name, median in zip(going, medians, strict=True):
            seconds[name][size] = median
        # One that waits for many messages must not keep the others from large buffers.
        going = [name for name in going if seconds[name][size] <= _LONG]
        if not going:
            break
    return Measured(seconds)


def check(
    algorithms: Sequence[str],
    *,
    strategy: tf.distribute.Strategy,
    placement: Placement,
    rank: int,
    hosts: Sequence[Sequence[int]],
    watched: Watched,
) -> None:
    """Adds one number up by each algorithm; called by every process of the run.

    Args:
      algorithms: of `allreduce.AllReduce`.
      strategy: of the run.
      placement: of the run.
      rank: this process'.
      hosts: the ranks on each host.
      watched: see `Watched`.

    Raises:
      RuntimeError: a sum is wrong.
    """
    for name in algorithms:
        run = _compiled(name, 4, strategy, rank, hosts)
        sums = watched(f"trying --allreduce={name}", run)()
        for total in placement.local_results(sums):
            if total.numpy().tolist() != [placement.devices]:
                raise RuntimeError(
                    f"--allreduce={name} adds 1 from each of {placement.devices} "
                    f"devices up to {total.numpy()[0]:g}: use another algorithm"
                )


def _compiled(
    name: str,
    size: int,
    strategy: tf.distribute.Strategy,
    rank: int,
    hosts: Sequence[Sequence[int]],
) -> Callable[[], object]:
    """An all-reduce of so many bytes."""
    bucket = Bucket([0], size, name)
    reduce = AllReduce(lambda sizes: [bucket], rank=rank, hosts=hosts)

    @tf.function(jit_compile=False, autograph=False)
    def run(value):
        return strategy.run(lambda: reduce([tf.fill([size // 4], value)])[0][:1])

    # Called as it is, it would look like one function that is made anew each time.
    concrete = run.get_concrete_function(tf.TensorSpec([], tf.float32))
    return lambda: concrete(tf.constant(1.0))


def _time(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    begun = time.perf_counter()
    for part in tf.nest.flatten(run(), expand_composites=True):
        part.numpy()
    return time.perf_counter() - begun
