"""When everything in one training step happens, told by the step itself.

A recorded step is `step.train_step` with an all-reduce and an optimizer that also note
the time: behind each gradient, each bucket and each updated variable. Each note goes
into a variable of its own, so that none waits for another.
"""

import time
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
import training_ranks

from tf_goyal import reduction_choice
from tf_goyal.allreduce import AllReduce
from tf_goyal.network_probe import Measured


class Clock:
    """Notes when tensors are there.

    Args:
      events: how many it can note. They need their variables before the step is traced.
    """

    def __init__(self, events: int):
        self._free = [tf.Variable(0.0, dtype=tf.float64) for _ in range(events)]
        self._times: dict[tuple, tf.Variable] = {}

    def note(self, event: tuple, tensors: Sequence[tf.Tensor | tf.Operation]) -> None:
        """Notes as `event` when all of `tensors` are there, in each step."""
        noted = self._times[event] = self._free.pop()
        # Not tf.timestamp: a tf.function runs what is stateful in the order in which it
        # was written, and the step's own timestamp waits for the last gradient.
        with tf.control_dependencies(tensors):
            now = tf.numpy_function(
                lambda _: time.time(), [noted.read_value()], tf.float64, stateful=False
            )
            noted.assign(tf.ensure_shape(now, []))

    def times(self) -> dict[tuple, float]:
        """Event -> seconds since 1970, of the last step."""
        return {event: float(noted) for event, noted in self._times.items()}


class RecordedAllReduce(AllReduce):
    """Another all-reduce that notes when its tensors are there, and its buckets' way.

    Its events: ("tensor", position), ("sent", bucket, message), ("reduced", bucket).
    """

    def __init__(self, clock: Clock, all_reduce: AllReduce):
        vars(self).update(vars(all_reduce))
        self._clock, self._bucket = clock, 0

    def __call__(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums each tensor."""
        for position, tensor in enumerate(tensors):
            self._clock.note(("tensor", position), [tensor])
        return super().__call__(tensors)

    def _reduce(self, flat: tf.Tensor, *args: Any) -> tf.Tensor:
        bucket, self._bucket = self._bucket, self._bucket + 1
        before = len(flat.graph.get_operations())
        total = super()._reduce(flat, *args)
        made = flat.graph.get_operations()[before:]
        # A message is sent when the other has taken it. TensorFlow's algorithms do not
        # tell; theirs counts as sent when the bucket is handed to them.
        sends = [op for op in made if op.type == "CollectiveBcastSendV2"] or [flat]
        for number, sent in enumerate(sends):
            self._clock.note(("sent", bucket, number), [sent])
        self._clock.note(("reduced", bucket), [total])
        return total


class RecordedOptimizer:
    """An optimizer that notes ("applied", path) for each variable."""

    def __init__(self, clock: Clock, optimizer: keras.optimizers.Optimizer):
        self._clock, self._optimizer = clock, optimizer

    @property
    def learning_rate(self) -> Any:
        """The optimizer's."""
        return self._optimizer.learning_rate

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Updates the variables."""
        self._optimizer.apply(gradients, variables)
        for variable in variables:
            now = tf.convert_to_tensor(variable.value)
            self._clock.note(("applied", variable.path), [now])


def record(rank: training_ranks.Rank, steps: int, **changes: Any) -> dict[str, Any]:
    """Records steps; called by every rank.

    Args:
      rank: this one.
      steps: how many, after three that do not count.
      changes: fields of the configuration.

    Returns:
      JSON values: "steps", of each what `of_step` returns.
    """
    names = ["loss", "error", "faults", "signals"]
    names += [v.path for v in rank.model.non_trainable_variables]
    names += [v.path for v in reversed(rank.model.trainable_variables)]
    config = rank.config(**changes)
    all_reduce, chosen = rank.choice(**changes)
    measured = Measured(chosen["measured"]) if chosen["measured"] else None
    buckets = reduction_choice.plan(config, rank.model, measured)
    # Up to four segments, in each at most a message to every other one and back.
    events_of_a_bucket = 1 + 4 * 2 * len(rank.told["workers"])
    clock = Clock(2 * len(names) + events_of_a_bucket * len(buckets))
    run = rank.step(
        RecordedAllReduce(clock, all_reduce), RecordedOptimizer(clock, rank.optimizer)
    )
    recorded = []
    for number in range(3 + steps):
        rank.wait_for_all()
        begin = time.time()
        run()
        end = time.time()
        if number >= 3:
            times = {event: at - begin for event, at in clock.times().items()}
            recorded.append(of_step(end - begin, times, names, buckets))
    return {"steps": recorded}


def of_step(
    end: float,
    times: dict[tuple, float],
    names: Sequence[str],
    buckets: Sequence[Any],
) -> dict[str, Any]:
    """One step of one rank. All times are seconds since the step was called.

    Args:
      end: when it returned.
      times: event -> when.
      names: of the tensors, by position.
      buckets: `reduction_plan.Bucket`s.

    Returns:
      JSON values: "end"; "buckets", each with its bytes, its algorithm, when it was
      sent (its first message) and reduced, and its "tensors", each with its name, when
      it was ready and when applied (None for what is no gradient).
    """
    # A note may be late, for it waits for a thread, but never early: nothing was there
    # later than what was made of it.
    told = []
    for number, bucket in enumerate(buckets):
        applied = [times.get(("applied", names[p])) for p in bucket.positions]
        updates = [at for at in applied if at is not None]
        reduced = min([times["reduced", number], *updates])
        sends = [at for event, at in times.items() if event[:2] == ("sent", number)]
        sent = min([reduced, *sends])
        tensors = [
            {
                "name": names[position],
                "ready": min(times["tensor", position], sent),
                "applied": update,
            }
            for position, update in zip(bucket.positions, applied, strict=True)
        ]
        told.append(
            {
                "bytes": bucket.bytes,
                "algorithm": bucket.algorithm,
                "sent": sent,
                "reduced": reduced,
                "tensors": tensors,
            }
        )
    return {"end": end, "buckets": told}
