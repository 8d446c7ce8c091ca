"""A data set in COCO's format, read and checked. Needs Python alone."""

import collections
import dataclasses
import json
import math
from pathlib import Path
from typing import Any


@dataclasses.dataclass
class Thing:
    """What is seen in an image.

    Attributes:
      category: its id.
      box: (left, top, width, height) in pixels, inside the image.
      area: of its mask, in pixels.
      segmentation: as in the file: polygons, or run lengths.
      crowd: whether it is a region with many of them.
    """

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
      pictures: in the order of the file.
      categories: id to name.
      left_out: reason to how many annotations.
    """

    pictures: list[Picture]
    categories: dict[int, str]
    left_out: dict[str, int]

    @property
    def classes(self) -> int:
        """Numbers that a detector tells apart: 0 is the background's."""
        return max(self.categories) + 1


def read(annotations: Path, images: Path) -> Coco:
    """Reads and checks a data set.

    What cannot be trained on is left out and counted: annotations without a mask, and
    those whose box has no part in the image. A box that is partly outside is cut.

    Args:
      annotations: the JSON file.
      images: folder of the images.

    Raises:
      ValueError: the file is none of COCO's, contradicts itself, or its images are not
        there. The message names the file and the entry.
    """
    described = _load(annotations)
    categories = {c["id"]: str(c["name"]) for c in described["categories"]}
    if not categories or min(categories) < 1:
        raise ValueError(
            f"{annotations} must have categories with ids from 1 on (0 is the "
            f"background's), got {sorted(categories)[:3] or 'none'}"
        )
    pictures = _pictures(annotations, described["images"], images)
    left_out: collections.Counter[str] = collections.Counter()
    for entry in described["annotations"]:
        where = f"{annotations}: annotation {entry.get('id')}"
        picture = pictures.get(entry.get("image_id"))
        if picture is None:
            raise ValueError(
                f"{where} is of image {entry.get('image_id')}, which is not there"
            )
        if entry.get("category_id") not in categories:
            raise ValueError(
                f"{where} is of category {entry.get('category_id')}, which is not there"
            )
        box = _inside(entry.get("bbox"), picture, where)
        if box is None:
            left_out["no part of the box is in the image"] += 1
        elif not entry.get("segmentation"):
            left_out["no mask"] += 1
        else:
            picture.things.append(
                Thing(
                    entry["category_id"],
                    box,
                    float(entry.get("area") or box[2] * box[3]),
                    entry["segmentation"],
                    bool(entry.get("iscrowd", 0)),
                )
            )
    return Coco(list(pictures.values()), categories, dict(left_out))


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


def _pictures(
    annotations: Path, entries: list[dict[str, Any]], images: Path
) -> dict[int, Picture]:
    pictures: dict[int, Picture] = {}
    missing = []
    for entry in entries:
        try:
            number, name = entry["id"], entry["file_name"]
            height, width = int(entry["height"]), int(entry["width"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{annotations}: an image must have id, file_name, height and width, "
                f"got {entry}"
            ) from error
        if number in pictures:
            raise ValueError(f"{annotations} has two images of id {number}")
        if height < 1 or width < 1:
            raise ValueError(
                f"{annotations}: image {number} is {height} x {width} pixels"
            )
        path = images / name
        if images.resolve() not in path.resolve().parents:
            raise ValueError(
                f"{annotations}: {name} of image {number} is not in {images}"
            )
        if not path.is_file():
            missing.append(name)
        pictures[number] = Picture(number, path, height, width, [])
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(entries)} images of {annotations} are not in "
            f"{images}: {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}"
        )
    if not pictures:
        raise ValueError(f"{annotations} must have images, it has none")
    return pictures


def _inside(
    box: Any, picture: Picture, where: str
) -> tuple[float, float, float, float] | None:
    """The part of a box that is in its image; None without any."""
    try:
        left, top, width, height = map(float, box)
    except (TypeError, ValueError):
        left = math.nan
    if not math.isfinite(left) or not all(map(math.isfinite, (top, width, height))):
        raise ValueError(
            f"{where} must have a bbox of four numbers, left, top, width and height, "
            f"got {box}"
        )
    right, bottom = min(left + width, picture.width), min(top + height, picture.height)
    left, top = max(left, 0.0), max(top, 0.0)
    if right <= left or bottom <= top:
        return None
    return left, top, right - left, bottom - top
