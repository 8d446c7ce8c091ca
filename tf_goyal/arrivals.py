"""What has come from whom: counted by the graph, read from outside of it.

A step that hangs in an all-reduce tells nothing. Each message counts itself here when
it comes, in the memory of the process, where another thread sees which one is missing.
"""

import tensorflow as tf

_SLOTS = 1 << 14  # messages that a process' graphs may receive; more are not counted


class Arrivals:
    """Counts messages. Make it outside of any strategy's scope."""

    def __init__(self):
        with tf.device("CPU:0"):
            self._counts = tf.Variable(tf.zeros([_SLOTS], tf.int64), trainable=False)
        self._names: list[str] = []

    def count(self, tensor: tf.Tensor, name: str) -> None:
        """In a graph: counts each time that a tensor is there.

        Args:
          tensor: what is waited for.
          name: for people.
        """
        if len(self._names) == _SLOTS:
            return
        slot = len(self._names)
        self._names.append(name)
        with tf.control_dependencies([tensor]), tf.device("CPU:0"):
            tf.raw_ops.ResourceScatterAdd(
                resource=self._counts.handle,
                indices=tf.constant([slot]),
                updates=tf.ones([1], tf.int64),
            )

    def counts(self) -> dict[str, int]:
        """Name -> how often."""
        counts = self._counts.numpy()
        return {name: int(counts[slot]) for slot, name in enumerate(self._names)}
