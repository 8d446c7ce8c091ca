"""Where the records come from: embedded, prepared shards, TFDS, or a folder per class.

No TensorFlow here: data that cannot be used are refused before TensorFlow starts.
"""

import dataclasses
import importlib.resources
import os
from typing import Protocol

import numpy as np

from tf_goyal import (
    image_folder,
    label_sample,
    manifest,
    shard_folder,
    shards,
    tfds_folder,
)

DATASETS = ("digits", "imagenet", "tfrecord", "folder", "tfds:NAME")

# §5.1: 1000 classes, about 1.28 million training and 50,000 validation images.
IMAGENET_CLASSES = 1000
IMAGENET_IMAGES = {"train": 1_281_167, "validation": 50_000}

SPLITS = ("train", "validation")


class Split(Protocol):
    """One split's records, numbered from 0; safe to read from several threads.

    Attributes:
      name: "train" or "validation".
      files: paths of the shards, or of the classes' folders.
      part_sizes: int64 [files], records in each; the records lie in this order.
      bytes: of all records.
    """

    name: str

    @property
    def files(self) -> tuple[str, ...]: ...
    @property
    def part_sizes(self) -> np.ndarray: ...
    @property
    def bytes(self) -> int: ...

    def __len__(self) -> int: ...

    def read(self, record: int) -> tuple[bytes, int]:
        """Encoded image and stored label; raises `records.BadRecord`."""
        ...

    def will_read(self, record: int) -> None:
        """Lets the system fetch a record meanwhile."""
        ...

    def where(self, record: int) -> str:
        """A record's place, for people."""
        ...


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


def load(
    name: str, data_dir: str = "", *, verify: bool = True, label_offset: int = 0
) -> Dataset:
    """Finds and numbers the records of a data set.

    Args:
      name: "digits": the handwritten digits inside this package. "imagenet" or
        "tfrecord": the folder `data_dir` with shards named as the Model Garden names
        them, `train-00000-of-01024` and `validation-00000-of-00128`, and with
        `labels.txt`, line i + 1 of which names class i. For "imagenet" the counts
        must be ImageNet's (§5.1), and without `labels.txt` the classes are called
        "0" ... "999". "folder": `data_dir` has a folder per class in `train` and in
        `validation`, `val` or `test`. "tfds:NAME[/CONFIG][:VERSION]": what TFDS
        prepared under `data_dir`, evaluated on its validation split, or else its test
        split.
      data_dir: the folder; empty for "digits".
      verify: whether to compare each record with its checksum.
      label_offset: subtracted from the stored labels to get classes.

    Raises:
      ValueError: unknown name; folder, split, shards or labels missing; unreadable
        files; other counts than there should be; labels that are no classes; no good
        image among those that are tried.
    """
    if name not in DATASETS[:-1] and not name.startswith("tfds:"):
        raise ValueError(
            f"--dataset must be one of {', '.join(DATASETS)} (NAME: as in the catalog "
            f"of TFDS); received {name!r}."
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
        raise ValueError(f"--dataset={name} requires --data_dir, {_folder_of(name)}.")
    if name == "folder":
        if label_offset:
            raise ValueError(
                "--dataset=folder numbers the classes itself and requires "
                f"--label_offset=0; received {label_offset}: leave it out."
            )
        train, validation, labels = image_folder.load(data_dir)
        for split in (train, validation):
            label_sample.require_image(split)
        return Dataset(name, train, validation, labels)
    if name.startswith("tfds:"):
        train, validation, labels = _tfds(name, data_dir, verify)
    else:
        train, validation, labels = _shards(name, data_dir, verify)
    for split, sample in (train, validation):
        label_sample.check(split, sample, len(labels), label_offset)
    return Dataset(name, train[0], validation[0], labels)


def _folder_of(name: str) -> str:
    if name == "folder":
        return (
            "the folder with train and validation in it, and a folder for each class "
            "in these; received none"
        )
    if name.startswith("tfds:"):
        return (
            "the folder that TFDS prepares its data in; received none (TFDS takes "
            "~/tensorflow_datasets if nothing else is said)"
        )
    return (
        "the folder with the shards train-00000-of-..... and "
        "validation-00000-of-.....; received none"
    )


_Loaded = tuple[shards.ShardSplit, label_sample.LabelSample]


def _tfds(
    name: str, data_dir: str, verify: bool
) -> tuple[_Loaded, _Loaded, tuple[str, ...]]:
    found = tfds_folder.find(name, data_dir)
    loaded = []
    for split in SPLITS:
        counts = found.counts[split]
        loaded.append(
            shards.load(
                split,
                found.folder,
                list(counts),
                features=found.features,
                verify=verify,
            )
        )
        shards.require_counts(loaded[-1][0], counts, found.info)
    train, validation = loaded
    return train, validation, found.labels


def _shards(
    name: str, data_dir: str, verify: bool
) -> tuple[_Loaded, _Loaded, tuple[str, ...]]:
    names = shard_folder.list_names(data_dir)
    files = {split: shard_folder.shards(data_dir, names, split) for split in SPLITS}
    if name == "imagenet" and shard_folder.LABELS_FILE not in names:
        labels = tuple(str(label) for label in range(IMAGENET_CLASSES))
    else:
        labels = shard_folder.labels(data_dir)
    if name == "imagenet" and len(labels) != IMAGENET_CLASSES:
        raise ValueError(
            f"{os.path.join(data_dir, shard_folder.LABELS_FILE)}: --dataset=imagenet "
            f"requires {IMAGENET_CLASSES} lines; found {len(labels)}: correct it, or "
            "use --dataset=tfrecord for a subset."
        )
    prepared = manifest.read(data_dir)
    if prepared and prepared.classes != len(labels):
        raise ValueError(
            f"{prepared.path}: expected {prepared.classes} classes; the names of "
            f"{len(labels)} were found: correct {shard_folder.LABELS_FILE}."
        )
    if prepared and shard_folder.LABELS_FILE in names:
        manifest.require_labels(
            prepared, os.path.join(data_dir, shard_folder.LABELS_FILE)
        )
    loaded = {}
    for split in SPLITS:
        if prepared:
            manifest.require_files(prepared, split, files[split])
        loaded[split] = shards.load(
            split, data_dir, files[split], verify=verify, cached=name != "digits"
        )
        if prepared:
            written = prepared.shards[split]
            counts = {f: written[os.path.basename(f)].records for f in files[split]}
            shards.require_counts(loaded[split][0], counts, prepared.path)
    if name == "imagenet":
        _require_imagenet(data_dir, loaded, prepared)
    return loaded["train"], loaded["validation"], labels


def _require_imagenet(
    data_dir: str, loaded: dict[str, _Loaded], prepared: manifest.Manifest | None
) -> None:
    # Images that could not be used are named in the manifest, and count as known.
    left_out = prepared.left_out if prepared else {}
    found = {s: len(split) + left_out.get(s, 0) for s, (split, _) in loaded.items()}
    if found != IMAGENET_IMAGES:
        raise ValueError(
            f"--dataset=imagenet requires {_counts(IMAGENET_IMAGES)} records; "
            f"{data_dir} holds {_counts(found)}: complete it, or use "
            "--dataset=tfrecord for a subset."
        )


def _counts(records_of: dict[str, int]) -> str:
    return " and ".join(f"{count:,} {split}" for split, count in records_of.items())
