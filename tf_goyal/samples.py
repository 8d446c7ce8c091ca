"""Positions of a run -> encoded images, labels, crops: what the decoder is given.

A broken record is replaced, at each of its positions, by the next good record in the
order of the same epoch. That is a function of the position and the data alone, so every
layout and every restart replaces alike, and no step is short of an image. No
TensorFlow.
"""

import threading
from typing import NamedTuple

import numpy as np

from tf_goyal import image_header, random_crop
from tf_goyal.datasets import Split
from tf_goyal.image_order import ImageOrder
from tf_goyal.records import BadRecord

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_REPLACEMENTS = 1000  # broken records in a row: then the storage is gone


class InputError(Exception):
    """The input cannot be used as it is; the message names what and where."""


class Samples(NamedTuple):
    """What the images at p positions are made from.

    Attributes:
      encoded: object [p] of bytes.
      label: int32 [p].
      is_jpeg: bool [p].
      window: int32 [p, 4], y, x, height and width of the crop in pixels.
      flip: bool [p], whether to mirror it.
      replaced: int64 [p], the number of the broken record that another stands for; -1
        where the record is good.
    """

    encoded: np.ndarray
    label: np.ndarray
    is_jpeg: np.ndarray
    window: np.ndarray
    flip: np.ndarray
    replaced: np.ndarray


class Labels:
    """Checks stored labels.

    Args:
      classes: every label must lie in 0 ... classes - 1.
      offset: subtracted from the stored label.
    """

    def __init__(self, classes: int, offset: int):
        self._classes, self._offset = classes, offset

    def label(self, stored: int) -> int:
        """The label of a record.

        Raises:
          BadRecord: it is out of range.
        """
        label = stored - self._offset
        if not 0 <= label < self._classes:
            raise BadRecord(
                f"its label is {stored}, but must be {self._offset} to "
                f"{self._offset + self._classes - 1} with --label_offset="
                f"{self._offset} and {self._classes} classes"
            )
        return label


class Sampler:
    """Reads the images at given positions; safe to call from several threads.

    Args:
      split: training split of N images.
      order: of its records.
      labels: of its records.
      seed: of the augmentation.
      total_images: images that the run learns from. What fills the last step up beyond
        them gets the label -1.
      min_crop_area: smallest area of a crop, as a fraction of the image.
      horizontal_flip: whether to mirror every other image.
    """

    def __init__(
        self,
        split: Split,
        order: ImageOrder,
        labels: Labels,
        *,
        seed: int,
        total_images: int,
        min_crop_area: float,
        horizontal_flip: bool,
    ):
        self._split, self._order, self._labels = split, order, labels
        self._seed, self._total_images = seed, total_images
        self._min_crop_area, self._horizontal_flip = min_crop_area, horizontal_flip
        # What is known here of broken records. Whether bytes are an image depends on
        # the record; whether a crop of it can be decoded, on the position too.
        self._broken_records: set[int] = set()
        self._broken_at: set[tuple[int, int]] = set()  # position asked for, record
        self._lock = threading.Lock()

    def will_read(self, positions: np.ndarray) -> None:
        """Lets the system fetch the records at some positions meanwhile."""
        for record in self._order.records_at(positions).tolist():
            self._split.will_read(record)

    def at(self, positions: np.ndarray) -> Samples:
        """The samples at int64 positions [p].

        Raises:
          InputError: there is no good record.
        """
        records = self._order.records_at(positions)
        encoded = np.empty(len(positions), object)
        label = np.empty(len(positions), np.int32)
        headers, replaced = [], np.full(len(positions), -1, np.int64)
        for i, (position, record) in enumerate(
            zip(positions.tolist(), records.tolist(), strict=True)
        ):
            encoded[i], label[i], header, good = self._good(position, record)
            headers.append(header)
            if good != record:
                replaced[i] = record
        label[positions >= self._total_images] = -1
        uniform = self._uniform(positions, records)
        flip = random_crop.flips(uniform) & self._horizontal_flip
        window = random_crop.windows(
            np.array([header.height for header in headers]),
            np.array([header.width for header in headers]),
            uniform,
            self._min_crop_area,
        )
        is_jpeg = np.array([header.format == "JPEG" for header in headers])
        return Samples(encoded, label, is_jpeg, window, flip, replaced)

    def reject(self, position: int) -> None:
        """Takes note that what `at` gives for this position cannot be decoded."""
        record = int(self._order.records_at(np.array([position]))[0])
        *_, good = self._good(position, record)
        with self._lock:
            self._broken_at.add((position, good))

    def _uniform(self, positions: np.ndarray, records: np.ndarray) -> np.ndarray:
        """float64 [p, NUMBERS], keyed by (seed, epoch, record asked for)."""
        epochs = positions // self._order.train_images
        state = _mixed(np.full(len(positions), self._seed, np.int64).view(np.uint64))
        state = _mixed(state + epochs.view(np.uint64))
        state = _mixed(state + records.view(np.uint64))
        steps = np.arange(1, random_crop.NUMBERS + 1, dtype=np.uint64) * _GOLDEN
        words = _mixed(state[:, np.newaxis] + steps)
        return (words >> np.uint64(11)) * 2.0**-53

    def _good(
        self, position: int, record: int
    ) -> tuple[bytes, int, image_header.ImageHeader, int]:
        """Bytes, label, header and number of the record to use at a position."""
        images = self._order.train_images
        epoch, number = divmod(position, images)
        why = "it cannot be decoded"
        for tried in range(min(images, _REPLACEMENTS)):
            if tried:
                following = epoch * images + (number + tried) % images
                record = int(self._order.records_at(np.array([following]))[0])
            if record in self._broken_records or (position, record) in self._broken_at:
                continue
            try:
                encoded, stored, header = read(self._split, record)
                return encoded, self._labels.label(stored), header, record
            except BadRecord as error:
                why = str(error)
                with self._lock:
                    self._broken_records.add(record)
        raise InputError(
            f"{min(images, _REPLACEMENTS)} records in a row are broken, the last one "
            f"{self._split.where(record)} ({why}): is the storage there, with the same "
            "data?"
        )


def _mixed(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014): each bit depends on all."""
    words = words + _GOLDEN
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)


def read(split: Split, record: int) -> tuple[bytes, int, image_header.ImageHeader]:
    """An encoded image, its stored label and its header.

    Raises:
      BadRecord: the record is broken, or its bytes cannot be an image.
    """
    encoded, stored = split.read(record)
    try:
        return encoded, stored, image_header.read(encoded)
    except ValueError as error:
        raise BadRecord(str(error)) from error
