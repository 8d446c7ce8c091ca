"""Makes a small detection set in COCO's format from the embedded handwritten digits.

python tools/make_digits_coco.py --out=COCO [--train=500 --validation=100 --size=256]

Digits of random sizes and colours lie on textured backgrounds, some over others. The
masks are exact: which pixels of an image a digit is seen at. Training images hold
digits of the training split, validation images those of the validation split. The same
flags give the same files with the same versions of Pillow and NumPy. Written are

    COCO/train/000000000001.jpg ...        COCO/annotations/train.json
    COCO/validation/000000000001.jpg ...   COCO/annotations/validation.json
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags as absl_flags
from PIL import Image

from tf_goyal import datasets, flags

_MOST = 8  # digits in an image
_SMALLEST, _LARGEST = 0.12, 0.45  # of the image's side
_SEEN = 0.5  # of a digit, at least, when all lie there
_INK = 0.35  # of full ink, from which on a pixel is the digit's
_TRIES = 8


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    absl_flags.DEFINE_string("out", None, "Folder to make.", flag_values=values)

    def number(name: str, default: int, text: str, least: int) -> None:
        absl_flags.DEFINE_integer(
            name, default, text, lower_bound=least, flag_values=values
        )

    number("train", 500, "Training images.", 1)
    number("validation", 100, "Validation images.", 1)
    number("size", 256, "Height and width of an image, in pixels.", 32)
    number("seed", 0, "Of all that is drawn.", 0)


def scene(
    digits: list[tuple[np.ndarray, int]], size: int, random: np.random.Generator
) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """An image, and what is seen in it.

    Args:
      digits: (ink [h, w], 0 to 1; label) of those to choose from.
      size: height and width of the image.
      random: draws everything.

    Returns:
      uint8 [size, size, 3], and for each digit its label and its mask, bool
      [size, size]; no two masks share a pixel.
    """
    coarse = random.uniform(0, 110, [1 + size // 24, 1 + size // 24, 3])
    image = _resized(coarse, (size, size)) + random.normal(0, 6, [size, size, 3])
    placed: list[tuple[int, np.ndarray]] = []
    whole: list[int] = []  # pixels of each, before others lay over it
    for _ in range(random.integers(1, _MOST + 1)):
        for _ in range(_TRIES):
            glyph, label = digits[random.integers(len(digits))]
            side = size * random.uniform(_SMALLEST, _LARGEST)
            height, width = (side * random.uniform(0.8, 1.0, 2)).astype(int)
            top, left = (random.integers(0, size - n + 1) for n in (height, width))
            ink = np.zeros([size, size])
            ink[top : top + height, left : left + width] = _resized(
                glyph, (height, width)
            )
            mask = ink > _INK
            rest = [old & ~mask for _, old in placed]
            if not mask.any() or any(
                seen.sum() < _SEEN * area
                for seen, area in zip(rest, whole, strict=True)
            ):
                continue
            colour = random.uniform(120, 255, 3)
            image = np.where(mask[..., None], ink[..., None] * colour, image)
            labels = [kept for kept, _ in placed]
            placed = [*zip(labels, rest, strict=True), (label, mask)]
            whole.append(int(mask.sum()))
            break
    return np.clip(np.rint(image), 0, 255).astype(np.uint8), placed


def _resized(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Float [h, w] or [h, w, c] in another height and width."""
    channels = values[..., None] if values.ndim == 2 else values
    height, width = shape
    planes = [
        Image.fromarray(channels[..., c].astype(np.float32)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        for c in range(channels.shape[-1])
    ]
    return np.squeeze(np.stack([np.asarray(plane) for plane in planes], -1))


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """COCO's uncompressed code of a mask: lengths of runs of 0 and 1, by columns.

    >>> run_lengths(np.array([[False, True], [False, True]]))
    {'size': [2, 2], 'counts': [2, 2]}
    """
    flat = mask.flatten(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *edges, flat.size]).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


def annotation(number: int, image: int, label: int, mask: np.ndarray) -> dict[str, Any]:
    """COCO's entry of one digit; its box is that of what is seen of it."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    top, left = int(rows[0]), int(columns[0])
    return {
        "id": number,
        "image_id": image,
        "category_id": label + 1,  # 0 is the background's
        "bbox": [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1],
        "area": int(mask.sum()),
        "segmentation": run_lengths(mask),
        "iscrowd": 0,
    }


def write(
    split: Any, labels: list[str], folder: Path, count: int, size: int, seed: int
) -> None:
    """Writes the images and the annotations of one split."""
    digits = []
    for record in range(len(split)):
        encoded, label = split.read(record)
        ink = np.asarray(Image.open(io.BytesIO(encoded)).convert("L"), np.float32) / 255
        digits.append((ink, int(label)))
    (folder / split.name).mkdir()
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        random = np.random.default_rng([seed, split.name == "train", number])
        pixels, placed = scene(digits, size, random)
        file = f"{number:012}.jpg"
        Image.fromarray(pixels).save(folder / split.name / file, quality=92)
        images.append({"id": number, "file_name": file, "height": size, "width": size})
        for label, mask in placed:
            annotations.append(annotation(len(annotations) + 1, number, label, mask))
    categories = [{"id": i, "name": name} for i, name in enumerate(labels, start=1)]
    described = {
        "images": images,
        "annotations": annotations,
        "categories": categories,
    }
    path = folder / "annotations" / f"{split.name}.json"
    path.write_text(json.dumps(described), encoding="utf-8")
    print(f"{path}: {count} images, {len(annotations)} digits", flush=True)


def main(_: list[str]) -> int:
    """Writes both splits. Returns the exit code."""
    values = flags.FLAGS
    if not values.out:
        raise ValueError("--out must name a folder to make, received none")
    folder = Path(values.out)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(
                f"--out must name a new folder or an empty one; {folder} holds "
                f"{sorted(path.name for path in folder.iterdir())[0]}"
            )
        (folder / "annotations").mkdir(parents=True)
    except OSError as error:
        raise ValueError(
            f"--out must name a folder that can be made, received {folder}: "
            f"{error.strerror}"
        ) from error
    data = datasets.load("digits")
    for split, count in (
        (data.train, values.train),
        (data.validation, values.validation),
    ):
        write(split, list(data.labels), folder, count, values.size, values.seed)
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
