r"""Prepares ImageNet, or any set of images in classes, as TFRecord shards.

python tools/prepare_imagenet.py --data_dir=DATA \
    --train_archive=ILSVRC2012_img_train.tar \
    --validation_archive=ILSVRC2012_img_val.tar \
    --validation_labels=ILSVRC2012_devkit_t12.tar.gz

Nothing is unpacked. Stopped or killed, the same command goes on where it was. The
records come in one order, a hash of the images' names, however many shards there are,
so each shard is a mix of the classes. Written to DATA are the shards
(train-00000-of-01024, ...), labels.txt and, last, manifest.json.

Images keep their bytes, except that CMYK JPEGs, PNGs and others that are no plain JPEG
become RGB JPEGs, and that --max_side and --quality make all images smaller. Images that
cannot be decoded are left out and named. Exit codes: 0 done, 2 refused, 3 too many
images that cannot be decoded, 130 and 143 stopped.
"""

import concurrent.futures
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import shard_writer
import validation_labels
from absl import flags as absl_flags
from preparation_journal import NAME as JOURNAL
from preparation_journal import Journal, refuse_difference
from preparation_preflight import IMAGENET, IMAGENET_CLASSES, SPLITS, preflight

from tf_goyal import flags

IMAGENET_SHARDS = {"train": 1024, "validation": 128}
TOO_MANY_BAD = 3  # exit code
TERMINATED = 143  # exit code
_VERIFY_CHUNK = 1 << 20  # bytes


def _shards(values: absl_flags.FlagValues, split: str, images: int) -> int:
    """The number of shards of a split.

    Raises:
      ValueError: more than images.
    """
    shards = values[f"{split}_shards"].value or max(
        1, round(images * IMAGENET_SHARDS[split] / IMAGENET[split])
    )
    if shards > images:
        raise ValueError(
            f"--{split}_shards must be at most the {images:,} images, got {shards:,}"
        )
    return shards


def manifest(
    options: dict[str, int],
    inputs: dict[str, Any],
    labels: dict[str, int],
    splits: dict[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    """What manifest.json holds, from each split's journal lines in their order."""
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
    return {
        "format": 1,
        "options": options,
        "inputs": inputs,
        "classes": len(labels),
        "splits": described,
    }


def _summary(described: dict[str, Any], data_dir: Path) -> str:
    lines = []
    for split, of in described["splits"].items():
        size = sum(shard["bytes"] for shard in of["shards"])
        lines.append(
            f"{split}: {of['records']:,} images, {len(of['shards']):,} shards, "
            f"{size / 1e9:,.2f} GB; {len(of['converted']):,} became RGB JPEGs, "
            f"{len(of['left_out']):,} left out"
        )
        lines += [f"  left out {text}" for text in shard_writer.named(of)]
    return "\n".join(
        [*lines, f"{data_dir} is finished: train with --data_dir={data_dir}"]
    )


def _head(options: dict[str, int], inputs: dict[str, str]) -> dict[str, int | str]:
    """What must be the same for a preparation to go on, in words."""
    of_images = {f"the {split} images' checksum": inputs[split] for split in inputs}
    return {**{f"--{name}": options[name] for name in options}, **of_images}


def _finished(values: absl_flags.FlagValues, data_dir: Path) -> bool:
    """Whether all is done already, with these options; the images may be gone."""
    path = data_dir / "manifest.json"
    if not path.is_file():
        return False
    described = json.loads(path.read_text("utf-8"))
    old = described["options"]
    new = {name: values[name].value for name in old}
    for split in SPLITS:
        new[f"{split}_shards"] = new[f"{split}_shards"] or old[f"{split}_shards"]
    refuse_difference(data_dir, _head(old, {}), _head(new, {}))
    for of in described["splits"].values():
        for shard in of["shards"]:
            path = data_dir / shard["file"]
            if not path.is_file() or path.stat().st_size != shard["bytes"]:
                raise ValueError(
                    f"{path} must be there with {shard['bytes']:,} bytes, as "
                    "manifest.json says, but is not: prepare all in a new --data_dir"
                )
    print(_summary(described, data_dir))
    (data_dir / JOURNAL).unlink(missing_ok=True)
    return True


def verify(data_dir: Path) -> None:
    """Reads a finished folder again and compares it with its manifest.

    Raises:
      ValueError: there is no manifest, or a shard differs from it.
    """
    path = data_dir / "manifest.json"
    if not path.is_file():
        raise ValueError(f"--verify needs a finished folder, but {path} is not there")
    described = json.loads(path.read_text("utf-8"))
    shards = [shard for of in described["splits"].values() for shard in of["shards"]]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        sums = pool.map(lambda shard: _sha256(data_dir / shard["file"]), shards)
        broken = [
            shard["file"]
            for shard, found in zip(shards, sums)
            if found != shard["sha256"]
        ]
    if broken:
        raise ValueError(
            f"{data_dir}: {len(broken):,} of {len(shards):,} shards are not as they "
            f"were written: {', '.join(broken)}; prepare them again in a new folder"
        )
    print(f"{data_dir}: all {len(shards):,} shards are as they were written")


def _sha256(path: Path) -> str:
    """The checksum of a file; empty if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_VERIFY_CHUNK):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()


def prepare(values: absl_flags.FlagValues, data_dir: Path) -> int:
    """Prepares a folder, or goes on with it. Returns the exit code.

    Raises:
      OSError: a disk is full, or a file cannot be read or written.
      ValueError: it cannot be done; nothing is written if that can be known before.
    """
    workers = values.workers or len(os.sched_getaffinity(0))
    with shard_writer.workers(workers) as pool:
        found, words = preflight(values, data_dir, pool)
    images = {split: shard_writer.in_order(split, found[split]) for split in SPLITS}
    classes = sorted({image.folder for image in images["train"]})
    labels = {name: label for label, name in enumerate(classes)}
    options = {
        **{
            f"{split}_shards": _shards(values, split, len(images[split]))
            for split in SPLITS
        },
        "max_side": values.max_side,
        "quality": values.quality,
    }
    inputs = {split: shard_writer.fingerprint(images[split]) for split in SPLITS}
    shards = {
        split: shard_writer.shards_of(
            split,
            images[split],
            options[f"{split}_shards"],
            data_dir,
            labels,
            max_side=values.max_side,
            quality=values.quality,
        )
        for split in SPLITS
    }
    data_dir.mkdir(parents=True, exist_ok=True)
    journal = Journal(data_dir, _head(options, inputs))
    try:
        with shard_writer.workers(workers) as pool:
            bad = shard_writer.write(
                [shard for of in shards.values() for shard in of],
                journal,
                pool,
                values.max_bad_images,
            )
    finally:
        for part in data_dir.glob(".*.part"):
            part.unlink(missing_ok=True)
    if bad:
        print("\n".join(bad))
        print(
            f"prepare_imagenet: {len(bad):,} images cannot be decoded, more than "
            f"--max_bad_images={values.max_bad_images:,}: download them again, or "
            "allow more, and the same command goes on",
            file=sys.stderr,
        )
        return TOO_MANY_BAD
    lines = {
        split: [journal.done[shard.file] for shard in of]
        for split, of in shards.items()
    }
    described = manifest(options, inputs, labels, lines)
    names = (f"{name} {words.get(name, '')}".strip() for name in labels)
    shard_writer.write_whole(
        data_dir / "labels.txt", "".join(f"{name}\n" for name in names)
    )
    shard_writer.write_whole(
        data_dir / "manifest.json", json.dumps(described, indent=1) + "\n"
    )
    journal.remove()
    print(_summary(described, data_dir))
    return 0


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""

    def text(name: str, help_: str, required: bool = False) -> None:
        absl_flags.DEFINE_string(
            name, None, help_, flag_values=values, required=required
        )

    def number(name: str, default: int, help_: str, highest: int | None = None) -> None:
        absl_flags.DEFINE_integer(
            name,
            default,
            help_,
            lower_bound=0,
            upper_bound=highest,
            flag_values=values,
        )

    text("data_dir", "Folder of the shards, new or of the same command.", True)
    text(
        "train_archive",
        "ILSVRC2012_img_train.tar, or a tar or zip archive with a folder per class "
        "(below train/, if there is such a folder), such as Kaggle's. Not compressed.",
    )
    text("train_dir", "Instead of the archive: a folder with a folder per class.")
    text(
        "validation_archive",
        "ILSVRC2012_img_val.tar, or a tar or zip archive with images or class folders "
        "(below val/, if there is such a folder). Not compressed.",
    )
    text(
        "validation_dir",
        "Instead of the archive: a folder with images, or with a folder per class.",
    )
    text(
        "validation_labels",
        f"The classes of validation images without class folders: "
        f"{validation_labels.EXPECTED}. The devkit also gives the classes' words.",
    )
    absl_flags.DEFINE_boolean(
        "expect_imagenet",
        True,
        f"Refuse anything but {IMAGENET_CLASSES:,} classes, {IMAGENET['train']:,} and "
        f"{IMAGENET['validation']:,} images, so that a part of ImageNet does not pass "
        "for the whole. --noexpect_imagenet takes any set.",
        flag_values=values,
    )
    number(
        "train_shards",
        0,
        "Number of train shards; 0: in proportion, 1,024 for "
        "ImageNet. The order of the records does not depend on it.",
    )
    number("validation_shards", 0, "As --train_shards; 0: 128 for ImageNet.")
    number(
        "max_side",
        0,
        "Pixels: images with a longer side are stored smaller, so that this is their "
        "longer side. Saves disk and decoding time, costs fidelity: a crop of a part "
        "of the image has fewer true pixels, and 500 leaves a shorter side of about "
        "375, enough for --image_size=224. 0: all keep their size.",
    )
    number(
        "quality",
        0,
        "1 to 100: every image is encoded anew as a JPEG of this quality, and stored "
        "so if that is smaller: fewer bytes, faster to decode, less detail. At 85 the "
        "images of make_imagenet_like take 60 % of their bytes. 0: images keep their "
        "bytes; those that cannot are encoded at 95.",
        highest=100,
    )
    number(
        "max_bad_images",
        100,
        "Images that may be left out as they cannot be "
        "decoded; with more, the preparation stops with exit code 3.",
    )
    number("workers", 0, "Processes; 0: one per core.")
    absl_flags.DEFINE_boolean(
        "verify",
        False,
        "Only read a finished --data_dir again, and compare it with its manifest.",
        flag_values=values,
    )


def main(_: list[str]) -> int:
    """Prepares or verifies. Returns the exit code."""
    values = flags.FLAGS
    data_dir = Path(values.data_dir)
    if values.verify:
        verify(data_dir)
        return 0
    if _finished(values, data_dir):
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        return prepare(values, data_dir)
    except OSError as error:
        raise ValueError(
            f"stopped by {error.filename or data_dir}: {error.strerror}; when that is "
            "mended, the same command goes on"
        ) from error


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
