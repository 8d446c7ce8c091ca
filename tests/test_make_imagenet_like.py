"""tools/make_imagenet_like.py: the archives' layout, and images that repeat."""

import importlib
import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS))
make_imagenet_like = importlib.import_module("make_imagenet_like")


def decoded(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.float32)


def test_the_layout_is_the_original_archives(tmp_path):
    kinds = {"classes": 2, "train_images": 5, "validation_images": 3}
    make_imagenet_like.write(tmp_path, **kinds)
    with tarfile.open(tmp_path / "ILSVRC2012_img_train.tar") as archive:
        assert archive.getnames() == ["n01440764.tar", "n01440765.tar"]
        with tarfile.open(fileobj=archive.extractfile("n01440765.tar")) as inner:
            assert inner.getnames() == ["n01440765_1.JPEG", "n01440765_3.JPEG"]
            image = Image.open(inner.extractfile("n01440765_3.JPEG"))
            assert (image.format, image.size) == ("JPEG", (500, 375))
    with tarfile.open(tmp_path / "ILSVRC2012_img_val.tar") as archive:
        assert archive.getnames() == [
            f"ILSVRC2012_val_{number:08d}.JPEG" for number in (1, 2, 3)
        ]
    labels = (tmp_path / "validation_labels.txt").read_text().split("\n")
    assert sorted(labels) == ["", "n01440764", "n01440764", "n01440765"]

    again = tmp_path / "again"
    make_imagenet_like.write(again, **kinds)
    for path in again.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_an_image_depends_on_its_arguments_alone():
    photograph = make_imagenet_like.photograph
    first = photograph(3, 80, 60, label=1, seed=2)
    assert photograph(3, 80, 60, label=1, seed=2) == first
    others = [
        photograph(4, 80, 60, label=1, seed=2),
        photograph(3, 80, 60, label=0, seed=2),
        photograph(3, 80, 60, label=1, seed=3),
    ]
    assert first not in others
    assert decoded(first).shape == (60, 80, 3)


def test_classes_can_be_told_apart():
    """The nearest class by mean colour is the right one far more often than 1 in 8."""
    colours = np.array(
        [
            [
                decoded(make_imagenet_like.photograph(i, 80, 60, label=label)).mean(
                    (0, 1)
                )
                for i in range(8)
            ]
            for label in range(8)
        ]
    )
    means = colours[:, :4].mean(1)  # [classes, 3]
    distances = np.linalg.norm(colours[:, 4:, None] - means, axis=-1)
    right = distances.argmin(-1) == np.arange(8)[:, None]
    assert right.mean() > 0.5


def test_sizes_in_bytes_are_as_asked():
    for wanted in (60_000, 110_000):
        quality = make_imagenet_like.quality_for(wanted)
        files = [
            make_imagenet_like.photograph(100 + i, label=i, quality=quality)
            for i in range(8)
        ]
        assert 0.85 < sum(map(len, files)) / 8 / wanted < 1.2
    with pytest.raises(ValueError, match="at most"):
        make_imagenet_like.quality_for(10_000_000)


def test_each_odd_kind_is_what_its_name_says():
    made = {kind: make_imagenet_like.odd(kind, 0) for kind in make_imagenet_like.ODD}
    assert made["empty"] == b""
    with pytest.raises(OSError, match="truncated"):
        Image.open(io.BytesIO(made["cut off"])).load()
    opened = {kind: Image.open(io.BytesIO(data)) for kind, data in made.items() if data}
    assert opened["cmyk"].mode == "CMYK" and "adobe" in opened["cmyk"].info
    assert opened["png"].format == "PNG"
    assert opened["grey"].mode == "L"
    assert opened["rotated"].getexif()[0x0112] == 6
    assert "progressive" in opened["progressive"].info
    assert opened["one pixel"].size == (1, 1)
    assert opened["wide"].size == (1500, 12) and opened["tall"].size == (12, 1500)
