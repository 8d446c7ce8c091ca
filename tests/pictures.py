"""Encoded images of every kind, and shards of them, for tests."""

import io
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tf_goyal import examples, records
from tf_goyal.shards import FEATURES, ShardSplit

EXIF_ORIENTATION = 0x0112


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    """uint8 [height, width, 3]: smooth, so that JPEG keeps most of it."""
    coarse = np.random.default_rng(seed).integers(
        0, 256, [height // 8 + 2, width // 8 + 2, 3], np.uint8
    )
    return np.array(Image.fromarray(coarse).resize([width, height], Image.BILINEAR))


def encode(image: np.ndarray | Image.Image, kind: str = "JPEG", **options) -> bytes:
    """An image file."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg(height: int = 40, width: int = 56, seed: int = 0, **options) -> bytes:
    """A colour JPEG."""
    return encode(pixels(height, width, seed), quality=95, **options)


def cmyk(height: int = 40, width: int = 56, seed: int = 0) -> bytes:
    """A CMYK JPEG with Adobe's marker, as in ImageNet."""
    image = Image.fromarray(pixels(height, width, seed)).convert("CMYK")
    return encode(image, quality=95)


def rotated(height: int = 40, width: int = 56, seed: int = 0) -> bytes:
    """A JPEG that EXIF wants turned by a quarter."""
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    return jpeg(height, width, seed, exif=exif)


def truncated(height: int = 40, width: int = 56, seed: int = 0) -> bytes:
    """The first two thirds of a JPEG."""
    whole = jpeg(height, width, seed)
    return whole[: len(whole) * 2 // 3]


def undecodable(seed: int = 0) -> bytes:
    """A JPEG whose header is in order and whose Huffman tables are not."""
    whole = bytearray(jpeg(seed=seed))
    table = whole.index(b"\xff\xc4")
    whole[table + 5 : table + 21] = b"\xff" * 16  # more codes than there can be
    return bytes(whole)


def bmp(number: int) -> bytes:
    """The header of an image of one pixel, and text that holds a number."""
    return b"BM" + bytes(16) + struct.pack("<ii", 1, 1) + b" %d" % number


def write_shards(
    folder: Path,
    images: Sequence[bytes],
    shards: int = 1,
    name: str = "train",
    labels: Sequence[int] | None = None,
    features: tuple[str, str] = FEATURES[0],
    file: str = "{name}-{shard:05d}-of-{shards:05d}",
) -> list[Path]:
    """TFRecord shards of consecutive parts; labels 0, 1, 2 ... by default."""
    folder.mkdir(exist_ok=True, parents=True)
    labels = range(len(images)) if labels is None else labels
    framed = [
        records.framed(examples.encode(dict(zip(features, (image, int(label))))))
        for image, label in zip(images, labels, strict=True)
    ]
    paths = []
    for shard, part in enumerate(np.array_split(np.arange(len(framed)), shards)):
        paths.append(folder / file.format(name=name, shard=shard, shards=shards))
        paths[-1].write_bytes(b"".join(framed[i] for i in part))
    return paths


def write_numbered(
    folder: Path,
    name: str,
    shards: int,
    count: int,
    label: Callable[[int], int] = lambda number: number % 2,
    **options,
) -> list[Path]:
    """Shards of `count` records whose images hold their number."""
    numbers = range(count)
    images, labels = list(map(bmp, numbers)), list(map(label, numbers))
    return write_shards(folder, images, shards, name, labels, **options)


def split(folder: Path, images: Sequence[bytes], shards: int = 1) -> ShardSplit:
    """A training split of `write_shards`' records."""
    paths = write_shards(folder, images, shards)
    return ShardSplit("train", records.index_files(map(str, paths)))
