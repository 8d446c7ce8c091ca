"""A folder of shards named as the Model Garden and tools/prepare_imagenet.py name them.

    train-00000-of-01024 ... validation-00000-of-00128 ... labels.txt manifest.json

No TensorFlow.
"""

import collections
import os
import re

LABELS_FILE = "labels.txt"


def list_names(data_dir: str) -> list[str]:
    """Names of what is in the folder, sorted, hidden ones left out.

    Raises:
      ValueError: it is no folder, or cannot be read.
    """
    try:
        return sorted(name for name in os.listdir(data_dir) if name[0] != ".")
    except (OSError, ValueError) as error:  # ValueError: no path at all
        raise ValueError(
            "--data_dir must be a folder with the shards train-00000-of-..... and "
            f"validation-00000-of-.....; received {data_dir}: "
            f"{getattr(error, 'strerror', None) or error}."
        ) from error


def shards(data_dir: str, names: list[str], split: str) -> list[str]:
    """Paths of a split's shards, after checking that all of -of-N are there.

    Args:
      data_dir: the folder.
      names: of what is in it, see `list_names`.
      split: "train" or "validation".

    Raises:
      ValueError: shards are missing, or there are too many.
    """
    numbers = collections.defaultdict(dict)  # N: {shard: file name}
    for name in names:
        if match := re.fullmatch(rf"{split}-(\d{{5}})-of-(\d{{5}})", name, re.ASCII):
            numbers[int(match[2])][int(match[1])] = name
    if not numbers:
        raise ValueError(
            f"{data_dir}: expected the {split} shards {split}-00000-of-..... and so "
            f"on; {_there(names)}{_other_dataset(data_dir, names)}."
        )
    if len(numbers) > 1:
        totals = ", ".join(f"-of-{total:05d}" for total in sorted(numbers))
        raise ValueError(
            f"{data_dir}: expected one set of {split} shards; found several "
            f"({totals}): remove those that do not belong here."
        )
    ((total, files),) = numbers.items()
    if surplus := sorted(set(files) - set(range(total))):
        raise ValueError(
            f"{data_dir}: expected {split} shards numbered below {total}; found "
            f"{files[surplus[0]]}: remove it."
        )
    if missing := sorted(set(range(total)) - set(files)):
        first = [f"{split}-{shard:05d}-of-{total:05d}" for shard in missing[:5]]
        rest = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ValueError(
            f"{data_dir}: expected {total} {split} shards; found {len(files)}, and "
            f"{', '.join(first)}{rest} missing: complete the folder."
        )
    return [os.path.join(data_dir, files[shard]) for shard in range(total)]


def labels(data_dir: str) -> tuple[str, ...]:
    """Names of the classes, from labels.txt.

    Raises:
      ValueError: the file is missing, or is no list of names.
    """
    path = os.path.join(data_dir, LABELS_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        raise ValueError(
            f"{path}: required to know the classes, and not there: add it with the "
            "name of one class a line, that of class 0 first."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: must be readable UTF-8 text: {error}.") from error
    names = tuple(line.strip() for line in lines)
    if not names:
        raise ValueError(
            f"{path}: expected the name of one class a line; the file is empty."
        )
    if "" in names:
        raise ValueError(
            f"{path}: expected the name of one class a line; line "
            f"{names.index('') + 1} is empty: remove it or name the class."
        )
    return names


def _there(names: list[str]) -> str:
    """The content of a folder in a few words."""
    if not names:
        return "the folder is empty"
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"found {', '.join(names[:5])}{rest}"


def _other_dataset(data_dir: str, names: list[str]) -> str:
    """What to do with what is there instead."""
    for name in names:
        if match := re.match(r"(\w+)-train\.tfrecord-\d{5,}-of-\d{5,}", name):
            return f": use --dataset=tfds:{match[1]}"
    if "imagenet2012" in names:
        return ": use --dataset=tfds:imagenet2012"
    if any(name.endswith(".tar") for name in names):
        return ": prepare the archives with tools/prepare_imagenet.py"
    if os.path.isdir(os.path.join(data_dir, "train")):
        return ": use --dataset=folder for a folder per class"
    return ""
