"""The classes of the validation images: a list, Kaggle's table, or the devkit."""

import csv
import io
import os
import re
import stat
import tarfile
from collections.abc import Sequence
from typing import NamedTuple

_MOST_BYTES = 1 << 28  # the devkit has 2.5 MB
_GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
EXPECTED = (
    "a text file with a synset a line in the order of the file names, Kaggle's "
    "LOC_val_solution.csv, or ILSVRC2012_devkit_t12.tar.gz"
)


class Labels(NamedTuple):
    """What a file of labels says.

    Attributes:
      synsets: each image's class, in the order of the names.
      words: what classes are called, where the file says so.
    """

    synsets: list[str]
    words: dict[str, str]


def read(path: str, names: Sequence[str]) -> Labels:
    """The classes of validation images.

    Args:
      path: see the module.
      names: the images' file names, sorted.

    Raises:
      ValueError: the file cannot be read, is something else, or does not label each
        image once.
    """
    try:
        # A pipe would be waited for, without an end.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(
                f"--validation_labels must be {EXPECTED}; {path} is no file"
            )
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    words: dict[str, str] = {}
    if len(data) == _MOST_BYTES:
        raise ValueError(f"--validation_labels must be {EXPECTED}; {path} is too large")
    if data[:2] == b"\x1f\x8b" or data[257:262] == b"ustar":
        synsets, words = _devkit(path, data)
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError(
                f"--validation_labels must be {EXPECTED}; {path} is none of them"
            ) from None
        if not text.strip():
            raise ValueError(f"--validation_labels must be {EXPECTED}; {path} is empty")
        if text.startswith("ImageId,"):
            return Labels(_kaggle(path, text, names), words)
        synsets = [line.strip() for line in text.strip().splitlines()]
        if all(re.fullmatch("[0-9]+", line) for line in synsets):
            raise ValueError(
                f"--validation_labels must be {EXPECTED}; {path} holds numbers, whose "
                "meaning only the devkit knows: name the devkit"
            )
    if len(synsets) != len(names):
        raise ValueError(
            f"{path} must label each validation image, but holds {len(synsets):,} "
            f"labels for {len(names):,} images"
        )
    return Labels(synsets, words)


def _kaggle(path: str, text: str, names: Sequence[str]) -> list[str]:
    """From lines "ILSVRC2012_val_00000001,n01751748 111 108 411 293"."""
    try:
        table = csv.DictReader(io.StringIO(text))
        rows = list(table)
    except csv.Error as error:
        raise ValueError(
            f"--validation_labels must be {EXPECTED}; {path} is no table: {error}"
        ) from error
    if "PredictionString" not in table.fieldnames:
        raise ValueError(
            f"{path} must have the columns ImageId and PredictionString, as Kaggle's "
            f"LOC_val_solution.csv has, but has {', '.join(table.fieldnames)}"
        )
    classes = {
        row["ImageId"]: (row["PredictionString"] or "").split(" ")[0] for row in rows
    }
    stems = [name.rpartition(".")[0] for name in names]
    missing = [name for name, stem in zip(names, stems) if stem not in classes]
    if missing or len(rows) != len(names):
        example = f", and none for {missing[0]}" if missing else ""
        raise ValueError(
            f"{path} must label each validation image, but holds {len(rows):,} labels "
            f"for {len(names):,} images{example}"
        )
    return [classes[stem] for stem in stems]


def _devkit(path: str, data: bytes) -> tuple[list[str], dict[str, str]]:
    """Synsets and words from meta.mat and the list of class numbers (1 to 1000)."""
    try:
        import scipy.io
    except ImportError:
        raise ValueError(
            "reading the devkit needs scipy: install it with pip install scipy, or use "
            "another file of labels"
        ) from None
    files = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                base = member.name.rpartition("/")[2]
                if member.isreg() and base in ("meta.mat", _GROUND_TRUTH):
                    files[base] = tar.extractfile(member).read()
        meta = scipy.io.loadmat(io.BytesIO(files["meta.mat"]), squeeze_me=True)
        synsets, words = {}, {}
        for one in meta["synsets"].reshape(-1):
            if int(one["num_children"]) == 0:
                synsets[int(one["ILSVRC2012_ID"])] = str(one["WNID"])
                words[str(one["WNID"])] = " ".join(str(one["words"]).split())
        numbers = [int(line) for line in files[_GROUND_TRUTH].split()]
        return [synsets[number] for number in numbers], words
    # A MATLAB file of another kind fails in many ways.
    except Exception as error:
        raise ValueError(
            f"--validation_labels must be {EXPECTED}; {path} is no complete devkit "
            f"({type(error).__name__}: {error})"
        ) from error
