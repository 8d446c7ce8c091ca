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

import contextlib
import os
import signal
import sys
from pathlib import Path

import preparation_manifest
import shard_writer
import validation_labels
from absl import flags as absl_flags
from preparation_journal import NAME as JOURNAL
from preparation_journal import Journal, refuse_difference
from preparation_preflight import preflight, require_imagenet, still_there

from tf_goyal import flags, manifest
from tf_goyal.datasets import IMAGENET_CLASSES, IMAGENET_IMAGES, SPLITS

IMAGENET_SHARDS = {"train": 1024, "validation": 128}
TOO_MANY_BAD = 3  # exit code
TERMINATED = 143  # exit code


def _shards(values: absl_flags.FlagValues, split: str, images: int) -> int:
    """The number of shards of a split.

    Raises:
      ValueError: more than images.
    """
    shards = values[f"{split}_shards"].value or max(
        1, round(images * IMAGENET_SHARDS[split] / IMAGENET_IMAGES[split])
    )
    if shards > images:
        raise ValueError(
            f"--{split}_shards must be at most the {images:,} images, got {shards:,}"
        )
    return shards


def _head(options: dict[str, int], inputs: dict[str, str]) -> dict[str, int | str]:
    """What must be the same for a preparation to go on, in words."""
    of_images = {f"the {split} images' checksum": inputs[split] for split in inputs}
    return {**{f"--{name}": options[name] for name in options}, **of_images}


def _finished(
    values: absl_flags.FlagValues,
    data_dir: Path,
    inputs: dict[str, str] | None = None,
) -> bool:
    """Whether all is done already, with these options and images.

    Args:
      values: the flags.
      data_dir: of the shards.
      inputs: the images' checksums. None: of those images that are still there, since
        a finished folder needs them no more.

    Raises:
      OSError: a file cannot be read.
      ValueError: it is done otherwise, or damaged.
    """
    finished = preparation_manifest.read(data_dir)
    if finished is None:
        return False
    described = finished.content
    old = {name: described["options"][name] for name in preparation_manifest.OPTIONS}
    new = {name: values[name].value for name in old}
    for split in SPLITS:
        new[f"{split}_shards"] = new[f"{split}_shards"] or old[f"{split}_shards"]
    refuse_difference(data_dir, _head(old, {}), _head(new, {}))
    if values.expect_imagenet:
        counts = {
            split: of["records"] + len(of["left_out"])
            for split, of in described["splits"].items()
        }
        require_imagenet(described["classes"], counts)
    preparation_manifest.require_files(data_dir, finished)
    missing: list[str] = []
    if inputs is None:
        with shard_writer.workers(_workers(values)) as pool:
            images, missing = still_there(values, pool)
        inputs = {
            split: shard_writer.fingerprint(shard_writer.in_order(split, of))
            for split, of in images.items()
        }
    refuse_difference(data_dir, _head({}, described["inputs"]), _head({}, inputs))
    print("\n".join([preparation_manifest.summary(described, data_dir), *missing]))
    # A kill may have left it. Folders that cannot be written may keep it.
    with contextlib.suppress(OSError):
        (data_dir / JOURNAL).unlink()
    return True


def _workers(values: absl_flags.FlagValues) -> int:
    return values.workers or len(os.sched_getaffinity(0))


def prepare(values: absl_flags.FlagValues, data_dir: Path) -> int:
    """Prepares a folder, or goes on with it. Returns the exit code.

    Raises:
      OSError: a disk is full, or a file cannot be read or written.
      ValueError: it cannot be done; nothing is written if that can be known before.
    """
    workers = _workers(values)
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
    # Another process may have finished the folder since this one looked for that.
    if (data_dir / manifest.NAME).exists():
        journal.remove()
        _finished(values, data_dir, inputs)
        return 0
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
    names = [f"{name} {words.get(name, '')}".strip() for name in labels]
    described = preparation_manifest.write(data_dir, options, inputs, names, lines)
    journal.remove()
    print(preparation_manifest.summary(described, data_dir))
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
        f"Refuse anything but {IMAGENET_CLASSES:,} classes, "
        f"{IMAGENET_IMAGES['train']:,} and {IMAGENET_IMAGES['validation']:,} images, "
        "so that a part of ImageNet does not pass for the whole. --noexpect_imagenet "
        "takes any set.",
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
    if not values.data_dir:
        raise ValueError("--data_dir must name a folder, got an empty text")
    data_dir = Path(values.data_dir)
    if values.verify:
        preparation_manifest.verify(data_dir)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        return 0 if _finished(values, data_dir) else prepare(values, data_dir)
    except OSError as error:
        raise ValueError(
            f"stopped by {error.filename or data_dir}: {error.strerror}; when that is "
            "mended, the same command goes on"
        ) from error


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
