"""All-reduce in three phases (§4): inside each host, between hosts, inside each host.

Only the first rank of a host speaks to other hosts, by halving and doubling.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_goyal import halving_doubling, pair_messages


def children(position: int, size: int) -> list[int]:
    """Who hands its sum to this position of a host: a binomial tree with root 0.

    ceil(log2(size)) messages one after another, as many as it takes; the one that
    comes first stands first.

    >>> [children(i, 6) for i in range(6)]
    [[1, 2, 4], [], [3], [], [5], []]
    """
    found = []
    distance = 1
    while distance < size and not position & distance:
        if position + distance < size:
            found.append(position + distance)
        distance *= 2
    return found


def all_reduce(
    tensor: tf.Tensor,
    *,
    rank: int,
    hosts: Sequence[Sequence[int]],
    bucket: int,
    wire_dtype: tf.DType | None = None,
) -> tf.Tensor:
    """Sums a tensor over processes; the result has the same bits in each.

    Call it inside a `tf.function`, once per process, in each rank of `hosts`.

    Args:
      tensor: as of `halving_doubling.all_reduce`.
      rank: this process.
      hosts: the ranks on each host, the same in each process; see
        `cluster.ranks_by_host`.
      bucket: as of `halving_doubling.all_reduce`.
      wire_dtype: dtype of the messages between hosts. None: that of `tensor`.

    Returns:
      The sum, of the shape and dtype of `tensor`.
    """
    if tensor.shape[0] == 0:
        return tensor
    host = next(host for host in hosts if rank in host)
    position = host.index(rank)
    below = [host[child] for child in children(position, len(host))]
    # The parent in a binomial tree: the position without its lowest bit.
    above = host[position & (position - 1)]
    # Between hosts the result has been rounded to wire_dtype: nothing is lost here.
    result_dtype = wire_dtype if wire_dtype and len(hosts) > 1 else tensor.dtype

    first_message = halving_doubling.MESSAGES_PER_BUCKET * bucket

    def message(phase: str, sender: int, receiver: int) -> dict[str, Any]:
        other = f"to_rank_{receiver}" if sender == rank else f"from_rank_{sender}"
        return {
            "sender": sender,
            "receiver": receiver,
            "message": first_message + (phase == "summing"),
            "name": f"bucket_{bucket}_{phase}_{other}",
        }

    with tf.device("CPU:0"):
        # Inside the host, upwards.
        total = tensor
        for child in below:
            total += pair_messages.receive(
                tensor.shape.as_list(), tensor.dtype, **message("summing", child, rank)
            )

        # Between the hosts, and from there or from above the result.
        ties = []
        if position == 0:
            total = halving_doubling.all_reduce(
                total,
                rank=rank,
                ranks=[other[0] for other in hosts],
                bucket=bucket,
                wire_dtype=wire_dtype,
            )
            result = tf.cast(total, result_dtype)
        else:
            ties.append(pair_messages.send(total, **message("summing", rank, above)))
            result = pair_messages.receive(
                tensor.shape.as_list(), result_dtype, **message("result", above, rank)
            )

        # Inside the host, downwards; the child with the most below it first.
        for child in reversed(below):
            ties.append(pair_messages.send(result, **message("result", rank, child)))
        with tf.control_dependencies(ties):
            return tf.identity(tf.cast(result, tensor.dtype))
