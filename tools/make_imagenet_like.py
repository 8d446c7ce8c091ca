"""Makes a synthetic ImageNet, in the layout of the original archives.

python tools/make_imagenet_like.py --out=ARCHIVES [--odd]

The images are cut from the two photographs that scikit-learn ships; each class has its
own region, colours and pattern, so that a classifier can learn it. The same flags give
the same bytes with the same versions of Pillow, NumPy and scikit-learn. Written are

    ARCHIVES/ILSVRC2012_img_train.tar   a tar per class, n01440764.tar
    ARCHIVES/ILSVRC2012_img_val.tar     ILSVRC2012_val_00000001.JPEG and so on
    ARCHIVES/validation_labels.txt      a synset a line, in the order of the file names
"""

import bisect
import concurrent.futures
import functools
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import flags as absl_flags
from PIL import Image
from sklearn.datasets import load_sample_images

from tf_goyal import flags

_FIRST_SYNSET = 1440764
_GRAIN = 11.0  # levels of 255: makes files as large as a camera's
_VALIDATION = 1 << 40  # added to the index: validation images differ from training's


def photograph(
    index: int,
    width: int = 500,
    height: int = 375,
    *,
    label: int = 0,
    seed: int = 0,
    quality: int = 94,
) -> bytes:
    """A JPEG, the same for the same arguments; by default about 110 KB.

    Args:
      index: which image.
      width: pixels.
      height: pixels.
      label: its class, which decides region, colours and pattern.
      seed: of the whole set.
      quality: of the JPEG, 1 to 95.
    """
    return _jpeg(_image(index, width, height, label, seed), quality=quality)


def _image(index: int, width: int, height: int, label: int, seed: int) -> Image.Image:
    photographs = _photographs()
    of_class = np.random.default_rng([seed, 0, label])
    of_image = np.random.default_rng([seed, 1, label, index])
    whole = photographs[of_class.integers(len(photographs))]
    # The class says where to look, the image by how much to be off.
    scale = of_image.uniform(0.55, 0.75) * min(
        whole.width / width, whole.height / height
    )
    size = np.array([width, height]) * scale
    room = np.array([whole.width, whole.height]) - size
    shift = of_class.uniform(0.15, 0.85, 2) + of_image.uniform(-0.15, 0.15, 2)
    left, top = shift * room
    box = (left, top, left + size[0], top + size[1])
    cut = whole.resize((width, height), Image.Resampling.BICUBIC, box=box)
    pixels = np.asarray(cut, np.float32)  # [height, width, 3]
    pixels *= of_class.uniform(0.6, 1.2, 3).astype(np.float32)
    angle, period = of_class.uniform(0, np.pi), of_class.uniform(12, 60)  # pixels
    down = np.arange(height, dtype=np.float32)[:, None]
    across = np.arange(width, dtype=np.float32)[None]
    along = np.cos(angle) * across + np.sin(angle) * down
    phase = of_image.uniform(0, 2 * np.pi)
    stripes = 18 * np.sin(along * np.float32(2 * np.pi / period) + np.float32(phase))
    grain = of_image.standard_normal((height, width), np.float32) * _GRAIN
    pixels += (stripes + grain)[:, :, None]
    pixels += np.float32(of_image.uniform(-15, 15))  # brightness
    return Image.fromarray(np.clip(pixels, 0, 255, out=pixels).astype(np.uint8))


@functools.cache
def _photographs() -> list[Image.Image]:
    return [Image.fromarray(pixels) for pixels in load_sample_images().images]


def _jpeg(image: Image.Image, **options) -> bytes:
    return _encoded(image, "JPEG", **{"quality": 94, **options})


def _encoded(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _rotated(image: Image.Image) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: to be turned by 90 degrees
    return _jpeg(image, exif=exif)


def _cut_off(image: Image.Image) -> bytes:
    data = _jpeg(image)
    return data[: len(data) // 2]


# What real sets hold beside plain JPEGs, by name: an image as such a file. "cut off"
# and "empty" cannot be used, "cmyk" and "png" are no RGB JPEGs.
ODD: dict[str, Callable[[Image.Image], bytes]] = {
    "cmyk": lambda image: _jpeg(image.convert("CMYK")),  # inverted, as Adobe does
    "png": lambda image: _encoded(image, "PNG"),
    "grey": lambda image: _jpeg(image.convert("L")),
    "rotated": _rotated,
    "cut off": _cut_off,
    "empty": lambda image: b"",
    "progressive": lambda image: _jpeg(image, progressive=True),
    "one pixel": lambda image: _jpeg(image.resize((1, 1))),
    "wide": lambda image: _jpeg(image.resize((1500, 12))),
    "tall": lambda image: _jpeg(image.resize((12, 1500))),
}


def odd(kind: str, index: int, label: int = 0, seed: int = 0) -> bytes:
    """An image of a kind of `ODD`, of 500x375 pixels where the kind leaves it open."""
    return ODD[kind](_image(index, 500, 375, label, seed))


def quality_for(image_bytes: int) -> int:
    """The lowest JPEG quality at which images of 500x375 take so many bytes.

    Raises:
      ValueError: they are smaller at every quality.
    """
    qualities = range(1, 96)

    def size(quality: int) -> float:
        files = [photograph(i, label=i, quality=quality) for i in range(4)]
        return sum(map(len, files)) / len(files)

    if size(qualities[-1]) < image_bytes:
        raise ValueError(
            f"--image_bytes must be at most {size(qualities[-1]):,.0f} for 500x375 "
            f"pixels, got {image_bytes:,}"
        )
    return qualities[bisect.bisect_left(qualities, image_bytes, key=size)]


def _size(index: int, seed: int) -> tuple[int, int]:
    """Width and height in pixels, spread as ImageNet's: most about 500 on a side."""
    random = np.random.default_rng([seed, 2, index])
    long = int(np.clip(500 * np.exp(random.normal(0, 0.25)), 100, 1200))
    short = int(long * random.uniform(0.6, 1))
    return (long, short) if random.random() < 0.75 else (short, long)


def write(
    out: Path,
    *,
    classes: int,
    train_images: int,
    validation_images: int,
    quality: int = 94,
    seed: int = 0,
    varied: bool = False,
    with_odd: bool = False,
) -> None:
    """Writes the two archives and the labels; image i is of class i % classes.

    Args:
      out: the folder, made if it is not there.
      classes: how many.
      train_images: in all.
      validation_images: in all.
      quality: of the JPEGs.
      seed: of the whole set.
      varied: sizes and aspect ratios differ as ImageNet's do, else 500x375 pixels.
      with_odd: the first images of each split are of the kinds of `ODD`.
    """
    kinds = list(ODD) if with_odd else []

    def image(place: int, index: int) -> bytes:
        label = place % classes
        if place < len(kinds):
            return odd(kinds[place], index, label, seed)
        size = _size(index, seed) if varied else (500, 375)
        return photograph(index, *size, label=label, seed=seed, quality=quality)

    out.mkdir(parents=True, exist_ok=True)
    synsets = [f"n{_FIRST_SYNSET + label:08d}" for label in range(classes)]
    train = out / "ILSVRC2012_img_train.tar"
    with (
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
        tarfile.open(train, "w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for label, synset in enumerate(synsets):
            places = range(label, train_images, classes)
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w", format=tarfile.GNU_FORMAT) as of:
                for place, data in zip(places, pool.map(image, places, places)):
                    _add(of, f"{synset}_{place}.JPEG", data)
            _add(archive, f"{synset}.tar", inner.getvalue())
    # Classes come in a mixed order, as in ImageNet: file k is image order[k].
    order = np.random.default_rng(seed).permutation(validation_images).tolist()
    with (
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
        tarfile.open(
            out / "ILSVRC2012_img_val.tar", "w", format=tarfile.GNU_FORMAT
        ) as archive,
    ):
        files = pool.map(image, order, [place + _VALIDATION for place in order])
        for number, data in enumerate(files, start=1):
            _add(archive, f"ILSVRC2012_val_{number:08d}.JPEG", data)
    labels = "".join(f"{synsets[place % classes]}\n" for place in order)
    (out / "validation_labels.txt").write_text(labels)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""

    def number(name: str, default: int, text: str, lowest: int = 1) -> None:
        absl_flags.DEFINE_integer(
            name, default, text, lower_bound=lowest, flag_values=values
        )

    absl_flags.DEFINE_string(
        "out", None, "Folder of the archives.", flag_values=values, required=True
    )
    number("classes", 20, "Number of classes.")
    number("train_images", 2000, "Training images, in all classes together.")
    number("validation_images", 200, "Validation images.")
    number("image_bytes", 110_000, "Bytes of an image of 500x375 pixels, on average.")
    number("seed", 0, "Another seed makes another set.", lowest=0)
    absl_flags.DEFINE_boolean(
        "varied",
        False,
        "Sizes and aspect ratios differ as ImageNet's do; otherwise all images have "
        "500x375 pixels.",
        flag_values=values,
    )
    absl_flags.DEFINE_boolean(
        "odd",
        False,
        f"The first images of both splits are odd: {', '.join(ODD)}.",
        flag_values=values,
    )


def main(_: list[str]) -> None:
    """Writes the archives and says where."""
    values = flags.FLAGS
    write(
        Path(values.out),
        classes=values.classes,
        train_images=values.train_images,
        validation_images=values.validation_images,
        quality=quality_for(values.image_bytes),
        seed=values.seed,
        varied=values.varied,
        with_odd=values.odd,
    )
    print(
        f"{values.out}: {values.train_images:,} training and "
        f"{values.validation_images:,} validation images of {values.classes:,} classes"
    )


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
