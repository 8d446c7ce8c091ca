"""Which record is where: position in the run -> record.

Position p of a run is p = s*kn + w*n + j for image j of virtual worker w in step s.
Its epoch is p // N, and an order of the N records, keyed by (seed, epoch), turns p % N
into a record. So batches run across epoch ends, every record is seen exactly once per
epoch (§3, one random shuffle per epoch, divided among the workers), any step is found
without reading the steps before it, and nothing here depends on devices or processes.
No TensorFlow.
"""

import threading
from collections.abc import Callable

import numpy as np

_STREAMS = 8  # runs of records that a virtual worker reads at the same time
_WINDOW = 1024  # records of a stream within which the order is random


class ImageOrder:
    """The record at each position of a run: a pure function.

    Args:
      train_images: N, records per epoch.
      epoch_order: epoch -> int64 [N], a permutation.
    """

    def __init__(self, train_images: int, epoch_order: Callable[[int], np.ndarray]):
        self.train_images = train_images
        self._epoch_order = epoch_order
        # A step may hold the end of one epoch and the beginning of the next.
        self._kept: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()  # one thread sorts, and the others wait for it

    def records_at(self, positions: np.ndarray) -> np.ndarray:
        """Records of some positions.

        Args:
          positions: int64 [P], each >= 0; exact up to 2^63 - 1.

        Returns:
          int64 [P], each in [0, N). The positions e*N ... (e+1)*N - 1 of epoch e give
          every record exactly once.
        """
        positions = np.asarray(positions, np.int64)
        epochs, numbers = np.divmod(positions, self.train_images)
        found = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            found[here] = self._order(int(epoch))[numbers[here]]
        return found

    def _order(self, epoch: int) -> np.ndarray:
        with self._lock:
            if epoch not in self._kept:
                if len(self._kept) == 2:
                    self._kept.pop(min(self._kept, key=lambda e: -abs(e - epoch)))
                self._kept[epoch] = self._epoch_order(epoch)
            return self._kept[epoch]


def shuffled(train_images: int, seed: int) -> ImageOrder:
    """A uniformly drawn permutation for each epoch.

    The order of N random 64-bit words, from the stream that NumPy promises never to
    change. For ImageNet 10 MB and a third of a second per epoch, beside training.

    `tf.random.experimental.index_shuffle` would need neither, but (TensorFlow 2.21) the
    orders of successive epochs correlate (by 0.3 at ImageNet's size), only the low bits
    of seed and epoch count (8 of them up to 65,536 records, so that the orders recur
    after 256 epochs), and for N = 4^k + 1 >= 65,537 it is no permutation.

    Args:
      train_images: N.
      seed: any integer; its low 64 bits count.
    """

    def epoch_order(epoch: int) -> np.ndarray:
        words = _random(seed, epoch).random_raw(train_images)
        return np.argsort(words, kind="stable")

    return ImageOrder(train_images, epoch_order)


def streaming(
    part_sizes: np.ndarray, seed: int, *, global_batch: int, worker_batch: int
) -> ImageOrder:
    """An order that reads every part of the data set nearly from its front to its end.

    For storage on which far jumps are slow. In each epoch the parts (shards) are laid
    behind each other in a random order, and each virtual worker gets an equal,
    connected piece. It reads its piece as 8 streams, interleaved, and takes their
    records at random within 1,024 of each stream: what a shuffle buffer of 8,192 does.

    What it gives up: the order depends on how the records were cut into shards, and on
    k; a record only mixes with those of its piece; and records that lie together in
    class order stay together, so they must have been shuffled when they were written.

    Args:
      part_sizes: int64 [parts], records of each shard, in the order of the records.
      seed: any integer; its low 64 bits count.
      global_batch: kn.
      worker_batch: n.
    """
    part_sizes = np.asarray(part_sizes, np.int64)
    train_images = int(part_sizes.sum())
    starts = np.cumsum(part_sizes) - part_sizes

    def epoch_order(epoch: int) -> np.ndarray:
        random = _random(seed, epoch)
        parts = np.argsort(random.random_raw(len(part_sizes)), kind="stable")
        sequence = np.concatenate(
            [np.arange(starts[part], starts[part] + part_sizes[part]) for part in parts]
        )
        # The places of each worker in this epoch, worker by worker.
        positions = epoch * train_images + np.arange(train_images)
        worker = positions % global_batch // worker_batch
        places = np.argsort(worker, kind="stable")
        worker = worker[places]
        # Where in its worker's piece each record of the sequence lies, then in which
        # of its streams, then how far into the stream.
        sizes = np.bincount(worker)
        first = np.cumsum(sizes) - sizes
        inside = np.arange(train_images) - first[worker]
        stream_size = -(-sizes // _STREAMS)[worker]
        depth = inside % stream_size
        uniform = (random.random_raw(train_images) >> 11) * 2.0**-53
        taken = np.lexsort([depth + _WINDOW * uniform, worker])
        order = np.empty(train_images, np.int64)
        order[places] = sequence[taken]
        return order

    return ImageOrder(train_images, epoch_order)


def _random(seed: int, epoch: int) -> np.random.Philox:
    return np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64))
