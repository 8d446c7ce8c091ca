"""A data set in COCO's format, read and checked. Needs pycocotools alone."""

import collections
import dataclasses
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pycocotools import mask as masks

_LARGEST_CATEGORY = 2**15 - 1  # a detector has an output for each number up to it
_FARTHEST = 100_000  # pixels, of a point of a polygon: beyond any image


@dataclasses.dataclass
class Thing:
    """What is seen in an image.

    Attributes:
      category: its id.
      box: (left, top, width, height) in pixels, inside the image.
      mask: where it is seen, COCO's compressed run lengths of the whole image, whatever
        form the file has. Never without a pixel.
      crowd: whether it is a region with many of them.
    """

    category: int
    box: tuple[float, float, float, float]
    mask: dict[str, Any]
    crowd: bool


@dataclasses.dataclass
class Picture:
    """An image and what is seen in it.

    Attributes:
      name: of its file, in the folder of the images.
      path: of its file.
    """

    id: int
    name: str
    path: Path
    height: int
    width: int
    things: list[Thing]


@dataclasses.dataclass
class Coco:
    """A data set.

    Attributes:
      file: that it was read from.
      pictures: in the order of the file.
      categories: id to name.
      left_out: reason to how many annotations.
    """

    file: Path
    pictures: list[Picture]
    categories: dict[int, str]
    left_out: dict[str, int]

    @property
    def classes(self) -> int:
        """Numbers that a detector tells apart: 0 is the background's."""
        return max(self.categories) + 1

    @property
    def most_things(self) -> int:
        """Objects of the image that has most."""
        return max(len(picture.things) for picture in self.pictures)

    @functools.cached_property
    def sha256(self) -> str:
        """Of all but the images' pixels, and of no path."""
        return hashlib.sha256(json.dumps(self.described()).encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """What was kept, in COCO's format: JSON values that pycocotools takes."""
        things = [
            (picture, thing) for picture in self.pictures for thing in picture.things
        ]
        return {
            "images": [
                {
                    "id": p.id,
                    "file_name": p.name,
                    "height": p.height,
                    "width": p.width,
                }
                for p in self.pictures
            ],
            "annotations": [
                {
                    "id": number,
                    "image_id": picture.id,
                    "category_id": thing.category,
                    "bbox": list(thing.box),
                    "area": area(thing.mask),
                    "segmentation": thing.mask,
                    "iscrowd": int(thing.crowd),
                }
                for number, (picture, thing) in enumerate(things, start=1)
            ],
            "categories": [{"id": i, "name": n} for i, n in self.categories.items()],
        }


def read(annotations: Path, images: Path) -> Coco:
    """Reads and checks a data set.

    What cannot be used is left out and counted: annotations without a mask, and those
    whose box has no part in the image. A box that is partly outside is cut.

    Args:
      annotations: the JSON file.
      images: folder of the images.

    Raises:
      ValueError: the file is none of COCO's, contradicts itself, or its images are not
        there. The message names the file and the entry.
    """
    described = _load(annotations)
    categories = _categories(annotations, described["categories"])
    pictures = _pictures(annotations, described["images"], images)
    left_out: collections.Counter[str] = collections.Counter()
    for entry in _entries(annotations, described["annotations"], "annotation"):
        where = f"{annotations}: annotation {entry.get('id')}"
        image, category = entry.get("image_id"), entry.get("category_id")
        if not _whole(image) or image not in pictures:
            raise ValueError(f"{where} is of image {image!r}, which is not there")
        if not _whole(category) or category not in categories:
            raise ValueError(f"{where} is of category {category!r}, which is not there")
        crowd = entry.get("iscrowd", 0)
        if crowd not in (0, 1) or isinstance(crowd, float):
            raise ValueError(f"{where} must have an iscrowd of 0 or 1, got {crowd!r}")
        picture = pictures[image]
        box = _inside(entry.get("bbox"), picture, where)
        if box is None:
            left_out["the box is empty, or outside of the image"] += 1
            continue
        code = entry.get("segmentation")
        mask = _mask(code, picture, where) if code else None
        if mask is None or not area(mask):
            left_out["no mask, or one without a pixel in the image"] += 1
            continue
        thing = Thing(category, box, mask, bool(crowd))
        picture.things.append(thing)
    return Coco(annotations, list(pictures.values()), categories, dict(left_out))


def _load(path: Path) -> dict[str, Any]:
    try:
        described = json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON in COCO's format: {error}") from error
    for name in ("images", "annotations", "categories"):
        if not isinstance(described, dict) or not isinstance(described.get(name), list):
            raise ValueError(
                f"{path} must be JSON in COCO's format, with lists of images, "
                f"annotations and categories; there is no list of {name}"
            )
    return described


def _entries(path: Path, entries: list[Any], kind: str) -> Iterator[dict[str, Any]]:
    for entry in entries:
        if not isinstance(entry, dict):
            raise ValueError(f"{path}: each {kind} must be an object, got {entry!r}")
        yield entry


def _categories(path: Path, entries: list[Any]) -> dict[int, str]:
    categories: dict[int, str] = {}
    for entry in _entries(path, entries, "category"):
        number, name = entry.get("id"), entry.get("name")
        right = _whole(number) and 1 <= number <= _LARGEST_CATEGORY
        if not right or not isinstance(name, str):
            raise ValueError(
                f"{path}: a category must have a name and an id from 1 (0 is the "
                f"background's) to {_LARGEST_CATEGORY}, got {entry}"
            )
        if number in categories:
            raise ValueError(f"{path} has two categories of id {number}")
        categories[number] = name
    if not categories:
        raise ValueError(f"{path} must have categories, it has none")
    return categories


def _pictures(path: Path, entries: list[Any], images: Path) -> dict[int, Picture]:
    pictures: dict[int, Picture] = {}
    missing = []
    for entry in _entries(path, entries, "image"):
        number, name = entry.get("id"), entry.get("file_name")
        size = entry.get("height"), entry.get("width")
        if not all(map(_whole, [number, *size])) or not isinstance(name, str):
            raise ValueError(
                f"{path}: an image must have a file_name, and whole numbers as id, "
                f"height and width, got {entry}"
            )
        if number in pictures:
            raise ValueError(f"{path} has two images of id {number}")
        if min(size) < 1:
            raise ValueError(f"{path}: image {number} is {size[0]} x {size[1]} pixels")
        inside = Path(os.path.normpath(name))
        if inside.is_absolute() or inside.parts[:1] == (os.pardir,):
            raise ValueError(f"{path}: {name} of image {number} is not in {images}")
        if not os.path.isfile(images / name):
            missing.append(name)
        pictures[number] = Picture(number, name, images / name, *size, [])
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(entries)} images of {path} are not in "
            f"{images}: {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}"
        )
    if not pictures:
        raise ValueError(f"{path} must have images, it has none")
    return pictures


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def _inside(
    box: Any, picture: Picture, where: str
) -> tuple[float, float, float, float] | None:
    """The part of a box that is in its image; None without any."""
    if not isinstance(box, list) or len(box) != 4 or not all(map(_finite, box)):
        raise ValueError(
            f"{where} must have a bbox of four numbers, left, top, width and height, "
            f"got {box!r}"
        )
    left, top, width, height = map(float, box)
    right, bottom = min(left + width, picture.width), min(top + height, picture.height)
    left, top = max(left, 0.0), max(top, 0.0)
    if right <= left or bottom <= top:
        return None
    return left, top, right - left, bottom - top


def area(mask: dict[str, Any]) -> int:
    """Pixels of a mask."""
    return int(masks.area(mask))


def _mask(code: Any, picture: Picture, where: str) -> dict[str, Any]:
    """Compressed run lengths of polygons, or of run lengths of the whole image.

    Raises:
      ValueError: it is none of the two.
    """
    height, width = picture.height, picture.width
    if isinstance(code, dict):
        runs, size = code.get("counts"), code.get("size")
        if isinstance(runs, str):
            runs = _uncompressed(runs)
        right = size == [height, width] and isinstance(runs, list)
        right = right and all(map(_whole, [*size, *runs])) and min(runs, default=0) >= 0
        right = right and sum(runs) == height * width
        parts = [{"size": size, "counts": runs}]
    else:
        right = isinstance(code, list) and all(map(_polygon, code))
        parts = code
    if not right:
        raise ValueError(
            f"{where} must have polygons of three points or more, or run lengths of "
            f"{height} x {width} pixels, as its segmentation, got {str(code)[:80]}"
        )
    mask = masks.merge(masks.frPyObjects(parts, height, width))
    return {"size": [height, width], "counts": mask["counts"].decode()}


def _polygon(points: Any) -> bool:
    return (
        isinstance(points, list)
        and len(points) >= 6
        and len(points) % 2 == 0
        and all(_finite(value) and abs(value) <= _FARTHEST for value in points)
    )


def _uncompressed(code: str) -> list[int] | None:
    """Run lengths of COCO's compressed string; None if it is none.

    pycocotools takes any string, and leaves of the mask uninitialised what lacks.
    Each character holds five bits, the lowest first, and whether more follow; from the
    fourth number on each is a difference to the one before the last.

    >>> _uncompressed("06")
    [0, 6]
    """
    runs: list[int] = []
    value = shift = 0
    for character in code:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return None if shift else runs
