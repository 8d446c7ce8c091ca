"""Step -> this process' images: reading, decoding and augmenting, ahead of training.

`samples` and `image_order` say which images; here they go through TensorFlow's threads.
An image that cannot be decoded stops TensorFlow's pipeline: it is then found, replaced
by the rule of `samples`, and the pipeline goes on from the same step.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_goyal import augment, samples
from tf_goyal.datasets import Split
from tf_goyal.records import BadRecord
from tf_goyal.samples import InputError, Labels, Sampler

_CHUNK = 32  # images that one thread makes in a row
_SAMPLE_TYPES = (tf.string, tf.int32, tf.bool, tf.int32, tf.bool, tf.int64)
_AHEAD_BYTES = 256 * 2**20  # of a prefetched step beyond which one is enough


class Threads:
    """How an input pipeline uses the machine.

    Args:
      count: threads that read and decode; 0: the cores that this process may use.
      prefetch: elements made ahead of the consumer; 0: two, or one if it is large.
    """

    def __init__(self, count: int = 0, prefetch: int = 0):
        self.count = count or cores()
        self._prefetch = prefetch

    def ahead(self, element_bytes: int) -> int:
        """Elements to prefetch."""
        return self._prefetch or (2 if element_bytes <= _AHEAD_BYTES else 1)

    def map(self, dataset: tf.data.Dataset, function: Callable) -> tf.data.Dataset:
        """In parallel, in order."""
        return dataset.map(function, num_parallel_calls=self.count, deterministic=True)

    def finish(self, dataset: tf.data.Dataset, element_bytes: int) -> tf.data.Dataset:
        """Elements ready ahead of the consumer, on threads of the pipeline's own."""
        options = tf.data.Options()
        options.autotune.enabled = False  # a fixed number of threads, a bounded memory
        options.threading.private_threadpool_size = self.count
        options.threading.max_intra_op_parallelism = 1  # images in parallel, not pixels
        return dataset.prefetch(self.ahead(element_bytes)).with_options(options)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class TrainBatches:
    """The training images of some virtual workers, one element a step.

    The images of virtual worker w in step s, and what augmentation does to them, depend
    on the data, the order, the seed, s, w and the sizes only: not on `workers`, the
    first step or the threads.

    Iterating gives images uint8 [m, n, S, S, 3], labels int32 [m, n] (-1: filling of
    the last step) and replaced int64 [m, n] (the number of a broken record that another
    stands for, else -1), with m = len(workers).

    Args:
      sampler: position -> sample.
      global_batch: kn, images per step over all workers.
      worker_batch: n, images per virtual worker and step.
      workers: the virtual workers to read for, part of range(kn // n).
      first_step: first step to read.
      last_step: the step to stop before.
      image_size: S, pixels.
      resize, dct: see `augment.train_image`.
      threads: to use.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        global_batch: int,
        worker_batch: int,
        workers: range,
        first_step: int,
        last_step: int,
        image_size: int,
        resize: str = "bilinear",
        dct: str = "fast",
        threads: Threads | None = None,
    ):
        self._sampler = sampler
        self._global_batch, self._n = global_batch, worker_batch
        self._workers = workers
        self._first_step, self._last_step = first_step, last_step
        self._image_size = image_size
        self._image = {"image_size": image_size, "resize": resize, "dct": dct}
        self._threads = threads or Threads()
        self._raised = _Raised()

    def __iter__(self) -> Iterator[Any]:
        return _surviving(self._dataset, self._reject, self._raised)

    def _positions(self, step: int) -> np.ndarray:
        """int64 [m*n]: of this process' images in a step; they are consecutive."""
        first = step * self._global_batch + self._workers.start * self._n
        return np.arange(first, first + len(self._workers) * self._n, dtype=np.int64)

    def _dataset(self, done: int) -> tf.data.Dataset:
        """The elements after the first `done`."""
        first_step, size = self._first_step + done, self._image_size
        m, n = len(self._workers), self._n
        chunks = -(-m * n // _CHUNK)

        def positions(number: int) -> np.ndarray:
            step, chunk = divmod(number, chunks)
            start = chunk * _CHUNK
            return self._positions(first_step + step)[start : start + _CHUNK]

        @self._raised.keep
        def read(number):  # NumPy
            self._sampler.will_read(positions(int(number) + self._threads.count))
            return tuple(self._sampler.at(positions(int(number))))

        def chunk(number):
            """Some images of a step: read, decoded, augmented, in one thread."""
            values = tf.numpy_function(read, [number], _SAMPLE_TYPES)
            encoded, label, is_jpeg, window, flip, replaced = (
                tf.ensure_shape(value, [None, 4] if i == 3 else [None])
                for i, value in enumerate(values)
            )
            images = tf.map_fn(
                lambda image: augment.train_image(*image, **self._image),
                (encoded, is_jpeg, window, flip),
                fn_output_signature=tf.TensorSpec([size, size, 3], tf.uint8),
                parallel_iterations=1,
            )
            return images, label, replaced

        def by_worker(images, labels, replaced):
            images = tf.reshape(images, [m, n, size, size, 3])
            return images, tf.reshape(labels, [m, n]), tf.reshape(replaced, [m, n])

        # One map for all of it: what goes from map to map, image by image, costs as
        # much as the resizing.
        dataset = tf.data.Dataset.range((self._last_step - first_step) * chunks)
        dataset = self._threads.map(dataset, chunk)
        if chunks > 1:
            dataset = dataset.rebatch(m * n, drop_remainder=True)
        return self._threads.finish(dataset.map(by_worker), m * n * size * size * 3)

    def _reject(self, element: int) -> bool:
        """Finds what of an element cannot be decoded; whether there was something."""
        found = False
        positions = self._positions(self._first_step + element)
        for *image, position in zip(*self._sampler.at(positions), positions.tolist()):
            encoded, _, is_jpeg, window, flip, _ = image
            try:
                with tf.device("CPU:0"):
                    augment.train_image(encoded, is_jpeg, window, flip, **self._image)
            except tf.errors.InvalidArgumentError:
                self._sampler.reject(position)
                found = True
        return found


class EvalBatches:
    """Some of the batches of a whole split in the order of its records.

    Batch b holds the records b*batch ... b*batch + batch - 1. What lies beyond the last
    one is padding, and does not count. So every process can read equally many batches,
    and still every image counts once. A broken record does not count either.

    Iterating, any number of times, gives images uint8 [B, S, S, 3], labels int32 [B],
    counts bool [B] (False: an image of zeros with label 0) and broken int64 [B] (the
    number of a broken record, else -1).

    Args:
      split: the split to read.
      labels: of its records.
      batch: B, images per batch.
      batches: numbers of the batches to read; those past the end are all padding.
      image_size: S, pixels of the centre crop.
      eval_resize: pixels of the shorter side before the crop.
      resize, dct: see `augment.eval_image`.
      threads: to use.

    Raises:
      ValueError: eval_resize < image_size.
    """

    def __init__(
        self,
        split: Split,
        labels: Labels,
        *,
        batch: int,
        batches: Sequence[int],
        image_size: int,
        eval_resize: int,
        resize: str = "bilinear",
        dct: str = "fast",
        threads: Threads | None = None,
    ):
        self._split, self._labels = split, labels
        self._batch, self._batches = batch, np.array(batches, np.int64)
        self._image = {
            "image_size": image_size,
            "eval_resize": eval_resize,
            "resize": resize,
            "dct": dct,
        }
        self._image_size = image_size
        self._threads = threads or Threads()
        self._broken: set[int] = set()
        self._raised = _Raised()

    def __iter__(self) -> Iterator[Any]:
        return _surviving(self._dataset, self._reject, self._raised)

    def _records(self, batch: int) -> range:
        first = batch * self._batch
        return range(first, min(first + self._batch, len(self._split)))

    def _read(self, number: int) -> tuple[np.ndarray, ...]:
        """Encoded images, labels, counts and broken records of one batch."""
        encoded = np.full(self._batch, b"", object)
        label = np.zeros(self._batch, np.int32)
        counts = np.zeros(self._batch, bool)
        broken = np.full(self._batch, -1, np.int64)
        for record in self._records(number):
            self._split.will_read(record)
        for i, record in enumerate(self._records(number)):
            try:
                if record in self._broken:
                    raise BadRecord("it cannot be decoded")
                image, stored, _ = samples.read(self._split, record)
                label[i] = self._labels.label(stored)
                encoded[i], counts[i] = image, True
            except BadRecord:
                broken[i] = record
        return encoded, label, counts, broken

    def _dataset(self, done: int) -> tf.data.Dataset:
        """The elements after the first `done`."""
        types = (tf.string, tf.int32, tf.bool, tf.int64)
        size, batch = self._image_size, self._batch
        read = self._raised.keep(lambda number: self._read(int(number)))

        def padded_batch(number):
            values = tf.numpy_function(read, [number], types)
            return tuple(tf.ensure_shape(value, [batch]) for value in values)

        def decode(encoded, label, counts, broken):
            image = tf.cond(
                counts,
                lambda: augment.eval_image(encoded, **self._image),
                lambda: tf.zeros([size, size, 3], tf.uint8),
            )
            return image, label, counts, broken

        dataset = tf.data.Dataset.from_tensor_slices(self._batches[done:])
        dataset = self._threads.map(dataset, padded_batch).unbatch()
        dataset = self._threads.map(dataset, decode).batch(batch, drop_remainder=True)
        return self._threads.finish(dataset, batch * size * size * 3)

    def _reject(self, element: int) -> bool:
        """Finds what of an element cannot be decoded; whether there was something."""
        number = int(self._batches[element])
        before = len(self._broken)
        for encoded, record in zip(self._read(number)[0], self._records(number)):
            try:
                if encoded:
                    with tf.device("CPU:0"):
                        augment.eval_image(encoded, **self._image)
            except tf.errors.InvalidArgumentError:
                self._broken.add(record)
        return len(self._broken) > before


class _Raised:
    """Keeps what Python code inside of a TensorFlow pipeline raised."""

    def __init__(self):
        self.error: Exception | None = None

    def keep(self, function: Callable) -> Callable:
        def kept(*arguments):
            try:
                return function(*arguments)
            except Exception as error:
                self.error = error
                raise

        return kept


def _surviving(
    dataset: Callable[[int], tf.data.Dataset],
    reject: Callable[[int], bool],
    raised: _Raised,
) -> Iterator[Any]:
    """The elements of a data set, begun again behind `reject` where they fail.

    Args:
      dataset: number of elements done -> the elements after them.
      reject: deals with what is broken in an element; False if nothing is.
      raised: by the Python code of the data set.

    Raises:
      InputError: the input cannot be used.
    """
    done = 0
    while True:
        try:
            for element in dataset(done):
                yield element
                done += 1
            return
        except tf.errors.OpError as error:
            if isinstance(raised.error, InputError):
                raise raised.error from None
            if raised.error or not reject(done):
                text = raised.error or error.message.splitlines()[0]
                raise InputError(f"the input failed: {text}") from error


def fault(
    split: Split, record: int, dct: str = "fast", labels: Labels | None = None
) -> str | None:
    """What makes a record unusable, found by reading and decoding it whole.

    Returns:
      The reason, or None.
    """
    try:
        encoded, stored, _ = samples.read(split, record)
        if labels:
            labels.label(stored)
        augment.decode(encoded, dct)
    except BadRecord as error:
        return str(error)
    except tf.errors.OpError as error:
        # The reason stands between the device's name and the operation's.
        reason = error.message.splitlines()[0].split("}} ")[-1].split(" [Op:")[0]
        return f"the image cannot be decoded: {reason}"
    return None
