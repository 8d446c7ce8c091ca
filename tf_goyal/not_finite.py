"""Who made a loss that is not finite, and where in the network.

The sums of a step are the same everywhere, so all processes stop at the same one. What
each device gave to them is looked at only then.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_goyal import fixed_point
from tf_goyal.placement import Placement
from tf_goyal.workers import Sums


def checked(loss: tf.Tensor, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """The loss, or NaN where a gradient is not finite though the loss is.

    Whatever goes wrong in backward also reaches the gradients of the vectors (biases,
    BatchNorm's) below and that of the first layer, so that these are enough.

    Args:
      loss: float32 scalar.
      gradients: float32, summed, from the first layer's to the last's.
    """
    telling = [g for i, g in enumerate(gradients) if i == 0 or g.shape.rank == 1]
    total = tf.add_n([tf.reduce_sum(g) for g in telling])
    return tf.where(tf.math.is_finite(total), loss, float("nan"))


def evidence(sums: Sums, loss: tf.Tensor, exact: bool) -> tf.Tensor:
    """What one device gave to a step whose loss is not finite.

    Args:
      sums: of the device.
      loss: float32 scalar, of all of them.
      exact: whether the sums are fixed point.

    Returns:
      float32 [1 + G]: this device's part of the loss, and the norm of each of the G
      gradients; infinite for what the fixed point could not hold. Zeros where the loss
      is finite: then nothing is computed.
    """

    def look() -> tf.Tensor:
        values = [sums.loss, *sums.gradients]
        if exact:
            values = [fixed_point.decode(value) for value in values]
        norms = tf.stack([tf.norm(value) for value in values])
        if not exact:
            return norms
        count = len(sums.gradients)
        faults = tf.concat([sums.faults[-2:-1], sums.faults[:count]], 0)
        return tf.where(faults > 0, float("inf"), norms)

    return tf.cond(
        tf.math.is_finite(loss), lambda: tf.zeros([1 + len(sums.gradients)]), look
    )


def report(
    mine: Sequence[np.ndarray],
    names: Sequence[str],
    device_sum: Callable[[np.ndarray], np.ndarray],
    placement: Placement,
    most: int = 5,
) -> dict[str, Any]:
    """What all devices gave; called by every process of the run.

    Args:
      mine: `evidence` of each device of this process.
      names: of the gradients.
      device_sum: `step.device_sum`'s.
      placement: the devices of the run.
      most: gradients to name.

    Returns:
      JSON values: "ranks", those that gave something that is not finite (none where
      only the sum is not), and "gradient_norms", the largest of these, or of all, by
      name: what is not finite first, as text.
    """
    width = 1 + len(names)
    rows = np.zeros([len(placement.local), placement.devices, width], np.int64)
    for row, device, values in zip(rows, placement.local, mine, strict=True):
        row[device] = np.asarray(values, np.float32).view(np.int32)
    bits = device_sum(rows.reshape(len(rows), -1))
    table = bits.astype(np.int32).view(np.float32).reshape(placement.devices, width)
    guilty = ~np.isfinite(table).all(1)
    devices = np.flatnonzero(guilty)
    norms = (table[guilty] if guilty.any() else table)[:, 1:].max(0)
    order = np.argsort(np.where(np.isfinite(norms), -norms, -np.inf), kind="stable")
    return {
        "ranks": sorted({int(d) // len(placement.local) for d in devices}),
        "gradient_norms": {
            names[i]: float(norms[i]) if np.isfinite(norms[i]) else str(norms[i])
            for i in order[:most]
        },
    }
