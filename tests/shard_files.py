"""Folders of TFRecord shards for the tests, each image's bytes naming its record."""

import pathlib
import struct
from collections.abc import Callable, Sequence

import numpy as np

from tf_goyal import examples, records


def bmp(number: int) -> bytes:
    """The header of an image of one pixel, and text that holds a number."""
    return b"BM" + bytes(16) + struct.pack("<ii", 1, 1) + b" %d" % number


def example(number: int, label: int, features=("image/encoded", "image/class/label")):
    """A record; its image holds its number."""
    image, label_feature = features
    return examples.encode({image: bmp(number), label_feature: label})


def write_shards(
    folder: pathlib.Path,
    split: str,
    shards: int,
    count: int,
    label: Callable[[int], int] = lambda number: number % 2,
    features: Sequence[str] = ("image/encoded", "image/class/label"),
    name: str = "{split}-{shard:05d}-of-{shards:05d}",
) -> list[pathlib.Path]:
    """`count` records, cut into runs of nearly the same length."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for shard, numbers in enumerate(np.array_split(np.arange(count), shards)):
        path = folder / name.format(split=split, shard=shard, shards=shards)
        path.write_bytes(
            b"".join(
                records.framed(example(number, label(number), features))
                for number in numbers.tolist()
            )
        )
        paths.append(path)
    return paths
