"""How fast the algorithms are on the network at hand: measured once, at the start.

Every process measures; the mean over all of them is what each goes by, so that all
choose alike (--allreduce=auto).
"""

import bisect
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_goyal.allreduce import AllReduce
from tf_goyal.placement import Placement
from tf_goyal.reduction_plan import Bucket

_SIZES = (2**10, 2**16, 2**20, 2**23)  # bytes
_REPEATS = 3
_LONG = 0.5  # seconds: larger buffers are not measured when one takes so long


class Measured:
    """Seconds of an all-reduce, by algorithm and size.

    Args:
      seconds: algorithm -> bytes -> seconds, the same sizes for each.
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
        """The quickest algorithm for a buffer of `size` bytes."""
        return min(self.seconds, key=lambda name: self.of(name, size))

    def cost(self, size: int) -> tuple[float, float]:
        """Seconds by the quickest: of the whole, and of what grows with the size."""
        name = self.best(size)
        whole = self.of(name, size)
        return whole, max(0.0, whole - self.of(name, 1))


def measure(
    algorithms: Sequence[str],
    *,
    strategy: tf.distribute.Strategy,
    placement: Placement,
    device_sum: Callable[[np.ndarray], np.ndarray],
    rank: int,
    hosts: Sequence[Sequence[int]],
) -> Measured:
    """Measures algorithms; called by every process of the run, with the same arguments.

    Args:
      algorithms: of `allreduce.AllReduce`.
      strategy: of the run.
      placement: of the run.
      device_sum: `step.device_sum`'s.
      rank: this process'.
      hosts: the ranks on each host.
    """
    seconds: dict[str, dict[int, float]] = {name: {} for name in algorithms}
    for size in _SIZES:
        for name in algorithms:
            mine = _time(_compiled(name, size, strategy, rank, hosts))
            rows = [[round(mine * 1e9)]] * len(placement.local)
            total = int(device_sum(np.array(rows, np.int64))[0])
            seconds[name][size] = total / placement.devices / 1e9
        if max(times[size] for times in seconds.values()) > _LONG:
            break
    return Measured(seconds)


def check(
    algorithms: Sequence[str],
    *,
    strategy: tf.distribute.Strategy,
    placement: Placement,
    rank: int,
    hosts: Sequence[Sequence[int]],
) -> None:
    """Adds one number up by each algorithm; called by every process of the run.

    Args:
      algorithms: of `allreduce.AllReduce`.
      strategy: of the run.
      placement: of the run.
      rank: this process'.
      hosts: the ranks on each host.

    Raises:
      RuntimeError: a sum is wrong.
    """
    for name in algorithms:
        sums = placement.local_results(_compiled(name, 4, strategy, rank, hosts)())
        for total in sums:
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
    """Seconds, the median of some, after one that does not count."""
    taken = []
    for _ in range(_REPEATS + 1):
        begun = time.perf_counter()
        for part in tf.nest.flatten(run(), expand_composites=True):
            part.numpy()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[1:])
