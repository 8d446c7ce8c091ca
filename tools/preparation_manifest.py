"""What a finished preparation leaves beside its shards: labels.txt and manifest.json.

tf_goyal.manifest reads the part that training needs.
"""

import concurrent.futures
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import shard_writer
from preparation_preflight import SPLITS, in_words

from tf_goyal import manifest

OPTIONS = ("train_shards", "validation_shards", "max_side", "quality")
_LABELS = "labels.txt"
_CHUNK = 1 << 20  # bytes that are read at once


def write(
    data_dir: Path,
    options: dict[str, int],
    inputs: dict[str, str],
    labels: list[str],
    splits: dict[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    """Writes labels.txt and then manifest.json.

    Args:
      data_dir: of the shards.
      options: the values of OPTIONS.
      inputs: the checksum of each split's images.
      labels: the line of each class.
      splits: each split's journal lines in their order.

    Returns:
      What manifest.json holds.
    """
    described = {}
    for split, lines in splits.items():
        per_class = dict.fromkeys(map(str, range(len(labels))), 0)
        for line in lines:
            for label, count in line["per_class"].items():
                per_class[label] += count
        described[split] = {
            "records": sum(line["records"] for line in lines),
            "per_class": per_class,
            "shards": [
                {name: line[name] for name in ("file", "records", "bytes", "sha256")}
                for line in lines
            ],
            "left_out": [one for line in lines for one in line["left_out"]],
            "converted": [one for line in lines for one in line["converted"]],
        }
    shard_writer.write_whole(data_dir / _LABELS, "".join(f"{one}\n" for one in labels))
    whole = {
        "format": 1,
        "options": options,
        "inputs": inputs,
        "classes": len(labels),
        "labels_sha256": _sha256(data_dir / _LABELS),
        "splits": described,
    }
    text = json.dumps(whole, indent=1) + "\n"
    shard_writer.write_whole(data_dir / manifest.NAME, text)
    return whole


def read(data_dir: Path) -> dict[str, Any] | None:
    """What manifest.json holds, if it is there.

    Raises:
      ValueError: it is none of this tool, or damaged.
    """
    if manifest.read(str(data_dir)) is None:
        return None
    path = data_dir / manifest.NAME
    described = json.loads(path.read_text("utf-8"))
    try:
        numbers = [described["options"][name] for name in OPTIONS]
        checksums = [described["labels_sha256"], *map(described["inputs"].get, SPLITS)]
        labels = [str(label) for label in range(described["classes"])]
        for split in SPLITS:
            of = described["splits"][split]
            numbers += [of["records"], len(of["converted"])]
            numbers += [of["per_class"][label] for label in labels]
            checksums += [shard["sha256"] for shard in of["shards"]]
            shard_writer.named(of)
        if set(described["splits"]) != set(SPLITS):
            raise ValueError(f"its splits are {', '.join(described['splits'])}")
        if not all(type(one) is int for one in numbers):
            raise ValueError("a count or option is no whole number")
        if not all(isinstance(one, str) for one in checksums):
            raise ValueError("a checksum is no text")
        return described
    except KeyError as error:
        reason = f"it has no {error}"
    except (AttributeError, TypeError, ValueError) as error:
        reason = str(error)
    raise ValueError(
        f"{path}: expected the manifest of tools/prepare_imagenet.py: {reason}: "
        "prepare all in a new --data_dir"
    )


def require_files(data_dir: Path, described: dict[str, Any]) -> None:
    """Refuses a folder that lacks what its manifest lists; shards are not read.

    Raises:
      OSError: a file cannot be looked at.
      ValueError: a file is missing, or a shard has another size, or labels.txt is
        another.
    """
    for of in described["splits"].values():
        for shard in of["shards"]:
            path = data_dir / shard["file"]
            if not path.is_file() or path.stat().st_size != shard["bytes"]:
                raise ValueError(
                    f"{path} must be there with {shard['bytes']:,} bytes, as "
                    f"{manifest.NAME} says, but is not: prepare all in a new --data_dir"
                )
    path = data_dir / _LABELS
    if _sha256(path) != described["labels_sha256"]:
        raise ValueError(
            f"{path} must be as it was written, by the checksum in {manifest.NAME}, "
            "but is not: prepare all in a new --data_dir"
        )


def summary(described: dict[str, Any], data_dir: Path) -> str:
    """What was prepared, in lines, with all that is missing."""
    lines = []
    for split, of in described["splits"].items():
        size = sum(shard["bytes"] for shard in of["shards"])
        lines.append(
            f"{split}: {of['records']:,} images, {len(of['shards']):,} shards, "
            f"{in_words(size)}; {len(of['converted']):,} became RGB JPEGs, "
            f"{len(of['left_out']):,} left out"
        )
        lines += [f"  left out {text}" for text in shard_writer.named(of)]
    names = (data_dir / _LABELS).read_text("utf-8").split("\n")
    for label, count in described["splits"]["train"]["per_class"].items():
        if not count:
            lines.append(
                f"  class {label}, {names[int(label)]}, has no train images: all were "
                "left out"
            )
    lines.append(f"{data_dir} is finished: train with --data_dir={data_dir}")
    return "\n".join(lines)


def verify(data_dir: Path) -> None:
    """Reads a finished folder again and compares it with its manifest.

    Raises:
      ValueError: there is no manifest, or a file differs from it.
    """
    described = read(data_dir)
    if described is None:
        raise ValueError(
            f"--verify needs a finished folder, but {data_dir / manifest.NAME} is not "
            "there"
        )
    wanted = {
        shard["file"]: shard["sha256"]
        for of in described["splits"].values()
        for shard in of["shards"]
    }
    shards = len(wanted)
    wanted[_LABELS] = described["labels_sha256"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda file: _sha256(data_dir / file), wanted)
        broken = [file for file, sum_ in zip(wanted, found) if sum_ != wanted[file]]
    if broken:
        raise ValueError(
            f"{data_dir}: {len(broken):,} of {len(wanted):,} files are not as they "
            f"were written: {', '.join(broken)}; prepare them again in a new folder"
        )
    print(f"{data_dir}: all {shards:,} shards and {_LABELS} are as they were written")


def _sha256(path: Path) -> str:
    """The checksum of a file; empty if it cannot be read."""
    digest = hashlib.sha256()
    try:
        if not path.is_file():
            return ""
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()
