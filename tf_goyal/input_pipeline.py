"""Which image is where: step and virtual worker -> images, on any layout.

Position p of a run is p = s*kn + w*n + j for image j of virtual worker w in step s.
Its epoch is p // N, and a permutation of the N records keyed by (seed, epoch) turns
p % N into a record. So batches run across epoch ends, every record is seen exactly once
per epoch (§3, one random shuffle per epoch, divided among the workers), any step is
found without reading the steps before it, and nothing here depends on devices or
processes.
"""

import functools
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_goyal import augment, datasets

_FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
_order_lock = threading.Lock()  # so that one thread sorts, and the others wait for it


def records_at(positions: np.ndarray, train_images: int, seed: int) -> np.ndarray:
    """The record at each position of a run: a pure function.

    Args:
      positions: int64 [P], each >= 0; exact up to 2^63 - 1.
      train_images: N, records per epoch.
      seed: any integer; its low 64 bits count.

    Returns:
      int64 [P], each in [0, N). The positions e*N ... (e+1)*N - 1 of epoch e give every
      record exactly once.
    """
    epochs, numbers = np.divmod(np.asarray(positions, np.int64), train_images)
    found = np.empty_like(numbers)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        with _order_lock:
            order = _epoch_order(int(epoch), train_images, seed % 2**64)
        found[here] = order[numbers[here]]
    return found


@functools.lru_cache(maxsize=2)  # a step may hold the end of one epoch and the next
def _epoch_order(epoch: int, train_images: int, seed: int) -> np.ndarray:
    """int64 [N]: a uniformly drawn permutation, keyed by (seed, epoch).

    The order of N random 64-bit words, from the stream that NumPy promises never to
    change. For ImageNet 10 MB and a third of a second per epoch, beside training.

    `tf.random.experimental.index_shuffle` would need neither, but (TensorFlow 2.21) the
    orders of successive epochs correlate (by 0.3 at ImageNet's size), only the low bits
    of seed and epoch count (8 of them up to 65,536 records, so that the orders recur
    after 256 epochs), and for N = 4^k + 1 >= 65,537 it is no permutation.
    """
    words = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(
        train_images
    )
    return np.argsort(words, kind="stable")


def train_batches(
    split: datasets.Split,
    *,
    seed: int,
    global_batch: int,
    worker_batch: int,
    workers: range,
    first_step: int,
    last_step: int,
    total_images: int,
    image_size: int,
    min_crop_area: float = 0.08,
    horizontal_flip: bool = True,
    label_offset: int = 0,
    classes: int,
) -> tf.data.Dataset:
    """The training images of some virtual workers, one element a step.

    The images of virtual worker w in step s, and what augmentation does to them, depend
    on the seed, s, w and the sizes only: not on `workers` or `first_step`.

    Args:
      split: training split of N images.
      seed: seed of the run.
      global_batch: kn, images per step over all workers.
      worker_batch: n, images per virtual worker and step.
      workers: the virtual workers to read for, part of range(kn // n).
      first_step: first step to read.
      last_step: the step to stop before.
      total_images: images that the run learns from. What fills the last step up beyond
        them gets the label -1.
      image_size: S, pixels.
      min_crop_area: smallest area of a crop, as a fraction of the image.
      horizontal_flip: whether to mirror every other image.
      label_offset: subtracted from the stored label.
      classes: every label must then lie in 0 ... classes - 1.

    Returns:
      Data set of last_step - first_step pairs: images uint8 [m, n, S, S, 3], labels
      int32 [m, n], with m = len(workers).
    """
    train_images, m, n = len(split), len(workers), worker_batch
    check = _label_check(split, classes, label_offset)

    def read(positions):  # NumPy
        record = records_at(positions, train_images, seed)
        return record, _strings(split.reader.read(record))

    def worker_step(number):
        """The records of one virtual worker in one step, unbatched below."""
        step = first_step + number // m
        worker = workers.start + number % m * workers.step
        positions = step * global_batch + worker * n + tf.range(n, dtype=tf.int64)
        record, examples = tf.numpy_function(read, [positions], (tf.int64, tf.string))
        encoded, label = _parse(examples, n)
        label = check(label - label_offset, record)
        # Augmentation is keyed by (seed, epoch, record); a record fits into 40 bits.
        epoch = positions // train_images
        key = tf.bitwise.left_shift(epoch, tf.constant(40, tf.int64)) + record
        seeds = tf.stack([tf.fill([n], tf.constant(seed, tf.int64)), key], axis=1)
        label = tf.where(positions < total_images, label, -1)
        return encoded, label, seeds

    def image_label(encoded, label, seed):
        image = augment.train_image(
            encoded,
            seed,
            image_size=image_size,
            min_crop_area=min_crop_area,
            horizontal_flip=horizontal_flip,
        )
        return image, tf.cast(label, tf.int32)

    def by_worker(images, labels):
        shape = [m, n, image_size, image_size, 3]
        return tf.reshape(images, shape), tf.reshape(labels, [m, n])

    dataset = tf.data.Dataset.range((last_step - first_step) * m)
    dataset = _parallel(dataset, worker_step).unbatch()
    dataset = _parallel(dataset, image_label).batch(m * n, drop_remainder=True)
    return _finish(dataset.map(by_worker))


def eval_batches(
    split: datasets.Split,
    *,
    batch: int,
    batches: Sequence[int],
    image_size: int,
    eval_resize: int,
    label_offset: int = 0,
    classes: int,
) -> tf.data.Dataset:
    """Some of the batches of a whole split in the order of its records.

    Batch b holds the images b*batch ... b*batch + batch - 1. What lies beyond the last
    image is padding: zeros that do not count. So every process can read equally many
    batches, and still every image counts once.

    Args:
      split: the split to read.
      batch: B, images per batch.
      batches: numbers of the batches to read; those past the end are all padding.
      image_size: S, pixels of the centre crop.
      eval_resize: pixels of the shorter side before the crop.
      label_offset: subtracted from the stored label.
      classes: every label must then lie in 0 ... classes - 1.

    Returns:
      Data set of len(batches) triples: images uint8 [B, S, S, 3], labels int32 [B],
      counts bool [B] (False: padding, label 0).

    Raises:
      ValueError: eval_resize < image_size.
    """
    check = _label_check(split, classes, label_offset)

    def read(first):  # NumPy
        return _strings(split.reader.read(range(first, min(first + batch, len(split)))))

    def padded_batch(number):
        first = number * batch
        examples = tf.numpy_function(read, [first], tf.string)
        encoded, label = _parse(examples, None)
        images = tf.size(label)
        encoded = tf.concat([encoded, tf.fill([batch - images], "")], axis=0)
        record = first + tf.range(images, dtype=tf.int64)
        label = check(label - label_offset, record)
        label = tf.pad(label, [[0, batch - images]])
        return encoded, label, tf.range(batch) < images

    def image_label(encoded, label, counts):
        image = tf.cond(
            counts,
            lambda: augment.eval_image(
                encoded, image_size=image_size, eval_resize=eval_resize
            ),
            lambda: tf.zeros([image_size, image_size, 3], tf.uint8),
        )
        return image, tf.cast(label, tf.int32), counts

    dataset = tf.data.Dataset.from_tensor_slices(np.array(batches, np.int64))
    dataset = _parallel(dataset, padded_batch).unbatch()
    return _finish(_parallel(dataset, image_label).batch(batch, drop_remainder=True))


class InputError(Exception):
    """A record cannot be used; the message names it."""


def named_errors(dataset: tf.data.Dataset) -> Iterable[Any]:
    """The elements of a data set, any number of times.

    Raises:
      InputError: while iterating, for what goes wrong in reading or decoding.
    """
    return _NamedErrors(dataset)


class _NamedErrors:
    def __init__(self, dataset: tf.data.Dataset):
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._dataset
        except tf.errors.OpError as error:
            # Of an exception in Python's part of the pipeline TensorFlow shows the
            # text and the stack: the text is enough.
            python = re.search(r"^(?:ValueError|OSError): (.+)$", error.message, re.M)
            text = python.group(1) if python else error.message.splitlines()[0]
            raise InputError(f"the input failed: {text}") from error


def _label_check(split: datasets.Split, classes: int, label_offset: int):
    """Labels and records, int64 [n] both -> the labels, which are all in range."""

    def check(labels, records):  # NumPy
        for label, record in zip(labels, records, strict=True):
            if not 0 <= label < classes:
                file = split.files[split.index.file[record]]
                raise ValueError(
                    f"the labels must be {label_offset} to "
                    f"{label_offset + classes - 1} with --label_offset="
                    f"{label_offset} and {classes} classes, but record {record} of "
                    f"{split.name}, in {file}, has {label + label_offset}: set "
                    "--label_offset to the smallest label"
                )
        return labels

    def in_range(labels: tf.Tensor, records: tf.Tensor) -> tf.Tensor:
        checked = tf.numpy_function(check, [labels, records], tf.int64)
        return tf.ensure_shape(checked, labels.shape)

    return in_range


def _strings(values: list[bytes]) -> np.ndarray:
    """As objects: NumPy's own strings would lose zero bytes at their ends."""
    return np.array(values, dtype=object)


def _parse(examples: tf.Tensor, count: int | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Encoded images string [count] and stored labels int64 [count]."""
    features = tf.io.parse_example(tf.ensure_shape(examples, [count]), _FEATURES)
    return features["image/encoded"], features["image/class/label"]


def _parallel(dataset: tf.data.Dataset, function) -> tf.data.Dataset:
    return dataset.map(function, num_parallel_calls=_cores(), deterministic=True)


def _finish(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Two elements ready ahead of the consumer, on threads of its own."""
    options = tf.data.Options()
    options.autotune.enabled = False  # a fixed number of threads, a bounded memory
    options.threading.private_threadpool_size = _cores()
    options.threading.max_intra_op_parallelism = 1  # images in parallel, not pixels
    return dataset.prefetch(2).with_options(options)


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
