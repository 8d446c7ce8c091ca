"""Every record of a data set read and decoded once (doctor --full).

A record is broken here when `input_pipeline.fault` finds it so: the words and the rule
of training, but that a label out of range, which training replaces as well, is told
apart. Images are decoded whole, as in evaluation; training decodes crops, and may
miss a fault outside of them.

The memory does not grow with the images: what is kept of a good one is two numbers.
"""

import collections
import concurrent.futures
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_goyal import augment, input_pipeline, samples
from tf_goyal.datasets import Dataset, Split
from tf_goyal.image_header import ImageHeader
from tf_goyal.progress import ImageProgress
from tf_goyal.records import BadRecord
from tf_goyal.samples import Labels

_CHUNK = 32  # records that a thread reads and decodes at once


class _Image(NamedTuple):
    """A good record.

    Attributes:
      stored: its label, as stored.
      header: of the image.
      bytes: of the encoded image.
    """

    stored: int
    header: ImageHeader
    bytes: int


def read(data: Dataset, *, label_offset: int, dct: str, threads: int) -> dict[str, Any]:
    """Reads both splits, each in the order of its records.

    Args:
      data: to read.
      label_offset: subtracted from the stored labels.
      dct: see `augment.decode`.
      threads: that read and decode.

    Returns:
      JSON values for "train" and for "validation": "records" (their number),
      "images_per_class", "images_of_a_class" (see `spread`), "classes_without_images"
      (names), "labels_out_of_range" (number of records, and the place and the label of
      the first one), "height" and "width" (see `spread`), "most_pixels" of one image,
      "formats" (numbers of images), "orientations" (numbers of images by EXIF's
      orientation, if it is not 1), "broken" (record, place and reason of each),
      "seconds", "images_per_second" and "bytes_per_second" (of the images). Labels,
      sizes, formats and orientations are those of the good records.
    """
    splits = (data.train, data.validation)
    # To stderr: stdout is for what is found.
    with ImageProgress("read", sum(map(len, splits)), stream=sys.stderr) as progress:
        return {
            split.name: _read_split(
                split, Tally(split, data.labels, label_offset), dct, threads, progress
            )
            for split in splits
        }


def _read_split(
    split: Split, tally: "Tally", dct: str, threads: int, progress: ImageProgress
) -> dict[str, Any]:
    read_records = _reader(split, dct)
    chunks = (
        range(first, min(first + _CHUNK, len(split)))
        for first in range(0, len(split), _CHUNK)
    )
    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for found in _in_order(pool, read_records, chunks, 2 * threads):
            for each in found:
                tally.add(each)
            progress.add(len(found), sum(isinstance(each, str) for each in found))
    return tally.facts(time.perf_counter() - started)


def _in_order(
    pool: concurrent.futures.Executor, function: Callable, items: Iterable, ahead: int
) -> Iterator[Any]:
    """The results of `function`, of which at most `ahead` wait or are being made."""
    waiting = collections.deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) == ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _reader(split: Split, dct: str) -> Callable[[range], list[_Image | str]]:
    """Records -> each one's image, or why it is broken."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def decode(encoded):  # string [n] -> int32 [n, 3], the sizes
        # One call for many images keeps the threads out of each other's way.
        return tf.map_fn(
            lambda image: tf.shape(augment.decode(image, dct)),
            encoded,
            parallel_iterations=1,
            fn_output_signature=tf.int32,
        )

    decode.get_concrete_function()  # before anybody looks at the clock

    def look_at(record: int) -> tuple[_Image | str, bytes]:
        try:
            encoded, stored, header = samples.read(split, record)
        except BadRecord as error:
            return str(error), b""
        return _Image(stored, header, len(encoded)), encoded

    def read_records(records: range) -> list[_Image | str]:
        for record in records:
            split.will_read(record)
        found, encoded = zip(*map(look_at, records))
        try:
            with tf.device("CPU:0"):
                decode(tf.constant([image for image in encoded if image], tf.string))
        except tf.errors.OpError:
            # One or more of them: `fault` knows which, and why.
            return [
                input_pipeline.fault(split, record, dct) or each
                for record, each in zip(records, found)
            ]
        return list(found)

    return read_records


class Tally:
    """Counts what the records of a split are, one after another.

    Args:
      split: that is read.
      labels: names of the classes.
      label_offset: subtracted from the stored labels.
    """

    def __init__(self, split: Split, labels: tuple[str, ...], label_offset: int):
        self._split, self._names = split, labels
        self._labels = Labels(len(labels), label_offset)
        self._per_class = np.zeros(len(labels), np.int64)
        self._sizes = np.zeros([len(split), 2], np.int32)  # of good records; else 0
        self._out_of_range, self._first_out_of_range = 0, ""
        self._formats, self._orientations = collections.Counter(), collections.Counter()
        self._broken: dict[int, str] = {}
        self._seen = self._bytes = 0

    def add(self, found: _Image | str) -> None:
        """Counts the next record: its image, or why it is broken."""
        record = self._seen
        self._seen += 1
        if isinstance(found, str):
            self._broken[record] = found
            return
        header = found.header
        try:
            self._per_class[self._labels.label(found.stored)] += 1
        except BadRecord as error:
            if not self._out_of_range:
                self._first_out_of_range = f"{self._split.where(record)}: {error}"
            self._out_of_range += 1
        self._sizes[record] = header.height, header.width
        self._formats[_format(header)] += 1
        if header.orientation != 1:
            self._orientations[header.orientation] += 1
        self._bytes += found.bytes

    def facts(self, seconds: float) -> dict[str, Any]:
        """What `read` returns of a split that took so long."""
        sizes = self._sizes[self._sizes[:, 0] > 0].astype(np.int64)
        per_class = self._per_class.tolist()
        return {
            "records": self._seen,
            "images_per_class": per_class,
            "images_of_a_class": spread(self._per_class),
            "classes_without_images": [
                name for name, images in zip(self._names, per_class) if not images
            ],
            "labels_out_of_range": {
                "records": self._out_of_range,
                "first": self._first_out_of_range,
            },
            "height": spread(sizes[:, 0]),
            "width": spread(sizes[:, 1]),
            "most_pixels": int(sizes.prod(1).max(initial=0)),
            "formats": dict(self._formats.most_common()),
            "orientations": {
                str(orientation): self._orientations[orientation]
                for orientation in sorted(self._orientations)
            },
            "broken": [
                {"record": record, "place": self._split.where(record), "reason": why}
                for record, why in self._broken.items()
            ],
            "seconds": seconds,
            "images_per_second": self._seen / seconds,
            "bytes_per_second": self._bytes / seconds,
        }


def _format(header: ImageHeader) -> str:
    """A format with its kind of colour, as "JPEG, CMYK"."""
    names = {1: "grey", 2: "grey with alpha", 3: "colour", 4: "colour with alpha"}
    if header.format == "JPEG":
        names[4] = "CMYK"
    name = names.get(header.channels)
    return f"{header.format}, {name}" if name else header.format


def spread(values: np.ndarray) -> dict[str, float] | None:
    """Smallest, median and largest of some integers; None where there are none."""
    if not len(values):
        return None
    return {
        "smallest": int(values.min()),
        "median": float(np.median(values)),
        "largest": int(values.max()),
    }
