"""The exact sum: float32 as int64 fixed point, so that addition has no order.

A float32 x is stored as round(x / UNIT) with UNIT = 2^-50. Scaling by a power of two
is exact, values of 2^-26 and more lose no bit at all, and integers add up to the same
sum whatever the order and the grouping: over one device, eight or 256.
"""

import tensorflow as tf

UNIT_EXPONENT = -50


def limit(terms: int) -> float:
    """Returns the magnitude that a term must stay below for `terms` of them to fit.

    int64 holds 2^63 units. One bit is left over as a guard for the reserved signs of
    the sum: |term| < 2^(62 - 50) / terms. 4096 for one term, 16 for 256 of them.
    """
    return 2.0 ** (62 + UNIT_EXPONENT) / terms


def encode(values: list[tf.Tensor], terms: int) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Turns float32 tensors into int64 fixed point.

    Args:
      values: float32 tensors of any shapes.
      terms: how many such lists will be added up in all.

    Returns:
      The int64 tensors, and int64 [len(values)]: 1 for each tensor that holds a value
      that is not finite or not within `limit(terms)`. Those are encoded as zeros;
      whoever adds up must look at the sum of these counts.
    """
    fixed, faults = [], []
    for value in values:
        # NaN fails every comparison, so this also finds what is not a number.
        good = tf.reduce_all(tf.abs(value) < limit(terms))
        scaled = tf.round(value * 2.0**-UNIT_EXPONENT)
        fixed.append(tf.cast(tf.where(good, scaled, 0.0), tf.int64))
        faults.append(1 - tf.cast(good, tf.int64))
    return fixed, tf.stack(faults)


def decode(fixed: tf.Tensor) -> tf.Tensor:
    """Turns an int64 fixed-point tensor back into float32, rounded once or twice.

    int64 to float64 keeps 53 bits, which is more than float32 can show.
    """
    return tf.cast(tf.cast(fixed, tf.float64) * 2.0**UNIT_EXPONENT, tf.float32)
