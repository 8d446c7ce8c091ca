"""THE train step and the evaluation step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_goyal import allreduce, fixed_point, not_finite, workers
from tf_goyal.placement import Placement


class StepResult(NamedTuple):
    """What one train step tells, the same on every device.

    Attributes:
      loss: float32, mean cross-entropy over the kn images, before the update. NaN also
        when a value went beyond what the exact sum can hold.
      top1_error: float32, per cent of the kn images.
      learning_rate: float32, the rate of this step's update.
      stop: float32, number of devices whose process was asked to stop.
      replaced: float32, broken records that others stood for among the kn images.
      evidence: for each device of this process float32 [1 + G], see
        `not_finite.evidence`.
      exposed_communication: float64, seconds from this process' last gradient to the
        end of its last all-reduce: what backward could not hide.
    """

    loss: tf.Tensor
    top1_error: tf.Tensor
    learning_rate: tf.Tensor
    stop: tf.Tensor
    replaced: tf.Tensor
    evidence: tuple[tf.Tensor, ...]
    exposed_communication: tf.Tensor


def train_step(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    strategy: tf.distribute.Strategy,
    *,
    global_batch: int,
    groups: int,
    together: bool,
    exact: bool,
    all_reduce: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
) -> Callable[[Any, Any, Any], StepResult]:
    """Returns the compiled step: w <- w - eta * momentum(sum of gradients + lambda w).

    Args:
      model: uint8 images to logits, built under `strategy`.
      optimizer: built on the model's trainable variables, under `strategy`.
      strategy: the devices of the run.
      global_batch: kn, images per step.
      groups: see `workers.virtual_workers`.
      together: see `workers.virtual_workers`.
      exact: add up in fixed point.
      all_reduce: sums tensors over the devices, see `allreduce.AllReduce`.

    Returns:
      images [m, n, H, W, 3] uint8, labels [m, n] int32 and signals [2] float32 (see
      `Placement.split_signals`) of each device (per-replica values where there are
      several) -> `StepResult`.
    """
    run_workers = workers.virtual_workers(
        model,
        global_batch=global_batch,
        groups=groups,
        together=together,
        exact=exact,
    )

    def on_device(images, labels, signals):
        # Forward and backward of this device's virtual workers, added up.
        sums = run_workers(images, labels)
        with tf.control_dependencies(sums.gradients):
            ready = tf.timestamp()

        # Add the devices up. Backward makes the last layer's gradient first.
        signals = tf.cast(signals, sums.loss.dtype)
        reduced = all_reduce(
            [
                *[sums.loss, sums.error, tf.reduce_sum(sums.faults), signals],
                *sums.statistics,
                *reversed(sums.gradients),
            ]
        )
        with tf.control_dependencies(reduced):
            exposed = tf.timestamp() - ready
        loss, error, faults, signals = reduced[:4]
        end = 4 + len(sums.statistics)
        statistics, gradients = reduced[4:end], reduced[end:][::-1]

        if exact:
            signals = tf.cast(signals, tf.float32)
            *decoded, loss, error = map(
                fixed_point.decode, [*statistics, *gradients, loss, error]
            )
            statistics, gradients = decoded[: end - 4], decoded[end - 4 :]
            loss = tf.where(faults == 0, loss, float("nan"))
        loss = not_finite.checked(loss, gradients)
        evidence = not_finite.evidence(sums, loss, exact)
        return gradients, statistics, evidence, (loss, error, signals, exposed)

    @tf.function(jit_compile=False, autograph=False)
    def step(images, labels, signals):
        gradients, statistics, evidence, numbers = strategy.run(
            on_device, args=(images, labels, signals)
        )
        learning_rate = tf.convert_to_tensor(optimizer.learning_rate)

        # §3: weight decay and momentum once, on the summed gradient. Outside of
        # `run`, where Keras would sum the gradients a second time.
        optimizer.apply(gradients, model.trainable_variables)

        # BatchNorm's running statistics: assigned once, the same everywhere.
        for variable, value in zip(
            model.non_trainable_variables, statistics, strict=True
        ):
            strategy.extended.update(
                variable.value, lambda v, new: v.assign(new), args=(value,)
            )

        loss, error, signals, exposed = [
            strategy.experimental_local_results(number)[0] for number in numbers
        ]
        stop, replaced = tf.unstack(signals)
        return StepResult(
            loss,
            error * 100.0,
            learning_rate,
            stop,
            replaced,
            strategy.experimental_local_results(evidence),
            exposed,
        )

    return step


def eval_step(
    model: keras.Model, strategy: tf.distribute.Strategy
) -> Callable[[Any, Any, Any], Any]:
    """Returns the compiled evaluation step. It uses no collective.

    Args:
      model: uint8 images to logits, built under `strategy`.
      strategy: the devices of the run.

    Returns:
      images [b, H, W, 3] uint8, labels [b] int32 and valid [b] bool of each device ->
      for each device of this process int64 [4]: images, top-1 and top-5 right answers,
      and the summed cross-entropy in units of 2^-30. Integers, because their sum
      depends on no order; NaN and infinite losses count as 2^20 each.
    """

    def on_device(images, labels, valid):
        logits = model(images, training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        losses = tf.where(losses < 2.0**20, losses, 2.0**20)
        fixed = tf.cast(tf.round(tf.cast(losses, tf.float64) * 2.0**30), tf.int64)
        best = tf.math.top_k(logits, min(5, logits.shape[-1])).indices
        right = tf.cast(tf.equal(best, labels[:, tf.newaxis]), tf.int64)
        rows = tf.stack(
            [tf.ones_like(fixed), right[:, 0], tf.reduce_sum(right, 1), fixed], 1
        )
        return tf.reduce_sum(tf.boolean_mask(rows, valid), 0)

    @tf.function(jit_compile=False, autograph=False)
    def step(images, labels, valid):
        return strategy.run(on_device, args=(images, labels, valid))

    return step


def device_sum(
    strategy: tf.distribute.Strategy, placement: Placement
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the sum over all devices of the run: int64 [local devices, c] -> [c]."""

    @tf.function(jit_compile=False, autograph=False)
    def add(rows):
        return strategy.run(allreduce.device_sum, args=(rows,))

    def device_sum(rows: np.ndarray) -> np.ndarray:
        values = [tf.constant(row, tf.int64) for row in rows]
        total = add(placement.per_device(values))
        return placement.local_results(total)[0].numpy()

    return device_sum
