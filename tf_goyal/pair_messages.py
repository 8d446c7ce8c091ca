"""Messages from one process to another, made of TensorFlow's CPU collectives.

A broadcast in a group of two is a message. The sender's half and the receiver's half
are separate ops; both run on the host's CPU, on any number of them at once, and both
know each other by two numbers: the group's key (the pair of ranks) and the instance's
key (which message between the two, and in which direction).

Call these functions inside a `tf.function`, in every process of the run, once per
process and not once per device.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tf_goyal.arrivals import Arrivals

# TensorFlow's strategies hand out group keys from 1 on. Each pair of ranks has a group
# of its own from here on; keys are int32.
_FIRST_GROUP = 2**30
MAX_RANKS = 2**15
MAX_MESSAGES = 2**30

# What the ops carry. bfloat16 travels as the bits of a float16.
_CARRIED = (tf.float32, tf.float16, tf.float64, tf.int32, tf.int64)


_arrivals: list[Arrivals] = []


@contextlib.contextmanager
def counted(arrivals: Arrivals) -> Iterator[None]:
    """Messages that are received in the graph made meanwhile are counted."""
    _arrivals.append(arrivals)
    try:
        yield
    finally:
        _arrivals.pop()


def send(
    tensor: tf.Tensor, *, sender: int, receiver: int, message: int, name: str
) -> tf.Tensor:
    """Sends a tensor; `receive` takes it.

    Args:
      tensor: not empty; float32, bfloat16, float16, float64, int32 or int64.
      sender: this process' rank.
      receiver: the other's.
      message: 0 to 2**30 - 1. Between one sender and one receiver a number stands for
        one shape and dtype in the whole life of the processes, and is on its way once
        at a time. Use it again in the next step: TensorFlow keeps a record of each
        number for ever, about a kilobyte.
      name: of the op. TensorFlow's error messages show it.

    Returns:
      What has to be made a control dependency of something that is fetched: a
      `tf.function` drops a send that nothing depends on, and the receiver then waits
      for ever. It is there when the receiver has asked for the message.
    """
    group, instance = _keys(sender, receiver, message)
    with tf.device("CPU:0"):
        return tf.raw_ops.CollectiveBcastSendV2(
            input=_as_carried(tensor),
            group_size=2,
            group_key=group,
            instance_key=instance,
            name=name,
        )


def receive(
    shape: list[int],
    dtype: tf.DType,
    *,
    sender: int,
    receiver: int,
    message: int,
    name: str,
) -> tf.Tensor:
    """Receives what the other process gives to `send`.

    It has no data inputs and so asks for the message as soon as the `tf.function`
    starts, before the message exists: the message then costs one way, no round trip.

    Args:
      shape: of the tensor; no 0 in it.
      dtype: of the tensor.
      sender: the other's rank.
      receiver: this process' rank.
      message: the number that `send` was given.
      name: of the op. TensorFlow's error messages show it.
    """
    group, instance = _keys(sender, receiver, message)
    with tf.device("CPU:0"):
        carried = tf.raw_ops.CollectiveBcastRecvV2(
            group_size=2,
            group_key=group,
            instance_key=instance,
            shape=shape,
            T=tf.float16 if dtype == tf.bfloat16 else dtype,
            name=name,
        )
        if _arrivals:
            _arrivals[-1].count(carried, name)
        return tf.bitcast(carried, dtype) if dtype == tf.bfloat16 else carried


def _as_carried(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype == tf.bfloat16:
        return tf.bitcast(tensor, tf.float16)
    if tensor.dtype not in _CARRIED:
        raise ValueError(
            f"a message must be of {', '.join(t.name for t in _CARRIED)} or bfloat16, "
            f"got {tensor.dtype.name}"
        )
    return tensor


def _keys(sender: int, receiver: int, message: int) -> tuple[int, int]:
    """Group and instance key, the same in both processes."""
    low, high = sorted((sender, receiver))
    if not 0 <= low < high < MAX_RANKS:
        raise ValueError(
            f"a message must go from one rank below {MAX_RANKS} to another, got "
            f"{sender} to {receiver}"
        )
    if not 0 <= message < MAX_MESSAGES:
        raise ValueError(
            f"a message's number must be from 0 to {MAX_MESSAGES - 1}, got {message}"
        )
    instance = 2 * message + (sender > receiver)
    return _FIRST_GROUP + low * MAX_RANKS + high, instance
