"""A split that is kept in TFRecord shards, whoever wrote them. No TensorFlow."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from tf_goyal import examples, index_cache, label_sample, records
from tf_goyal.label_sample import LabelSample

# Names of the features of the image and of the label: of the Model Garden's script and
# of tools/prepare_imagenet.py; of TFDS.
FEATURES = (("image/encoded", "image/class/label"), ("image", "label"))

_TRIED = 16  # records looked at for the names of their features


class ShardSplit:
    """One split's records; safe to read from several threads.

    Args:
      name: "train" or "validation".
      index: where each record lies; record r of the split is record r of the index.
      features: names of the features of the image and of the label.
      verify: whether to compare each record with its checksum.
    """

    def __init__(
        self,
        name: str,
        index: records.Index,
        features: tuple[str, str] = FEATURES[0],
        verify: bool = True,
    ):
        self.name = name
        self.index = index
        self.features = features
        self._reader = records.Reader(index, verify)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the shards, sorted."""
        return self.index.files

    @functools.cached_property
    def part_sizes(self) -> np.ndarray:
        """int64 [files], records in each shard; the records lie in this order."""
        return np.bincount(self.index.file, minlength=len(self.files)).astype(np.int64)

    @functools.cached_property
    def bytes(self) -> int:
        """Of all records whose length is known."""
        return int(np.maximum(self.index.length, 0).sum())

    def __len__(self) -> int:
        """Number of images."""
        return len(self.index)

    def read(self, record: int) -> tuple[bytes, int]:
        """Encoded image and stored label of a record.

        Raises:
          IndexError: no such number.
          records.BadRecord: it is broken, or has no image and label.
        """
        example = self._reader.read(record)
        try:
            return examples.image_and_label(example, *self.features)
        except ValueError as error:
            raise records.BadRecord(str(error)) from error

    def will_read(self, record: int) -> None:
        """Lets the system fetch a record meanwhile."""
        self._reader.will_read(record)

    def where(self, record: int) -> str:
        """A record's place, for people."""
        return self.index.where(record)


def load(
    name: str,
    folder: str,
    files: Sequence[str],
    *,
    features: tuple[str, str] | None = None,
    verify: bool = True,
    cached: bool = True,
) -> tuple[ShardSplit, LabelSample]:
    """Numbers the records of some shards and reads a sample of their labels.

    Args:
      name: "train" or "validation".
      folder: with the files in it.
      files: paths of the shards.
      features: names of the features of the image and of the label; None: those of
        `FEATURES` that the first record has.
      verify: whether to compare each record with its checksum.
      cached: whether to keep what was found for the next start.

    Raises:
      ValueError: a file is no TFRecord file; no records; other features; every sampled
        record is broken or no image.
    """

    def sample(index: records.Index) -> LabelSample:
        if not len(index):
            raise ValueError(
                f"{folder}: the {name} shards hold no record; prepare them again."
            )
        chosen = features or _features(index, verify)
        return label_sample.take(ShardSplit(name, index, chosen, verify), chosen)

    if cached:
        index, found = index_cache.load(folder, name, files, sample)
        if features and found.features != features:
            found = sample(index)
    else:
        index = records.index_files(files)
        found = sample(index)
    return ShardSplit(name, index, found.features, verify), found


def _features(index: records.Index, verify: bool) -> tuple[str, str]:
    """Those of `FEATURES` that the first record has which is not broken."""
    reader = records.Reader(index, verify)
    tried = min(len(index), _TRIED)
    first = None
    for record in range(tried):
        try:
            there = examples.names(reader.read(record))
        except ValueError as error:
            first = first or error
            continue
        for features in FEATURES:
            if set(features) <= set(there):
                return features
        raise ValueError(
            f"{index.where(record)}: expected the features image/encoded and "
            "image/class/label, or image and label; found "
            f"{', '.join(there) or 'none'}: prepare the records with these names."
        )
    raise ValueError(
        f"{index.where(0)}: expected a tf.train.Example; all {tried} records that were "
        f"tried are broken, this one because {first}: prepare them again."
    )


def require_counts(split: ShardSplit, counts: Mapping[str, int], source: str) -> None:
    """Refuses shards that do not hold the records which were written to them.

    Args:
      split: of these shards.
      counts: records of each file.
      source: file that the counts are from.

    Raises:
      ValueError: a file holds another number of records.
    """
    for file, found in zip(split.files, split.part_sizes.tolist()):
        if counts[file] != found:
            raise ValueError(
                f"{file}: expected {counts[file]} records, as {source} says; found "
                f"{found}: copy or prepare this file again."
            )
