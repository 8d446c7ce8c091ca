"""A data set in COCO's format as the records that the Model Garden trains on."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from coco_file import Coco, Picture, Thing
from official.vision.data import tfrecord_lib
from PIL import Image
from pycocotools import mask as masks

_SHARDS = 8


def write(coco: Coco, folder: Path, *, training: bool) -> tuple[str, int]:
    """Writes the records, unless they are there from an earlier start.

    Args:
      coco: the data set.
      folder: for the records, made if need be.
      training: leave out images in which nothing is seen, as Detectron does.

    Returns:
      A pattern that matches the files, and how many images they hold.

    Raises:
      ValueError: an image is not of the size that the annotations say, or none is left.
    """
    pictures = [p for p in coco.pictures if not training or _usable(p)]
    if not pictures:
        raise ValueError("no image is left to train on: none has an annotated object")
    pattern = str(folder / "*.tfrecord")
    done = folder / "done.json"
    told = {"images": len(pictures), "things": sum(len(p.things) for p in pictures)}
    if done.exists() and json.loads(done.read_text()) == told:
        return pattern, len(pictures)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(_SHARDS):
        path = folder / f"{shard:02}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for picture in pictures[shard::_SHARDS]:
                writer.write(example(picture, coco.categories).SerializeToString())
    beside = folder / ".done.json"
    beside.write_text(json.dumps(told))
    os.replace(beside, done)
    return pattern, len(pictures)


def _usable(picture: Picture) -> bool:
    return any(not thing.crowd for thing in picture.things)


def example(picture: Picture, categories: dict[int, str]) -> tf.train.Example:
    """One record: the image as it is in its file, boxes in units of its size, masks."""
    encoded = picture.path.read_bytes()
    with Image.open(io.BytesIO(encoded)) as image:
        width, height = image.size
    if (height, width) != (picture.height, picture.width):
        raise ValueError(
            f"{picture.path} must be of {picture.height} x {picture.width} pixels, as "
            f"its annotations say; it is {height} x {width}"
        )
    features = tfrecord_lib.image_info_to_feature_dict(
        height, width, picture.path.name, picture.id, encoded, "jpg"
    )
    if picture.things:
        features |= dict(_objects(picture, categories))
    return tf.train.Example(features=tf.train.Features(feature=features))


def _objects(
    picture: Picture, categories: dict[int, str]
) -> Iterator[tuple[str, tf.train.Feature]]:
    boxes = np.array([thing.box for thing in picture.things])
    begin, end = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    for axis, name, size in ((0, "x", picture.width), (1, "y", picture.height)):
        for edge, values in (("min", begin), ("max", end)):
            key = f"image/object/bbox/{name}{edge}"
            yield (
                key,
                tfrecord_lib.convert_to_feature(
                    list(values[:, axis] / size), "float_list"
                ),
            )
    convert = tfrecord_lib.convert_to_feature
    things = picture.things
    names = [categories[thing.category].encode() for thing in things]
    yield "image/object/class/text", convert(names)
    yield "image/object/class/label", convert([thing.category for thing in things])
    yield "image/object/is_crowd", convert([int(thing.crowd) for thing in things])
    yield "image/object/area", convert([t.area for t in things], "float_list")
    yield "image/object/mask", convert([mask_png(picture, t) for t in things])


def mask_png(picture: Picture, thing: Thing) -> bytes:
    """The pixels at which something is seen, as a PNG of 0 and 1."""
    code = thing.segmentation
    if isinstance(code, list) or not isinstance(code["counts"], str):
        code = masks.frPyObjects(code, picture.height, picture.width)
    code = masks.merge(code) if isinstance(code, list) else code
    return tfrecord_lib.encode_mask_as_png(masks.decode(code))
