"""Adding the devices up: buckets, and the only calls of collectives.

Every function here is called in replica context, inside a `tf.function`, by every
device of the run, with the same shapes. With one device it returns what it was given.
"""

import tensorflow as tf


def buckets(sizes: list[int], bucket_bytes: int) -> list[list[int]]:
    """Groups tensors into buckets that each travel as one message.

    A bucket takes tensors in the given order until it holds at least `bucket_bytes`.

    Args:
      sizes: bytes of each tensor, in the order in which they become ready.
      bucket_bytes: 0 sends every tensor alone; more than the sum sends all at once.

    Returns:
      Lists of positions in `sizes`; together each position once, in order.

    >>> buckets([4, 4, 4, 4, 4], 8)
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


def all_reduce(tensors: list[tf.Tensor], bucket_bytes: int) -> list[tf.Tensor]:
    """Sums each tensor over all devices (§3: nobody averages).

    Args:
      tensors: of one dtype and of known shapes, in the order in which they become
        ready: a bucket leaves when its last tensor is there, while backward goes on
        with the next (§4).
      bucket_bytes: see `buckets`.

    Returns:
      The sums, in the order and the shapes of `tensors`.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return list(tensors)
    reduced: list[tf.Tensor] = []
    sizes = [t.shape.num_elements() * t.dtype.size for t in tensors]
    for bucket in buckets(sizes, bucket_bytes):
        parts = [tensors[position] for position in bucket]
        flat = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, flat)
        lengths = [part.shape.num_elements() for part in parts]
        pieces = tf.split(total, lengths)
        reduced += [tf.reshape(p, t.shape) for p, t in zip(pieces, parts, strict=True)]
    return reduced
