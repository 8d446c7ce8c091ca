"""What is stored in some records, so that data of no use are found at the start.

Files count their classes from 0 (TFDS) or from 1 (the Model Garden's ImageNet), and
nothing in them says which. And what was stored need not be images. No TensorFlow.
"""

import concurrent.futures
import dataclasses
from typing import Protocol

import numpy as np

from tf_goyal import image_header

_MOST = 2048  # records read of a split
_READERS = 16  # at once: what a file system takes that is far away


class _Split(Protocol):
    def __len__(self) -> int: ...
    def read(self, record: int) -> tuple[bytes, int]: ...
    def where(self, record: int) -> str: ...


@dataclasses.dataclass(frozen=True, eq=False)
class LabelSample:
    """What is stored in some records of a split.

    Attributes:
      features: names of the features of the image and of the label.
      record: int64 [s], numbers of the records, rising.
      label: int64 [s], their stored labels.
    """

    features: tuple[str, str]
    record: np.ndarray
    label: np.ndarray


def take(split: _Split, features: tuple[str, str]) -> LabelSample:
    """Reads up to 2,048 records, evenly over the split; broken ones are passed over.

    Raises:
      ValueError: every one of them is broken, or its bytes cannot be an image.
    """
    sampled = _sampled(split)
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        labels = list(pool.map(lambda r: _label(split, r), sampled.tolist()))
    good = [not isinstance(label, ValueError) for label in labels]
    if not any(good):
        raise _all_broken(split, sampled, labels[0])
    return LabelSample(
        features=features,
        record=sampled[good],
        label=np.array([label for label, ok in zip(labels, good) if ok], np.int64),
    )


def require_image(split: _Split) -> None:
    """Looks for one good record among those that `take` would read.

    Raises:
      ValueError: every one of them is broken, or its bytes cannot be an image.
    """
    sampled = _sampled(split)
    first = None
    for record in sampled.tolist():
        label = _label(split, record)
        if not isinstance(label, ValueError):
            return
        first = first or label
    raise _all_broken(split, sampled, first)


def _sampled(split: _Split) -> np.ndarray:
    count = len(split)
    return np.arange(min(count, _MOST), dtype=np.int64) * count // min(count, _MOST)


def _label(split: _Split, record: int) -> int | ValueError:
    """The stored label of a record, or why it is broken."""
    try:
        encoded, label = split.read(record)
        image_header.read(encoded)
    except ValueError as error:
        return error
    return label


def _all_broken(split: _Split, sampled: np.ndarray, why: ValueError) -> ValueError:
    return ValueError(
        f"{split.where(int(sampled[0]))}: expected an image and its label; all "
        f"{len(sampled)} records that were tried are broken, this one because "
        f"{why}: prepare the data again."
    )


def check(split: _Split, sample: LabelSample, classes: int, label_offset: int) -> None:
    """Refuses labels that are no class.

    Args:
      split: that the sample is of.
      sample: of its labels.
      classes: every label less `label_offset` must lie in 0 ... classes - 1.
      label_offset: subtracted from the stored labels.

    Raises:
      ValueError: one does not; the text names the record and what would fit.
    """
    labels = sample.label
    wrong = (labels < label_offset) | (labels >= label_offset + classes)
    if not wrong.any():
        return
    first = int(np.argmax(wrong))
    smallest, largest = int(labels.min()), int(labels.max())
    if largest - smallest < classes:
        # Any from largest - classes + 1 to smallest: the one nearest to 0.
        fits = min(max(0, largest - classes + 1), smallest)
        to_do = f"set --label_offset={fits}, which fits"
    else:
        to_do = "there must be more classes, or other labels"
    raise ValueError(
        f"{split.where(int(sample.record[first]))}: the stored label must be from "
        f"{label_offset} to {label_offset + classes - 1}, since there are {classes} "
        f"classes and --label_offset={label_offset}, but is {labels[first]}, and "
        f"labels from {smallest} to {largest} were found: {to_do}."
    )
