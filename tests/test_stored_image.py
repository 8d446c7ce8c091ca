"""tools/stored_image.py: what keeps its bytes, and what becomes of the rest."""

import importlib
import io

import numpy as np
import pytest
from PIL import Image
from preparation import make_imagenet_like, pixels

from tf_goyal import image_header

stored_image = importlib.import_module("stored_image")


@pytest.fixture(scope="module")
def photo():
    return make_imagenet_like.photograph(0, 200, 150)


def test_an_image_that_any_decoder_takes_keeps_its_bytes(photo):
    image = Image.open(io.BytesIO(photo))
    for options in ({"progressive": True}, {"restart_marker_rows": 1}):
        file = io.BytesIO()
        image.save(file, "JPEG", comment=b"\xff\xd9", **options)
        kept = stored_image.stored(file.getvalue())
        assert kept == (file.getvalue(), 150, 200, "")
    junk = photo + b"junk after the end"
    assert stored_image.stored(junk) == (junk, 150, 200, "")


def test_a_jpeg_without_its_end_is_decoded_to_see():
    # A thumbnail in the header has an end of its own, which is not the image's.
    photo = make_imagenet_like.photograph(1, 200, 150)
    inner = make_imagenet_like.photograph(1, 20, 15)
    segment = b"\xff\xe5" + (len(inner) + 2).to_bytes(2, "big") + inner
    data = photo[:2] + segment + photo[2:]
    assert stored_image.stored(data).data == data
    for cut in (data[:-2], data[: len(data) // 2], data[:30], b"\xff\xd8"):
        with pytest.raises(stored_image.BadImage):
            stored_image.stored(cut)


def test_an_image_that_is_too_large_to_decode_is_bad(photo):
    """Case D5: its header says 65,535 x 65,535 pixels, which would take 12 GB."""
    frame = photo.index(b"\xff\xc0")
    data = photo[: frame + 5] + b"\xff" * 4 + photo[frame + 9 :]
    assert image_header.read(data).height == image_header.read(data).width == 65_535
    with pytest.raises(stored_image.BadImage, match="cannot be decoded"):
        stored_image.stored(data)


def test_photographs_keep_a_quarter_of_their_colours_and_pngs_all(photo):
    def sampling(data):
        """Of the brightness, per sample of colour: across and down."""
        return Image.open(io.BytesIO(data)).layer[0][1:3]

    file = io.BytesIO()
    Image.open(io.BytesIO(photo)).save(file, "PNG")
    assert sampling(stored_image.stored(photo, quality=50).data) == (2, 2)
    assert sampling(stored_image.stored(file.getvalue()).data) == (1, 1)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "I;16"])
def test_every_png_becomes_rgb(mode):
    levels = np.linspace(0, 255, 64 * 64).reshape(64, 64).astype(np.uint8)
    if mode == "I;16":
        image = Image.fromarray(levels.astype(np.uint16) * 257)
    else:
        image = Image.fromarray(levels).convert(mode)
    file = io.BytesIO()
    image.save(file, "PNG")
    kept = stored_image.stored(file.getvalue())
    assert kept[1:] == (64, 64, "PNG")
    made = Image.open(io.BytesIO(kept.data))
    assert made.mode == "RGB" and made.format == "JPEG"
    if mode != "1":
        assert np.abs(pixels(kept.data)[:, :, 0] - levels).mean() < 2


def test_max_side_and_quality_store_less(photo):
    kept = stored_image.stored(photo, max_side=100)
    assert kept[1:] == (75, 100, "")
    assert pixels(kept.data).shape == (75, 100, 3)
    wanted = np.asarray(
        Image.open(io.BytesIO(photo)).resize((100, 75), Image.Resampling.LANCZOS)
    )
    assert np.abs(pixels(kept.data) - wanted).mean() < 8
    assert stored_image.stored(photo, max_side=200).data == photo
    less = stored_image.stored(photo, quality=50)
    assert less[1:] == (150, 200, "") and len(less.data) < len(photo) / 2
    assert stored_image.stored(less.data, quality=90).data == less.data
    grey = io.BytesIO()
    Image.open(io.BytesIO(photo)).convert("L").save(grey, "JPEG", quality=95)
    less = stored_image.stored(grey.getvalue(), quality=50)
    assert Image.open(io.BytesIO(less.data)).mode == "L"


def test_the_orientation_is_ignored(photo):
    data = make_imagenet_like.odd("rotated", 0)
    assert stored_image.stored(data) == (data, 375, 500, "")
    small = stored_image.stored(data, max_side=100)
    assert small[1:] == (75, 100, "")
    assert not Image.open(io.BytesIO(small.data)).getexif()
