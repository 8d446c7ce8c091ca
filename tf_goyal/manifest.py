"""manifest.json, which tools/prepare_imagenet.py writes beside its shards.

No TensorFlow.
"""

import dataclasses
import hashlib
import json
import os
import re
from typing import Any

NAME = "manifest.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Shard:
    """What was written to a shard.

    Attributes:
      records: number of them.
      bytes: of the file.
    """

    records: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What was written to a folder.

    Attributes:
      path: of the manifest.
      classes: number of them.
      shards: of each split, by file name without folder.
      left_out: of each split, the number of images that could not be used.
      labels_sha256: of the bytes of labels.txt, in hexadecimal; None in a manifest
        that does not have it.
      content: all of the file; only what is above was checked.
    """

    path: str
    classes: int
    shards: dict[str, dict[str, Shard]]
    left_out: dict[str, int]
    labels_sha256: str | None
    content: dict[str, Any]


def read(folder: str) -> Manifest | None:
    """The manifest of a folder, if it has one.

    Raises:
      ValueError: it is none of the preparation tool.
    """
    path = os.path.join(folder, NAME)
    if not os.path.lexists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}")
        return Manifest(
            path=path,
            classes=_whole(found["classes"]),
            shards={
                split: {
                    os.path.basename(shard["file"]): Shard(
                        _whole(shard["records"]), _whole(shard["bytes"])
                    )
                    for shard in content["shards"]
                }
                for split, content in found["splits"].items()
            },
            left_out={
                split: len(content.get("left_out", ()))
                for split, content in found["splits"].items()
            },
            labels_sha256=_sha256(found.get("labels_sha256")),
            content=found,
        )
    except OSError as error:
        reason = error.strerror
    except KeyError as error:
        reason = f"it has no {error}"
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        reason = str(error)
    raise ValueError(
        f"{path}: expected the manifest of tools/prepare_imagenet.py, format "
        f"{FORMAT}: {reason}: prepare the data again, or remove this file to use the "
        "shards unchecked."
    )


def require_files(manifest: Manifest, split: str, files: list[str]) -> None:
    """Refuses shards that are not those which were written.

    Args:
      manifest: of their folder.
      split: "train" or "validation".
      files: paths of the shards that are there.

    Raises:
      ValueError: a shard is missing, not in the manifest, or of another size.
    """
    written = manifest.shards.get(split, {})
    there = {os.path.basename(file): file for file in files}
    for name in sorted(written.keys() ^ there.keys()):
        what = "there" if name in there else "missing"
        raise ValueError(
            f"{manifest.path}: expected the {split} shards to be those it lists; "
            f"{name} is {what}: complete the folder or prepare the data again."
        )
    for name, file in there.items():
        try:
            size = os.path.getsize(file)
        except OSError as error:
            raise ValueError(
                f"{file}: cannot be read: {error.strerror}; check its permissions."
            ) from error
        if size != written[name].bytes:
            raise ValueError(
                f"{file}: expected {written[name].bytes} bytes, as {manifest.path} "
                f"says; found {size}: copy or prepare this file again."
            )


def require_labels(manifest: Manifest, path: str) -> None:
    """Refuses names of the classes that are not those which were written.

    In another order they would name other classes, and no count would tell.

    Args:
      manifest: of the folder.
      path: of its labels.txt.

    Raises:
      ValueError: the file has other bytes, or cannot be read.
    """
    if manifest.labels_sha256 is None:
        return
    try:
        with open(path, "rb") as file:
            found = hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read: {error.strerror}; check its permissions."
        ) from error
    if found != manifest.labels_sha256:
        raise ValueError(
            f"{path}: expected the SHA-256 {manifest.labels_sha256}, as "
            f"{manifest.path} says; found {found}: the names of the classes or their "
            "order changed; copy this file again."
        )


def _sha256(value: object) -> str | None:
    if value is not None and not (
        isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)
    ):
        raise ValueError(f"its labels_sha256 is {value!r:.80}")
    return value


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number")
    return value
