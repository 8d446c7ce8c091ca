"""One device's virtual workers: forward, backward, and the sums over them.

The paper's k workers run one after another on whatever device carries them. All that
leaves this file is sums, so nobody downstream can tell how many workers a device had.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf

from tf_goyal import fixed_point

# float16 has too little range for gradients divided by kn: they are computed from the
# loss times this number (and times k), and divided by it in float32.
FLOAT16_LOSS_SCALE = 1024.0


class Sums(NamedTuple):
    """What a step adds up: over virtual workers first, over devices next.

    Attributes:
      gradients: float32, or int64 fixed point, one per trainable variable.
      statistics: the same types, one per non-trainable variable: BatchNorm's new
        running statistics divided by the number of groups they were taken over.
      loss: scalar, sum over images of the cross-entropy / kn.
      error: scalar, number of wrong top-1 answers / kn.
      faults: of gradients, statistics, loss and error, in this order, how often the
        fixed point could not hold each; zeros in floating point.
    """

    gradients: list[tf.Tensor]
    statistics: list[tf.Tensor]
    loss: tf.Tensor
    error: tf.Tensor
    faults: tf.Tensor


def virtual_workers(
    model: keras.Model, *, global_batch: int, groups: int, together: bool, exact: bool
) -> Callable[[tf.Tensor, tf.Tensor], Sums]:
    """Returns the function that runs the virtual workers of one device.

    Args:
      model: uint8 images [n, H, W, 3] to float32 logits [n, classes].
      global_batch: kn, images per step over all workers.
      groups: over how many groups BatchNorm's statistics are taken in all: k, or the
        number of devices when they are taken over everything.
      together: run the device's workers as one batch, for statistics over everything.
      exact: add in fixed point instead of float32.

    Returns:
      images [m, n, H, W, 3] uint8 and labels [m, n] int32, of this device's m workers
      -> `Sums` over the m workers. Images with a negative label only fill the last
      step of a run up to n: BatchNorm sees them, the loss and the error do not. Call
      it in replica context inside a `tf.function`.
    """
    half = model.compute_dtype == "float16"
    loss_scale = FLOAT16_LOSS_SCALE * groups if half else 1.0

    def worker(trainable, statistics, images, labels) -> list[tf.Tensor]:
        counted = tf.cast(labels >= 0, tf.float32)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trainable)
            # §2.3: BatchNorm sees this worker's n images and nobody else's.
            logits, new_statistics = model.stateless_call(
                trainable, statistics, images, training=True
            )
            losses = counted * tf.nn.sparse_softmax_cross_entropy_with_logits(
                tf.maximum(labels, 0), logits
            )
            # §3, gradient aggregation: divided by kn here, so that sums are enough.
            loss = tf.reduce_sum(losses) / global_batch
            scaled_loss = loss * loss_scale
        gradients = tape.gradient(scaled_loss, trainable)
        if half:
            gradients = [gradient / loss_scale for gradient in gradients]
        wrong = tf.not_equal(tf.argmax(logits, 1, output_type=labels.dtype), labels)
        error = tf.reduce_sum(counted * tf.cast(wrong, tf.float32)) / global_batch
        # A moving average is linear: the mean of the workers' averages is the average
        # of their mean.
        shares = [statistic / groups for statistic in new_statistics]
        values = [*gradients, *shares, loss, error]
        if not exact:
            return [*values, tf.zeros([len(values)])]
        fixed, faults = fixed_point.encode(values, terms=groups)
        return [*fixed, faults]

    def run(images: tf.Tensor, labels: tf.Tensor) -> Sums:
        trainable = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
        statistics = [
            tf.convert_to_tensor(v.value) for v in model.non_trainable_variables
        ]
        shapes = [t.shape for t in [*trainable, *statistics]] + [[], []]
        shapes += [[len(shapes)]]
        dtype = tf.int64 if exact else tf.float32

        def add_worker(w, sums):
            values = worker(trainable, statistics, images[w], labels[w])
            return w + 1, [a + b for a, b in zip(sums, values, strict=True)]

        if together:
            images = tf.reshape(images, [1, -1, *images.shape[2:]])
            labels = tf.reshape(labels, [1, -1])

        # All workers but the last run in a loop. The last stands behind it, so that
        # each of the device's gradients is final, and can leave, as soon as backward
        # has made it (§4).
        last = images.shape[0] - 1
        sums = [tf.zeros(shape, dtype) for shape in shapes]
        if last > 0:
            _, sums = tf.while_loop(
                lambda w, _: w < last,
                add_worker,
                (tf.constant(0), sums),
                parallel_iterations=1,
            )
        with tf.control_dependencies(sums):
            _, sums = add_worker(last, sums)
        count = len(trainable)
        return Sums(sums[:count], sums[count:-3], *sums[-3:])

    return run
