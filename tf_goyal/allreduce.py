"""Adding the devices up: buckets, algorithms, and nearly the only calls of collectives.

`AllReduce` is called in replica context, inside a `tf.function`, by every device of the
run, with the same shapes. With one device it returns what it was given.
"""

import contextlib
import itertools
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_goyal import halving_doubling, hierarchical, pair_messages
from tf_goyal.arrivals import Arrivals
from tf_goyal.reduction_plan import Bucket
from tf_goyal.watchdog import READY

# Between processes: ours. All other algorithms are TensorFlow's.
# "doubling" is halving-doubling without the halving: fewer rounds, more bytes.
PAIRWISE = ("halving_doubling", "hierarchical", "doubling")

# Each bucket of each graph has a number of its own, by which its messages are known:
# every process makes the same graphs in the same order.
_numbers = itertools.count()

IN_FLIGHT = 8  # buckets under way at once: a bound on what they hold in memory


def device_sum(tensor: tf.Tensor) -> tf.Tensor:
    """Sums one tensor over all devices, by TensorFlow's own algorithm."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensor
    # Of a tensor that was made here TensorFlow knows where it is.
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(tensor))


class AllReduce:
    """Sums tensors over all devices of a run (§3: nobody averages).

    Args:
      plan: bytes of each tensor -> buckets, see `reduction_plan`. Their algorithms are
        TensorFlow's "ring", "nccl" and "auto", and ours.
      rank: this process'.
      hosts: the ranks on each host, see `cluster.ranks_by_host`.
      arrivals: counts what comes, and this process' own part, for a watchdog.
      wire_dtype: in which gradients of floating point travel between processes; None:
        as they are. Ours then add in float32, TensorFlow's in this dtype.
      gradients_from: position of the first gradient among the tensors. What stands
        before it travels as it is: running statistics would lose what a step adds.
    """

    def __init__(
        self,
        plan: Callable[[Sequence[int]], Sequence[Bucket]],
        *,
        rank: int = 0,
        hosts: Sequence[Sequence[int]] = ((0,),),
        arrivals: Arrivals | None = None,
        wire_dtype: tf.DType | None = None,
        gradients_from: int = 0,
    ):
        self._arrivals = arrivals
        self._plan, self._rank, self._hosts = plan, rank, hosts
        self._ranks = sorted(rank for host in hosts for rank in host)
        self._wire_dtype, self._gradients_from = wire_dtype, gradients_from

    def __call__(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums each tensor.

        Args:
          tensors: of one dtype and of known shapes, in the order in which they become
            ready: a bucket leaves when its last tensor is there, while backward goes
            on with the next (§4).

        Returns:
          The sums, in the order and the shapes of `tensors`.
        """
        if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
            return list(tensors)
        if self._arrivals:
            with tf.control_dependencies(tensors):
                self._arrivals.count(tf.constant(0), READY)
        reduced: list[tf.Tensor] = []
        totals: list[tf.Tensor] = []
        dtypes = [self._travels_as(i, t.dtype) for i, t in enumerate(tensors)]
        sizes = [
            tensor.shape.num_elements() * dtype.size
            for tensor, dtype in zip(tensors, dtypes, strict=True)
        ]
        for number, bucket in enumerate(self._plan(sizes)):
            parts = [tensors[position] for position in bucket.positions]
            (dtype,) = {dtypes[position] for position in bucket.positions}
            flat = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
            if number >= IN_FLIGHT:
                with tf.control_dependencies([totals[number - IN_FLIGHT]]):
                    flat = tf.identity(flat)
            totals.append(self._reduce(flat, bucket.algorithm, dtype))
            lengths = [part.shape.num_elements() for part in parts]
            pieces = tf.split(totals[-1], lengths)
            reduced += [
                tf.reshape(piece, part.shape)
                for piece, part in zip(pieces, parts, strict=True)
            ]
        return reduced

    def _travels_as(self, position: int, dtype: tf.DType) -> tf.DType:
        halves = position >= self._gradients_from and dtype.is_floating
        return (halves and self._wire_dtype) or dtype

    def _reduce(
        self, flat: tf.Tensor, algorithm: str, wire_dtype: tf.DType
    ) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        if len(self._ranks) == 1:
            wire_dtype = flat.dtype  # nothing travels between processes
        if algorithm not in PAIRWISE or len(self._ranks) == 1:
            options = None
            if algorithm in ("ring", "nccl"):
                options = tf.distribute.experimental.CommunicationOptions(
                    implementation=tf.distribute.experimental.CommunicationImplementation(
                        algorithm.upper()
                    )
                )
            total = context.all_reduce(
                tf.distribute.ReduceOp.SUM, tf.cast(flat, wire_dtype), options
            )
            return tf.cast(total, flat.dtype)

        def between_processes(tensor: tf.Tensor) -> tf.Tensor:
            with contextlib.ExitStack() as stack:
                if self._arrivals:
                    stack.enter_context(pair_messages.counted(self._arrivals))
                return by_messages(tensor)

        def by_messages(tensor: tf.Tensor) -> tf.Tensor:
            number = next(_numbers)
            if algorithm == "hierarchical":
                return hierarchical.all_reduce(
                    tensor,
                    rank=self._rank,
                    hosts=self._hosts,
                    bucket=number,
                    wire_dtype=wire_dtype,
                )
            return halving_doubling.all_reduce(
                tensor,
                rank=self._rank,
                ranks=self._ranks,
                bucket=number,
                halvings=0 if algorithm == "doubling" else None,
                wire_dtype=wire_dtype,
            )

        if context.num_replicas_in_sync == len(self._ranks):
            return between_processes(flat)

        # §4, three phases: this process' devices are added up on the first of them,
        # the processes among each other, and each device gets the sum.
        def through_the_first_device(strategy, flats):
            local = strategy.experimental_local_results(flats)
            with tf.device(local[0].device):
                total = tf.add_n(local)
            return between_processes(total)

        return context.merge_call(through_the_first_device, args=(flat,))
