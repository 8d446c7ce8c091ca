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
from preparation_preflight import in_words

from tf_goyal import manifest
from tf_goyal.datasets import SPLITS
from tf_goyal.shard_folder import LABELS_FILE

OPTIONS = ("train_shards", "validation_shards", "max_side", "quality")
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
    labels_text = "".join(f"{one}\n" for one in labels).encode()
    with shard_writer.whole_file(data_dir / LABELS_FILE) as file:
        file.write(labels_text)
    whole = {
        "format": manifest.FORMAT,
        "options": options,
        "inputs": inputs,
        "classes": len(labels),
        "labels_sha256": hashlib.sha256(labels_text).hexdigest(),
        "splits": described,
    }
    with shard_writer.whole_file(data_dir / manifest.NAME) as file:
        file.write(json.dumps(whole, indent=1).encode() + b"\n")
    return whole


def read(data_dir: Path) -> manifest.Manifest | None:
    """The manifest, if it is there; all of its content is checked.

    Raises:
      ValueError: it is none of this tool, or damaged.
    """
    found = manifest.read(str(data_dir))
    if found is None:
        return None
    described = found.content
    try:
        numbers = [described["options"][name] for name in OPTIONS]
        checksums = [described["labels_sha256"], *map(described["inputs"].get, SPLITS)]
        for split in SPLITS:
            of = described["splits"][split]
            numbers += [of["records"], len(of["converted"])]
            numbers += [of["per_class"][str(i)] for i in range(found.classes)]
            checksums += [shard["sha256"] for shard in of["shards"]]
            shard_writer.named(of)
        if set(described["splits"]) != set(SPLITS):
            raise ValueError(f"its splits are {', '.join(described['splits'])}")
        if not all(type(one) is int for one in numbers):
            raise ValueError("a count or option is no whole number")
        if not all(isinstance(one, str) for one in checksums):
            raise ValueError("a checksum is no text")
        return found
    except KeyError as error:
        reason = f"it has no {error}"
    except (AttributeError, TypeError, ValueError) as error:
        reason = str(error)
    raise ValueError(
        f"{found.path}: expected the manifest of tools/prepare_imagenet.py: {reason}: "
        "prepare all in a new --data_dir"
    )


def require_files(data_dir: Path, finished: manifest.Manifest) -> None:
    """Refuses a folder that lacks what its manifest lists; shards are not read.

    Raises:
      ValueError: a file is missing, or a shard has another size, or labels.txt is
        another.
    """
    for split, written in finished.shards.items():
        there = [data_dir / name for name in written if (data_dir / name).is_file()]
        manifest.require_files(finished, split, list(map(str, there)))
    manifest.require_labels(finished, str(data_dir / LABELS_FILE))


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
    names = (data_dir / LABELS_FILE).read_text("utf-8").split("\n")
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
    finished = read(data_dir)
    if finished is None:
        raise ValueError(
            f"--verify needs a finished folder, but {data_dir / manifest.NAME} is not "
            "there"
        )
    wanted = {
        shard["file"]: shard["sha256"]
        for of in finished.content["splits"].values()
        for shard in of["shards"]
    }
    shards = len(wanted)
    wanted[LABELS_FILE] = finished.labels_sha256
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda file: _sha256(data_dir / file), wanted)
        broken = [file for file, sum_ in zip(wanted, found) if sum_ != wanted[file]]
    if broken:
        raise ValueError(
            f"{data_dir}: {len(broken):,} of {len(wanted):,} files are not as they "
            f"were written: {', '.join(broken)}; prepare them again in a new folder"
        )
    print(
        f"{data_dir}: all {shards:,} shards and {LABELS_FILE} are as they were written"
    )


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
