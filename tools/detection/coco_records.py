"""A data set in COCO's format as the records that the Model Garden trains on."""

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from coco_file import Coco, Picture, area
from PIL import Image, UnidentifiedImageError
from pycocotools import mask as masks

_SHARDS = 8
_FORMATS = ("JPEG", "PNG")  # of those that TensorFlow decodes, all that COCO has


def write(coco: Coco, folder: Path, *, training: bool) -> tuple[str, int]:
    """Writes the records, unless they are there from an earlier start.

    Args:
      coco: the data set.
      folder: for the records, made if need be.
      training: leave out images in which nothing but crowds is seen, as Detectron does.

    Returns:
      A pattern that matches the files, and how many images they hold.

    Raises:
      ValueError: an image or a mask cannot be decoded, or is of another size than the
        annotations say, or none is left.
    """
    usable = [p for p in coco.pictures if any(not t.crowd for t in p.things)]
    if not usable:
        raise ValueError(f"{coco.file} has no annotated object in any image")
    pictures = usable if training else coco.pictures
    pattern = str(folder / "*.tfrecord")
    done, told = folder / "done.json", json.dumps({"sha256": _digest(coco, pictures)})
    if done.exists() and done.read_bytes() == told.encode():
        return pattern, len(pictures)
    folder.mkdir(parents=True, exist_ok=True)
    done.unlink(missing_ok=True)
    for shard in range(_SHARDS):
        path = folder / f"{shard:02}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for picture in pictures[shard::_SHARDS]:
                writer.write(example(picture, coco.categories).SerializeToString())
    beside = folder / ".done.json"
    beside.write_text(told)
    os.replace(beside, done)
    return pattern, len(pictures)


def _digest(coco: Coco, pictures: list[Picture]) -> str:
    """Of all that the records are made from; of the images, size and time."""
    digest = hashlib.sha256(coco.sha256.encode())
    for picture in pictures:
        about = picture.path.stat()
        digest.update(f"{picture.id} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def example(picture: Picture, categories: dict[int, str]) -> tf.train.Example:
    """One record: the image as it is in its file, boxes in units of its size, masks."""
    encoded = picture.path.read_bytes()
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            image.load()
            width, height = image.size
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        said = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
        raise ValueError(
            f"{picture.path} must be a {' or '.join(_FORMATS)} file, it cannot be "
            f"decoded as one{said}"
        ) from error
    if (height, width) != (picture.height, picture.width):
        raise ValueError(
            f"{picture.path} must be of {picture.height} x {picture.width} pixels, as "
            f"its annotations say; it is {height} x {width}"
        )
    features = {
        "image/encoded": _bytes([encoded]),
        "image/filename": _bytes([picture.path.name.encode()]),
        "image/source_id": _bytes([str(picture.id).encode()]),
        "image/height": _integers([height]),
        "image/width": _integers([width]),
    }
    if things := picture.things:
        boxes = np.array([thing.box for thing in things])
        begin = boxes[:, :2] / (width, height)
        end = (boxes[:, :2] + boxes[:, 2:]) / (width, height)
        names = [categories[thing.category].encode() for thing in things]
        features |= {
            "image/object/bbox/xmin": _floats(begin[:, 0]),
            "image/object/bbox/ymin": _floats(begin[:, 1]),
            "image/object/bbox/xmax": _floats(end[:, 0]),
            "image/object/bbox/ymax": _floats(end[:, 1]),
            "image/object/class/text": _bytes(names),
            "image/object/class/label": _integers([t.category for t in things]),
            "image/object/is_crowd": _integers([int(t.crowd) for t in things]),
            "image/object/area": _floats([area(t.mask) for t in things]),
            "image/object/mask": _bytes([mask_png(t.mask) for t in things]),
        }
    return tf.train.Example(features=tf.train.Features(feature=features))


def _bytes(values: list[bytes]) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _integers(values: list[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(values: "np.ndarray | list[float]") -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def mask_png(mask: dict[str, Any]) -> bytes:
    """A mask's pixels as a PNG of 0 and 1."""
    file = io.BytesIO()
    Image.fromarray(masks.decode(mask)).save(file, format="PNG")
    return file.getvalue()
