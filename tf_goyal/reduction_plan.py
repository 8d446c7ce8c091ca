"""Which tensors travel together, and by which algorithm. No TensorFlow."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tf_goyal import cost_model

_DEFAULT_BYTES = 8 * 2**20


class Bucket(NamedTuple):
    """Tensors that travel as one message.

    Attributes:
      positions: of the tensors, in the order in which they become ready.
      bytes: of all of them.
      algorithm: see `allreduce.AllReduce`.
    """

    positions: list[int]
    bytes: int
    algorithm: str


def plan(
    sizes: Sequence[int],
    ready: Sequence[float],
    *,
    bucket_bytes: int | None,
    algorithm: Callable[[int], str],
    cost: Callable[[int], cost_model.Duration] | None,
    in_flight: int,
    gradients_from: int = 0,
) -> list[Bucket]:
    """The buckets of a step.

    Args:
      sizes: bytes of each tensor, in the order in which they become ready.
      ready: when each is, as a part of backward, 0 to 1, ascending.
      bucket_bytes: see `fill`; None: by `cost`, or else 8 MB.
      algorithm: bytes of a bucket -> its algorithm.
      cost: bytes -> seconds of an all-reduce; None where nothing was measured.
      in_flight: buckets that may be under way at once.
      gradients_from: position of the first gradient. What stands before it (numbers and
        statistics) travels in buckets of its own, since it may be of another dtype.
    """
    buckets = []
    for begin, end in ((0, gradients_from), (gradients_from, len(sizes))):
        part = sizes[begin:end]
        for group in _groups(part, ready[begin:end], bucket_bytes, cost, in_flight):
            size = sum(part[position] for position in group)
            positions = [begin + position for position in group]
            buckets.append(Bucket(positions, size, algorithm(size)))
    return buckets


def _groups(
    sizes: Sequence[int],
    ready: Sequence[float],
    bucket_bytes: int | None,
    cost: Callable[[int], cost_model.Duration] | None,
    in_flight: int,
) -> list[list[int]]:
    if bucket_bytes is not None or not cost:
        return fill(sizes, _DEFAULT_BYTES if bucket_bytes is None else bucket_bytes)
    # Backward is taken to last as long as the reduction: if it is much longer only the
    # last bucket shows, if it is much shorter the boundaries do not matter.
    backward = cost(sum(sizes)).alone
    return cost_model.buckets(
        sizes, [part * backward for part in ready], cost, in_flight
    )


def fill(sizes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """Groups tensors into buckets that each travel as one message.

    A bucket takes tensors in the given order until it holds at least `bucket_bytes`.

    Args:
      sizes: bytes of each tensor, in the order in which they become ready.
      bucket_bytes: 0 sends every tensor alone; more than the sum sends all at once.

    Returns:
      Lists of positions in `sizes`; together each position once, in order.

    >>> fill([4, 4, 4, 4, 4], 8)
    [[0, 1], [2, 3], [4]]
    """
    groups: list[list[int]] = []
    filled = bucket_bytes
    for position, size in enumerate(sizes):
        if filled >= bucket_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(position)
        filled += size
    return groups
