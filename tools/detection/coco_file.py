"""A data set in COCO's format, read and checked. Needs Python alone."""

import collections
import dataclasses
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@dataclasses.dataclass
class Thing:
    """What is seen in an image.

    Attributes:
      id: of the annotation in the file, for people.
      category: its id.
      box: (left, top, width, height) in pixels, inside the image.
      area: of its mask, in pixels.
      segmentation: as in the file: polygons, or run lengths.
      crowd: whether it is a region with many of them.
    """

    id: Any
    category: int
    box: tuple[float, float, float, float]
    area: float
    segmentation: Any
    crowd: bool


@dataclasses.dataclass
class Picture:
    """An image and what is seen in it."""

    id: int
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

    def described(self) -> dict[str, Any]:
        """What was kept, in COCO's format: JSON values that pycocotools takes."""
        things = [
            (picture, thing) for picture in self.pictures for thing in picture.things
        ]
        return {
            "images": [
                {
                    "id": p.id,
                    "file_name": p.path.name,
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
                    "area": thing.area,
                    "segmentation": thing.segmentation,
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
        if not isinstance(image, int) or image not in pictures:
            raise ValueError(f"{where} is of image {image}, which is not there")
        if not isinstance(category, int) or category not in categories:
            raise ValueError(f"{where} is of category {category}, which is not there")
        picture = pictures[image]
        box = _inside(entry.get("bbox"), picture, where)
        if box is None:
            left_out["no part of the box is in the image"] += 1
            continue
        if not entry.get("segmentation"):
            left_out["no mask"] += 1
            continue
        code = _segmentation(entry["segmentation"], picture, where)
        area = float(entry.get("area") or box[2] * box[3])
        crowd = bool(entry.get("iscrowd", 0))
        thing = Thing(entry.get("id"), category, box, area, code, crowd)
        picture.things.append(thing)
    return Coco(annotations, list(pictures.values()), categories, dict(left_out))


def _load(path: Path) -> dict[str, Any]:
    try:
        described = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
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
        if not isinstance(number, int) or number < 1 or not isinstance(name, str):
            raise ValueError(
                f"{path}: a category must have a name and an id from 1 on (0 is the "
                f"background's), got {entry}"
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
        numbers = [number, *size]
        if not all(isinstance(n, int) for n in numbers) or not isinstance(name, str):
            raise ValueError(
                f"{path}: an image must have a file_name, and whole numbers as id, "
                f"height and width, got {entry}"
            )
        if number in pictures:
            raise ValueError(f"{path} has two images of id {number}")
        if min(size) < 1:
            raise ValueError(f"{path}: image {number} is {size[0]} x {size[1]} pixels")
        inside = os.path.normpath(name)
        if os.path.isabs(inside) or inside.startswith(os.pardir):
            raise ValueError(f"{path}: {name} of image {number} is not in {images}")
        if not (images / name).is_file():
            missing.append(name)
        pictures[number] = Picture(number, images / name, *size, [])
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(entries)} images of {path} are not in "
            f"{images}: {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}"
        )
    if not pictures:
        raise ValueError(f"{path} must have images, it has none")
    return pictures


def _inside(
    box: Any, picture: Picture, where: str
) -> tuple[float, float, float, float] | None:
    """The part of a box that is in its image; None without any."""
    try:
        left, top, width, height = map(float, box)
    except (TypeError, ValueError):
        left = top = width = height = math.nan
    if not all(map(math.isfinite, (left, top, width, height))):
        raise ValueError(
            f"{where} must have a bbox of four numbers, left, top, width and height, "
            f"got {box}"
        )
    right, bottom = min(left + width, picture.width), min(top + height, picture.height)
    left, top = max(left, 0.0), max(top, 0.0)
    if right <= left or bottom <= top:
        return None
    return left, top, right - left, bottom - top


def _segmentation(code: Any, picture: Picture, where: str) -> Any:
    """The same, if it is one of COCO's: polygons, or run lengths of the whole image."""
    size = [picture.height, picture.width]
    if isinstance(code, dict):
        counts = code.get("counts")
        right = code.get("size") == size and isinstance(counts, str | list)
        if right and isinstance(counts, list):
            whole = all(isinstance(n, int) and n >= 0 for n in counts)
            right = whole and sum(counts) == size[0] * size[1]
    else:
        right = isinstance(code, list) and all(
            isinstance(polygon, list) and len(polygon) >= 6 and len(polygon) % 2 == 0
            for polygon in code
        )
    if not right:
        raise ValueError(
            f"{where} must have polygons of three points or more, or run lengths of "
            f"{size[0]} x {size[1]} pixels, as its segmentation, got {str(code)[:80]}"
        )
    return code
