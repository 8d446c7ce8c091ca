"""A folder per class, without preparation; for small sets.

    DATA_DIR/train/CLASS/*.jpg   DATA_DIR/{validation,val,test}/CLASS/*.png

No TensorFlow.
"""

import contextlib
import functools
import os
from collections.abc import Sequence

import numpy as np

from tf_goyal.records import BadRecord
from tf_goyal.second_tries import SecondTries

_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp")  # in small and capital letters
_EVALUATION = ("validation", "val", "test")  # the first that is there


class FolderSplit:
    """One split's images; safe to read from several threads.

    Record r is the r-th in the order of the sorted class names, then file names.

    Args:
      name: "train" or "validation".
      folders: one for each class with images, in the order of their names.
      labels: of each folder's images.
      names: of each folder's images, sorted.
    """

    def __init__(
        self,
        name: str,
        folders: Sequence[str],
        labels: Sequence[int],
        names: Sequence[Sequence[str]],
    ):
        self.name = name
        self.files = tuple(folders)
        self.part_sizes = np.array([len(part) for part in names], np.int64)
        self._labels = tuple(labels)
        self._names = names
        self._ends = np.cumsum(self.part_sizes)
        self._second_tries = SecondTries()

    @functools.cached_property
    def bytes(self) -> int:
        """Of all images that are there; asks the file system for each."""
        total = 0
        for record in range(len(self)):
            with contextlib.suppress(OSError):  # gone: `read` will say so
                total += os.path.getsize(self.where(record))
        return total

    def __len__(self) -> int:
        """Number of images."""
        return int(self._ends[-1])

    def read(self, record: int) -> tuple[bytes, int]:
        """Encoded image and label.

        Raises:
          IndexError: no such number.
          records.BadRecord: the file cannot be read or is empty.
        """
        part, path = self._find(record)
        try:
            data = self._second_tries(lambda: _content(path))
        except OSError as error:
            raise BadRecord(f"the file cannot be read: {error.strerror}") from error
        if not data:
            raise BadRecord("the file is empty")
        return data, self._labels[part]

    def will_read(self, record: int) -> None:
        """Lets the system fetch an image meanwhile."""
        try:
            descriptor = os.open(self._find(record)[1], os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # `read` will say why
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)

    def where(self, record: int) -> str:
        """Path of an image."""
        return self._find(record)[1]

    def _find(self, record: int) -> tuple[int, str]:
        """Position of its folder in `files`, and its path."""
        if not 0 <= record < len(self):
            raise IndexError(
                f"Record numbers go from 0 to {len(self) - 1}; received {record}."
            )
        part = int(np.searchsorted(self._ends, record, "right"))
        name = self._names[part][record - int(self._ends[part])]  # counts from the end
        return part, os.path.join(self.files[part], name)


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def load(data_dir: str) -> tuple[FolderSplit, FolderSplit, tuple[str, ...]]:
    """Training split, validation split and the names of the classes.

    Raises:
      ValueError: a split is missing, or something in it is no class or no image.
    """
    train = os.path.join(data_dir, "train")
    evaluations = [os.path.join(data_dir, name) for name in _EVALUATION]
    there = [folder for folder in evaluations if os.path.isdir(folder)]
    if not os.path.isdir(train) or not there:
        missing = "the folder train" if not os.path.isdir(train) else "one of them"
        raise ValueError(
            f"{data_dir}: expected the folder train and one of {', '.join(_EVALUATION)}"
            f", with a folder for each class in them; {missing} is not there: complete "
            "it or correct --data_dir."
        )
    classes = _classes(train)
    images = {name: _images(os.path.join(train, name)) for name in classes}
    for name in classes:
        if not images[name]:
            raise ValueError(
                f"{os.path.join(train, name)}: each class must have images to learn "
                "from; the folder is empty: add some or remove it here and in the "
                "validation folder."
            )
    evaluated = _classes(there[0])
    if unknown := sorted(set(evaluated) - set(classes)):
        rest = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ValueError(
            f"{os.path.join(there[0], unknown[0])}{rest}: not among the "
            f"{len(classes)} classes in {train}: remove or rename the folder."
        )
    held_out = {name: _images(os.path.join(there[0], name)) for name in evaluated}
    if not any(held_out.values()):
        raise ValueError(f"{there[0]}: expected images in its folders; found none.")
    return (
        _split("train", train, classes, images),
        _split("validation", there[0], classes, held_out),
        tuple(classes),
    )


def _split(
    name: str, folder: str, classes: list[str], images: dict[str, list[str]]
) -> FolderSplit:
    present = [
        (os.path.join(folder, class_name), label, images[class_name])
        for label, class_name in enumerate(classes)
        if images.get(class_name)
    ]
    folders, labels, names = zip(*present)
    return FolderSplit(name, folders, labels, names)


def _classes(folder: str) -> list[str]:
    """Names of the class folders, sorted."""
    classes = []
    for entry in _entries(folder):
        if _kind(entry) != "a folder":
            raise ValueError(
                f"{entry.path}: expected only folders here, one for each class; this "
                "is none: move it away, or to its class."
            )
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{entry.path!a}: the name of a class must be UTF-8: rename it."
            ) from None
        classes.append(entry.name)
    if not classes:
        raise ValueError(
            f"{folder}: expected a folder for each class; found none: add them."
        )
    return sorted(classes)


def _images(folder: str) -> list[str]:
    """Names of a class' images, sorted."""
    names = []
    for entry in _entries(folder):
        kind = _kind(entry)
        if kind != "a file" or not entry.name.lower().endswith(_SUFFIXES):
            raise ValueError(
                f"{entry.path}: expected only images here ({', '.join(_SUFFIXES)}); "
                f"this is {'a folder' if kind == 'a folder' else 'something else'}: "
                "move it away, or make it one."
            )
        names.append(entry.name)
    return sorted(names)


def _kind(entry: os.DirEntry) -> str:
    """What an entry, or what it links to, is."""
    try:
        if entry.is_dir():
            return "a folder"
        return "a file" if entry.is_file() else "something else"
    except OSError as error:  # as of a link that leads to itself
        raise ValueError(
            f"{entry.path}: cannot be read: {error.strerror}; correct or remove it."
        ) from error


def _entries(folder: str) -> list[os.DirEntry]:
    """What is in a folder, but for hidden files."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise ValueError(
            f"{folder}: cannot be read: {error.strerror}; check its permissions."
        ) from error
