"""Headers of images of every kind, against Pillow and what TensorFlow decodes."""

import io
import itertools
import struct

import numpy as np
import pytest
import tensorflow as tf
from pictures import EXIF_ORIENTATION, cmyk, encode, jpeg, pixels
from PIL import Image

from tf_goyal import augment, image_header
from tf_goyal.image_header import ImageHeader

SIZES = [(1, 1), (1, 9), (8, 8), (17, 33), (300, 5)]


def of(mode: str, height: int = 9, width: int = 14) -> Image.Image:
    image = Image.fromarray(pixels(height, width))
    return image.convert(mode) if mode != "I;16" else Image.new(mode, (width, height))


def as_tensorflow_decodes(data: bytes) -> tuple[int, int]:
    return tuple(augment.decode(data, "fast").shape[:2])


JPEGS = {
    "baseline": {},
    "progressive": {"progressive": True},
    "optimized": {"optimize": True},
    "4:4:4": {"subsampling": 0},
    "4:2:0": {"subsampling": 2},
    "restarts": {"restart_marker_rows": 1},
    "comment": {"comment": b"\xff\xd9 and \xff\xda"},
    "icc": {"icc_profile": bytes(range(256)) * 600},  # three segments
}


@pytest.mark.parametrize("mode, channels", [("L", 1), ("RGB", 3), ("CMYK", 4)])
@pytest.mark.parametrize("options", JPEGS.values(), ids=JPEGS)
@pytest.mark.parametrize("size", SIZES)
def test_jpegs(mode, channels, options, size):
    data = encode(of(mode, *size), "JPEG", **options)
    assert image_header.read(data) == ImageHeader("JPEG", *size, channels, usual=True)
    assert as_tensorflow_decodes(data) == size


@pytest.mark.parametrize(
    ("marker", "precision", "usual"),
    [(0xC0, 8, True), (0xC1, 12, False), (0xC3, 8, False), (0xC9, 8, False)],
)
def test_unusual_jpegs(marker, precision, usual):
    """Baseline; 12 bits, lossless and arithmetic coding, which few decoders take."""
    data = bytearray(encode(of("RGB"), "JPEG"))
    frame = data.index(b"\xff\xc0")
    data[frame + 1], data[frame + 4] = marker, precision
    header = image_header.read(bytes(data))
    assert header == ImageHeader("JPEG", 9, 14, 3, usual=usual)


@pytest.mark.parametrize(
    ("mode", "channels"),
    [("1", 1), ("L", 1), ("I;16", 1), ("LA", 2), ("RGB", 3), ("P", 3), ("RGBA", 4)],
)
def test_pngs(mode, channels):
    data = encode(of(mode), "PNG")
    assert image_header.read(data) == ImageHeader("PNG", 9, 14, channels)
    assert as_tensorflow_decodes(data) == (9, 14)


@pytest.mark.parametrize("mode", ["L", "P", "RGB"])
def test_bmps_from_bottom_to_top_and_from_top_to_bottom(mode):
    data = bytearray(encode(of(mode), "BMP"))
    assert image_header.read(bytes(data)) == ImageHeader("BMP", 9, 14)
    struct.pack_into("<i", data, 22, -9)
    assert image_header.read(bytes(data)) == ImageHeader("BMP", 9, 14)
    assert as_tensorflow_decodes(bytes(data)) == (9, 14)


def gif(*frames: tuple[int, int], screen: tuple[int, int] | None = None) -> bytes:
    """An animation of frames (height, width), each at the upper left."""
    parts = []
    for height, width in frames:
        data = encode(Image.new("P", (width, height), 1), "GIF")
        start = data.index(b"\x2c", 13)
        parts.append(data[start:-1])
    head = bytearray(data[:start])
    if screen:
        struct.pack_into("<HH", head, 6, *reversed(screen))
    return bytes(head) + b"".join(parts) + b"\x3b"


@pytest.mark.parametrize(
    ("frames", "screen"),
    [
        ([(9, 14)], None),
        ([(9, 14)], (40, 50)),  # TensorFlow decodes the picture, not the screen
        ([(9, 14)], (3, 4)),
        ([(9, 14)], (0, 0)),
        ([(9, 14), (4, 20), (2, 2)], None),  # and gives it the size of all together
    ],
)
def test_gifs(frames, screen):
    data = gif(*frames, screen=screen)
    height, width = np.max(frames, axis=0).tolist()
    assert image_header.read(data) == ImageHeader("GIF", height, width)
    assert as_tensorflow_decodes(data) == (height, width)


def test_an_animation_with_extensions():
    frames = [Image.fromarray(pixels(9, 14, seed)).quantize() for seed in range(3)]
    data = encode(
        frames[0], "GIF", save_all=True, append_images=frames[1:], loop=2, comment=b"x"
    )
    assert image_header.read(data) == ImageHeader("GIF", 9, 14)
    assert as_tensorflow_decodes(data) == (9, 14)


def test_sizes_as_pillow_reads_them():
    random = np.random.default_rng(0)
    kinds = itertools.cycle(["JPEG", "PNG", "GIF", "BMP"])
    for kind, (height, width) in zip(kinds, random.integers(1, 200, [80, 2]).tolist()):
        data = encode(Image.new("RGB", (width, height), (1, 2, 3)), kind)
        header = image_header.read(data)
        with Image.open(io.BytesIO(data)) as image:
            assert (header.format, header.width, header.height) == (
                image.format,
                *image.size,
            )


def exif(orientation: int, order: bytes = b"II", kind: int = 3) -> bytes:
    """An EXIF segment's contents: two tags, the second the orientation."""
    mark = {b"II": "<", b"MM": ">"}[order]
    head = order + struct.pack(mark + "HI", 42, 8)
    width = struct.pack(mark + "HHIHH", 0x0100, 3, 1, 14, 0)
    turned = struct.pack(mark + "HHIHH", EXIF_ORIENTATION, kind, 1, orientation, 0)
    return b"Exif\0\0" + head + struct.pack(mark + "H", 2) + width + turned + bytes(4)


def with_segment(data: bytes, contents: bytes, marker: bytes = b"\xff\xe1") -> bytes:
    """A JPEG with one more segment at its beginning."""
    return (
        data[:2] + marker + struct.pack(">H", len(contents) + 2) + contents + data[2:]
    )


@pytest.mark.parametrize("order", [b"II", b"MM"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations(order, orientation):
    """The size stays that of the pixels as stored."""
    data = with_segment(jpeg(9, 14), exif(orientation, order))
    assert image_header.read(data) == ImageHeader("JPEG", 9, 14, 3, orientation, True)
    with Image.open(io.BytesIO(data)) as image:
        assert image.getexif()[EXIF_ORIENTATION] == orientation


def test_orientation_as_pillow_writes_it():
    written = Image.Exif()
    written[EXIF_ORIENTATION] = 8
    assert image_header.read(jpeg(9, 14, exif=written)).orientation == 8


def test_xmp_does_not_hide_the_orientation():
    """XMP stands in a segment with the same marker, in front or behind."""
    xmp = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>"
    turned = with_segment(jpeg(), exif(6))
    assert image_header.read(with_segment(turned, xmp)).orientation == 6
    assert image_header.read(with_segment(with_segment(jpeg(), xmp), exif(6)))
    behind = with_segment(with_segment(jpeg(), xmp), exif(6))
    assert image_header.read(behind).orientation == 6


@pytest.mark.parametrize(
    "contents",
    [
        exif(0),
        exif(9),
        exif(6, kind=4),
        b"Exif\0\0",
        b"Exif\0\0XX" + exif(6)[8:],
        exif(6).replace(struct.pack("<I", 8), struct.pack("<I", 2**32 - 1), 1),
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff",  # 65,535 tags, of which none is there
        *(exif(6)[:length] for length in range(5, 38)),
    ],
)
def test_a_broken_exif_segment_hinders_nobody(contents):
    header = image_header.read(with_segment(jpeg(9, 14), contents))
    assert header == ImageHeader("JPEG", 9, 14, 3, 1, True)


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_d5_a_jpeg_that_is_cut_off_anywhere_is_refused(options):
    whole = jpeg(17, 33, **options)
    image_header.read(whole)
    for length in range(len(whole)):
        with pytest.raises(ValueError) as caught:
            image_header.read(whole[:length])
        assert type(caught.value) is ValueError


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP"])
def test_other_formats_cut_off_raise_nothing_else(kind):
    whole = encode(of("RGB"), kind)
    for length in range(len(whole)):
        try:
            image_header.read(whole[:length])
        except ValueError as error:
            assert type(error) is ValueError


def test_bytes_behind_the_image_are_accepted():
    for rest in (b"\0" * 5, b"text", b"\xff", bytes(range(256))):
        assert image_header.read(jpeg(9, 14) + rest).width == 14
        assert as_tensorflow_decodes(jpeg(9, 14) + rest) == (9, 14)


@pytest.mark.parametrize("behind", [b"", b"\0\0\0"])
def test_a_thumbnails_end_does_not_hide_that_the_image_is_cut_off(behind):
    """D5: EXIF may hold a whole JPEG, end marker and all."""
    data = with_segment(jpeg(40, 56), exif(6) + jpeg(8, 8))
    assert image_header.read(data) == ImageHeader("JPEG", 40, 56, 3, 6, True)
    with pytest.raises(ValueError, match="cut off"):
        image_header.read(data[: len(data) * 3 // 4] + behind)


@pytest.mark.parametrize(
    "between",
    [b"\xff\xff\xff", b"abc", b"\xff\x01", b"\xff\xd3", b"\xff\0", b"\xff\xe5\0\0"],
)
def test_what_libjpeg_skips_is_skipped(between):
    """Filling, stray bytes, markers without a segment, a segment without a length."""
    whole = jpeg(9, 14)
    data = whole[:20] + between + whole[20:]  # behind the first segment
    assert image_header.read(data) == ImageHeader("JPEG", 9, 14, 3, usual=True)
    assert as_tensorflow_decodes(data) == (9, 14)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "empty"),
        (b"\xff\xd8", "no JPEG"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "no JPEG"),
        (b"<html>", "no JPEG"),
        (bytes(100), "no JPEG"),
        (b"\xff\xd8\xff" + b"\xff" * 100, "leads to no picture"),
        (b"\xff\xd8\xff\xe0" + b"a" * 100, "leads to no picture"),
        (cmyk()[:100], "leads to no picture"),
        (encode(of("RGB"), "PNG")[:32], "no JPEG"),
        (gif((9, 14))[:25], "0x0 pixels"),
    ],
)
def test_what_is_no_image_is_refused(data, text):
    with pytest.raises(ValueError, match=text):
        image_header.read(data)


def test_images_without_pixels_are_refused():
    png = bytearray(encode(of("RGB"), "PNG"))
    png[16:20] = bytes(4)
    bmp = bytearray(encode(of("RGB"), "BMP"))
    bmp[18:22] = struct.pack("<i", -14)
    whole = bytearray(jpeg(9, 14))
    frame = whole.index(b"\xff\xc0")
    whole[frame + 5 : frame + 7] = bytes(2)  # the height; libjpeg refuses it, too
    for data in (png, bmp, whole):
        with pytest.raises(ValueError, match="pixels"):
            image_header.read(bytes(data))


def test_flipped_bytes_raise_nothing_else():
    """And where the header can be read and the image be decoded, the size is right."""
    random = np.random.default_rng(0)
    for data in (jpeg(9, 14), encode(of("P"), "PNG"), gif((9, 14))):
        for _ in range(150):
            changed = bytearray(data)
            changed[random.integers(len(data))] = random.integers(256)
            try:
                header = image_header.read(bytes(changed))
            except ValueError as error:
                assert type(error) is ValueError
                continue
            if header.height * header.width > 10**6:
                continue
            try:
                decoded = as_tensorflow_decodes(bytes(changed))
            except tf.errors.OpError:
                continue
            assert decoded == (header.height, header.width)
