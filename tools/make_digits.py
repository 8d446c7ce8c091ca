"""Writes the embedded data set, tf_goyal/data/digits, byte for byte.

    python tools/make_digits.py [folder]

Needs scikit-learn, which ships the digits, and pillow. The folder is the package's
own by default.
"""

import io
import pathlib
import sys

import numpy as np
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_digits

PILLOW = "13.0.0"  # another one may encode the same pixels in other bytes
FOLDER = pathlib.Path(__file__).parents[1] / "tf_goyal" / "data" / "digits"
VALIDATION_IMAGES = 297
TRAIN_SHARDS = 4
SIZE = 16  # pixels; the originals are 8x8
QUALITY = 85


def encode(levels: np.ndarray) -> bytes:
    """A grey JPEG of SIZE x SIZE pixels from 8x8 levels 0 (paper) to 16 (ink)."""
    pixels = np.round(levels * 255 / 16).astype(np.uint8)
    image = Image.fromarray(pixels).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY, optimize=True)
    return file.getvalue()


def is_validation(labels: np.ndarray) -> np.ndarray:
    """The stratified split: bool per image, VALIDATION_IMAGES of them True.

    Counted through class after class, every sixth image or so: each class is
    represented in proportion, and so is each stretch of the original file.
    """
    order = np.argsort(labels, kind="stable")
    taken = np.arange(len(labels) + 1) * VALIDATION_IMAGES // len(labels)
    chosen = np.zeros(len(labels), bool)
    chosen[order] = np.diff(taken) == 1
    return chosen


def example(levels: np.ndarray, label: int) -> bytes:
    """The serialised tf.train.Example of one image."""
    encoded = tf.train.BytesList(value=[encode(levels)])
    features = {
        "image/encoded": tf.train.Feature(bytes_list=encoded),
        "image/class/label": tf.train.Feature(
            int64_list=tf.train.Int64List(value=[label])
        ),
    }
    message = tf.train.Example(features=tf.train.Features(feature=features))
    return message.SerializeToString(deterministic=True)


def write(folder: pathlib.Path, split: str, examples: list[bytes], shards: int) -> None:
    """Writes the examples in equal consecutive parts."""
    bounds = [len(examples) * shard // shards for shard in range(shards + 1)]
    for shard in range(shards):
        path = folder / f"{split}-{shard:05d}-of-{shards:05d}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for message in examples[bounds[shard] : bounds[shard + 1]]:
                writer.write(message)


def main(folder: pathlib.Path) -> None:
    """Writes the shards of both splits and labels.txt into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    validation = is_validation(digits.target)
    examples = [
        example(levels, int(label))
        for levels, label in zip(digits.images, digits.target, strict=True)
    ]
    for split, chosen, shards in (
        ("train", ~validation, TRAIN_SHARDS),
        ("validation", validation, 1),
    ):
        write(folder, split, [examples[i] for i in np.flatnonzero(chosen)], shards)
    names = "".join(f"{name}\n" for name in digits.target_names)
    (folder / "labels.txt").write_text(names)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
