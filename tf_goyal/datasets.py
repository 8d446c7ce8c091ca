"""Where the records come from: the embedded digits, or a folder of TFRecord shards.

Each record is a `tf.train.Example` with `image/encoded` (bytes of a JPEG) and
`image/class/label` (int64). No TensorFlow here: a wrong folder is refused before
TensorFlow starts.
"""

import collections
import dataclasses
import functools
import importlib.resources
import os
import re

from tf_goyal import records

DATASETS = ("digits", "imagenet", "tfrecord")

# §5.1: 1000 classes, about 1.28 million training and 50,000 validation images.
_IMAGENET_CLASSES = 1000
_IMAGENET_RECORDS = {"train": 1_281_167, "validation": 50_000}

_SPLITS = ("train", "validation")
_LABELS_FILE = "labels.txt"


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """One split's records.

    Attributes:
      name: "train" or "validation".
      index: where each record lies; record r of the split is record r of the index.
    """

    name: str
    index: records.Index

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the shards, sorted."""
        return self.index.files

    @functools.cached_property
    def reader(self) -> records.Reader:
        """Reads the records; one for the process, so that files are opened once."""
        return records.Reader(self.index)

    def __len__(self) -> int:
        """Number of images."""
        return len(self.index)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Two splits and the names of the classes: class i is called `labels[i]`."""

    name: str
    train: Split
    validation: Split
    labels: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """Labels are 0 ... num_classes - 1 (after --label_offset)."""
        return len(self.labels)


def load(name: str, data_dir: str = "") -> Dataset:
    """Finds and numbers the records of a data set.

    Args:
      name: "digits": the handwritten digits inside this package. "imagenet" or
        "tfrecord": the folder `data_dir` with shards named as the Model Garden names
        them, `train-00000-of-01024` and `validation-00000-of-00128`, and with
        `labels.txt`, line i + 1 of which names class i. For "imagenet" the counts
        must be ImageNet's (§5.1), and without `labels.txt` the classes are called
        "0" ... "999".
      data_dir: folder of the shards; empty for "digits".

    Raises:
      ValueError: unknown name; folder, split, shards or labels missing; unreadable
        files; other counts than ImageNet's.
    """
    if name not in DATASETS:
        raise ValueError(
            f"--dataset must be one of {', '.join(DATASETS)}; received {name!r}."
        )
    if name == "digits":
        if data_dir:
            raise ValueError(
                "--dataset=digits is part of the package and takes no --data_dir; "
                f"received --data_dir={data_dir}: leave it out, or choose "
                "--dataset=tfrecord."
            )
        package = importlib.resources.files("tf_goyal")
        data_dir = os.fspath(package / "data" / "digits")
    elif not data_dir:
        raise ValueError(
            f"--dataset={name} requires --data_dir, the folder with the shards "
            "train-00000-of-..... and validation-00000-of-.....; received none."
        )
    names = _list(data_dir)
    shards = {split: _shards(data_dir, names, split) for split in _SPLITS}
    labels = _labels(name, data_dir, names)
    train, validation = (
        Split(split, records.index_files(shards[split])) for split in _SPLITS
    )
    for split in (train, validation):
        if not len(split):
            raise ValueError(
                f"{data_dir}: the {split.name} shards hold no record; prepare them "
                "again."
            )
    found = {"train": len(train), "validation": len(validation)}
    if name == "imagenet" and found != _IMAGENET_RECORDS:
        raise ValueError(
            f"--dataset=imagenet requires {_counts(_IMAGENET_RECORDS)} records; "
            f"{data_dir} holds {_counts(found)}: complete it, or use "
            "--dataset=tfrecord for a subset."
        )
    return Dataset(name, train, validation, labels)


def _counts(records_of: dict[str, int]) -> str:
    return " and ".join(f"{count:,} {split}" for split, count in records_of.items())


def _list(data_dir: str) -> list[str]:
    try:
        return sorted(os.listdir(data_dir))
    except OSError as error:
        raise ValueError(
            "--data_dir must be a folder with the shards train-00000-of-..... and "
            f"validation-00000-of-.....; received {data_dir}: {error.strerror}."
        ) from error


def _there(names: list[str]) -> str:
    """The content of a folder in a few words."""
    if not names:
        return "the folder is empty"
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"found {', '.join(names[:5])}{rest}"


def _shards(data_dir: str, names: list[str], split: str) -> list[str]:
    """Paths of a split's shards, after checking that all of -of-N are there."""
    numbers = collections.defaultdict(dict)  # N: {shard: file name}
    for name in names:
        if match := re.fullmatch(rf"{split}-(\d{{5}})-of-(\d{{5}})", name):
            numbers[int(match[2])][int(match[1])] = name
    if not numbers:
        raise ValueError(
            f"{data_dir}: expected the {split} shards {split}-00000-of-..... and so "
            f"on; {_there(names)}."
        )
    if len(numbers) > 1:
        totals = ", ".join(f"-of-{total:05d}" for total in sorted(numbers))
        raise ValueError(
            f"{data_dir}: expected one set of {split} shards; found several "
            f"({totals}): remove those that do not belong here."
        )
    ((total, shards),) = numbers.items()
    if surplus := sorted(set(shards) - set(range(total))):
        raise ValueError(
            f"{data_dir}: expected {split} shards numbered below {total}; found "
            f"{shards[surplus[0]]}: remove it."
        )
    if missing := sorted(set(range(total)) - set(shards)):
        first = [f"{split}-{shard:05d}-of-{total:05d}" for shard in missing[:5]]
        rest = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ValueError(
            f"{data_dir}: expected {total} {split} shards; found {len(shards)}, and "
            f"{', '.join(first)}{rest} missing: complete the folder."
        )
    return [os.path.join(data_dir, shards[shard]) for shard in range(total)]


def _labels(dataset: str, data_dir: str, names: list[str]) -> tuple[str, ...]:
    path = os.path.join(data_dir, _LABELS_FILE)
    if _LABELS_FILE not in names:
        if dataset == "imagenet":
            return tuple(str(label) for label in range(_IMAGENET_CLASSES))
        raise ValueError(
            f"{path}: required to know the classes, and not there: add it with the "
            "name of one class a line, that of class 0 first."
        )
    try:
        with open(path, encoding="utf-8") as file:
            labels = tuple(line.strip() for line in file.read().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: must be readable UTF-8 text: {error}.") from error
    if "" in labels:
        raise ValueError(
            f"{path}: expected the name of one class a line; line "
            f"{labels.index('') + 1} is empty: remove it or name the class."
        )
    if dataset == "imagenet" and len(labels) != _IMAGENET_CLASSES:
        raise ValueError(
            f"{path}: --dataset=imagenet requires {_IMAGENET_CLASSES} lines; found "
            f"{len(labels)}: correct it, or use --dataset=tfrecord for a subset."
        )
    if not labels:
        raise ValueError(
            f"{path}: expected the name of one class a line; the file is empty."
        )
    return labels
