"""What is expected of the images, and what is there, before anything is written."""

import concurrent.futures
import functools
import importlib.util
import os
import stat
from pathlib import Path

import image_sources
import validation_labels
from absl import flags as absl_flags
from image_sources import Image, Source
from preparation_journal import NAME as JOURNAL
from rich.console import Console
from rich.table import Table

from tf_goyal import manifest, storage
from tf_goyal.datasets import IMAGENET_CLASSES, IMAGENET_IMAGES, SPLITS

_RECORD_BYTES = 400  # of a record beside the image, at most about
_SOURCES = {
    "train": "ILSVRC2012_img_train.tar or a folder per class",
    "validation": "ILSVRC2012_img_val.tar or a folder",
}


class Preflight:
    """What is expected and what is there, as a table."""

    def __init__(self, expected: dict[str, str]):
        self._rows = {name: (text, "not looked at") for name, text in expected.items()}

    def found(self, name: str, text: str) -> None:
        """Notes what is there."""
        self._rows[name] = (self._rows[name][0], text)

    def show(self) -> None:
        """Prints it; lines are wrapped on a terminal only."""
        console = Console(highlight=False, markup=False, emoji=False)
        if not console.is_terminal:
            console.width = 1000  # characters
        table = Table("", "expected", "found", box=None, pad_edge=False)
        for name, row in self._rows.items():
            table.add_row(name, *row)
        console.print(table)


def preflight(
    values: absl_flags.FlagValues, data_dir: Path, pool: concurrent.futures.Executor
) -> tuple[dict[str, list[Image]], dict[str, str]]:
    """Finds all images and checks all that can be, and prints it; writes nothing.

    Args:
      values: the flags of prepare_imagenet.
      data_dir: of the shards.
      pool: reads the archives' headers.

    Returns:
      Each split's images, whose folders are their classes, and the words for classes
      that the labels' file knows.

    Raises:
      ValueError: something is missing, or is not what it should be.
    """
    if importlib.util.find_spec("PIL") is None:
        raise ValueError("Pillow is needed: install it with pip install pillow")
    imagenet = values.expect_imagenet
    count = {
        split: f"{IMAGENET_IMAGES[split]:,}" if imagenet else "any" for split in SPLITS
    }
    table = Preflight(
        {
            "train": f"--train_archive or --train_dir: {_SOURCES['train']}",
            "validation": "--validation_archive or --validation_dir: "
            f"{_SOURCES['validation']}",
            "validation labels": "--validation_labels, or class folders",
            "classes": f"{IMAGENET_CLASSES:,}" if imagenet else "any",
            "train images": count["train"],
            "validation images": count["validation"],
            "output folder": "new, empty or a part of this preparation",
            "free disk": "as much as the images",
        }
    )
    try:
        paths = {split: _path(values, split) for split in SPLITS}
        problems = []
        for split, path in paths.items():
            problem = _kind_problem(split, path, bool(values[f"{split}_dir"].value))
            table.found(split, f"{path}{': not that' if problem else ''}")
            problems += [problem] if problem else []
        if problems:
            raise ValueError(problems[0])
        table.found("output folder", _output_folder(data_dir))
        found = {}
        for split, path in paths.items():
            found[split] = _source(values, split, path, pool)
            table.found(f"{split} images", _counted(found[split]))
        classes = _classes(found["train"], paths["train"])
        table.found("classes", f"{len(classes):,}")
        validation, words, text = _labelled(
            found["validation"].images, classes, values.validation_labels
        )
        table.found("validation labels", text)
        images = {"train": found["train"].images, "validation": validation}
        counts = {split: len(images[split]) for split in SPLITS}
        if imagenet:
            require_imagenet(len(classes), counts)
        need = sum(
            image.size + _RECORD_BYTES for split in SPLITS for image in images[split]
        )
        need -= sum(path.stat().st_size for path in data_dir.glob("*-of-*"))
        need = max(need, 0)
        free = storage.free_bytes(data_dir)
        table.found("free disk", f"{in_words(free)}, {in_words(need)} needed")
        if need > free:
            raise ValueError(
                f"{data_dir} needs {in_words(need)} of disk, but {in_words(free)} are "
                f"free, {in_words(need - free)} too little: free some, or name another "
                "--data_dir"
            )
        return images, words
    finally:
        table.show()


def still_there(
    values: absl_flags.FlagValues, pool: concurrent.futures.Executor
) -> tuple[dict[str, list[Image]], list[str]]:
    """The images of a finished folder, as far as they are named and still there.

    Args:
      values: the flags of prepare_imagenet.
      pool: reads the archives' headers.

    Returns:
      The images of some splits, in their classes, and for each other split a sentence
      that says why it was not looked at.

    Raises:
      ValueError: something is there, but is not what it should be.
    """
    found: dict[str, list[Image]] = {}
    missing = []
    classes: set[str] = set()
    for split in SPLITS:
        named = values[f"{split}_archive"].value or values[f"{split}_dir"].value
        needs = [_path(values, split)] if named else []
        if split == "validation" and values.validation_labels:
            needs.append(values.validation_labels)
        gone = [path for path in needs if not os.path.exists(path)]
        if not named or gone or (split == "validation" and not classes):
            why = "they are not named" if not named else "the train images were not"
            why = f"{gone[0]} is not there" if gone else why
            missing.append(f"the {split} images were not looked at: {why}")
            continue
        problem = _kind_problem(split, needs[0], bool(values[f"{split}_dir"].value))
        if problem:
            raise ValueError(problem)
        source = _source(values, split, needs[0], pool)
        if split == "train":
            classes, found[split] = _classes(source, needs[0]), source.images
        else:
            labels = values.validation_labels
            found[split] = _labelled(source.images, classes, labels)[0]
    return found, missing


def require_imagenet(classes: int, counts: dict[str, int]) -> None:
    """Raises ValueError if the numbers of classes and images are not ImageNet's."""
    if counts != IMAGENET_IMAGES or classes != IMAGENET_CLASSES:
        raise ValueError(
            f"ImageNet has {IMAGENET_CLASSES:,} classes, {IMAGENET_IMAGES['train']:,} "
            f"train and {IMAGENET_IMAGES['validation']:,} validation images, but found "
            f"{classes:,}, {counts['train']:,} and {counts['validation']:,}: "
            "complete the download, or say --noexpect_imagenet for another set"
        )


def in_words(size: int) -> str:
    """A number of bytes in the unit that leaves something before the point."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"


def _source(
    values: absl_flags.FlagValues,
    split: str,
    path: str,
    pool: concurrent.futures.Executor,
) -> Source:
    """What the archive or folder of a split holds."""
    if values[f"{split}_dir"].value:
        return image_sources.folder(path)
    each = functools.partial(pool.map, chunksize=8)
    return image_sources.archive(path, split, each)


def _path(values: absl_flags.FlagValues, split: str) -> str:
    """The one path that a split's images are named by."""
    given = [values[f"{split}_archive"].value, values[f"{split}_dir"].value]
    if bool(given[0]) == bool(given[1]):
        raise ValueError(
            f"the {split} images must be named by --{split}_archive or --{split}_dir "
            f"({_SOURCES[split]}), got {'both' if given[0] else 'neither'}"
        )
    return given[0] or given[1]


def _kind_problem(split: str, path: str, wants_folder: bool) -> str:
    """What is wrong with the path of a split's images, or an empty text."""
    flag = f"--{split}_{'dir' if wants_folder else 'archive'}"
    if not os.path.exists(path):
        return f"{flag} must name {_SOURCES[split]}, but {path} is not there"
    if not os.path.isdir(path) and not stat.S_ISREG(os.stat(path).st_mode):
        return f"{flag} must name {_SOURCES[split]}, but {path} is no file"
    if os.path.isdir(path) == wants_folder:
        return ""
    if wants_folder:
        return f"{flag} must be a folder: name the file {path} with --{split}_archive"
    return (
        f"{flag} must be a tar or zip archive: name the folder {path} with "
        f"--{split}_dir"
    )


def _output_folder(folder: Path) -> str:
    """What is there; raises ValueError if nothing can be written to it."""
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(
            f"--data_dir must be a folder that can be written, but {nearest} cannot: "
            "change its permissions, or name another"
        )
    if not folder.exists():
        return "new"
    if (folder / manifest.NAME).exists():
        return "finished by another process in this moment"
    if (folder / JOURNAL).exists():
        return "a part of a preparation"
    first = next(iter(sorted(folder.iterdir())), None)
    if first:
        raise ValueError(
            f"--data_dir must be a new or empty folder, or hold a part of this "
            f"preparation, but {folder} holds {first.name}: name another"
        )
    return "empty"


def _counted(source: Source) -> str:
    others = f", and {source.others:,} other files" if source.others else ""
    size = sum(image.size for image in source.images)
    return f"{len(source.images):,} ({in_words(size)}){others}"


def _classes(source: Source, path: str) -> set[str]:
    """The names of the classes."""
    images = source.images
    if not images:
        raise ValueError(f"{path} must hold {_SOURCES['train']}, but holds no images")
    stray = next((image for image in images if not image.folder), None)
    if stray:
        raise ValueError(
            f"{path} must hold a tar or a folder per class, but holds {stray.name} "
            "outside of one: is it the validation or test set?"
        )
    if source.empty:
        more = len(source.empty) - 1
        raise ValueError(
            f"{path} must hold images of each class, but {source.empty[0]}"
            f"{f' and {more:,} more hold' if more else ' holds'} none: complete it, or "
            "take out what is no class"
        )
    classes = {image.folder for image in images}
    odd = next((name for name in classes if not name.isprintable()), None)
    if odd:
        raise ValueError(
            f"a class must have a name without control characters: {odd!r}"
        )
    return classes


def _labelled(
    images: list[Image], classes: set[str], labels: str | None
) -> tuple[list[Image], dict[str, str], str]:
    """The validation images in their classes, words for classes, and how it went."""
    if not images:
        raise ValueError("the validation archive or folder holds no images")
    folders = {image.folder for image in images}
    if folders <= classes:
        if labels:
            raise ValueError(
                "the validation images lie in folders of their classes, so "
                "--validation_labels must be left out"
            )
        return images, {}, "class folders"
    if len(folders) == 1 and not labels:
        raise ValueError(
            "the validation images lie in no class folders, so --validation_labels "
            f"must name their classes: {validation_labels.EXPECTED}"
        )
    words: dict[str, str] = {}
    if len(folders) == 1:
        images = sorted(images)
        read = validation_labels.read(labels, [image.name for image in images])
        words = read.words
        images = [
            image._replace(folder=synset) for image, synset in zip(images, read.synsets)
        ]
    for image in images:
        if image.folder not in classes:
            raise ValueError(
                f"the validation image {image.name} must be of a class that train "
                f"has, but is of {image.folder!r}"
            )
    return images, words, f"{len(images):,} from {labels}"
