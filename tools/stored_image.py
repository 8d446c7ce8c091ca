"""What is stored of an image: its own bytes where they are sound, else a new JPEG.

A sound image is a JPEG of 8 bits and 1 or 3 components, baseline or progressive, with
its end there. That is seen from its markers, in microseconds. All else (CMYK, PNG, a
missing end) is decoded with Pillow and becomes an RGB JPEG, or is bad. Damage within
the compressed data is left to training, which replaces such records. The EXIF
orientation is ignored, as everywhere in this package.
"""

import io
import warnings
from typing import NamedTuple

from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from tf_goyal import image_header

CONVERTED_QUALITY = 95  # of 100: of images that cannot be kept as they are
_MAX_PIXELS = 1 << 27  # larger ones are not kept unseen: decoding takes gigabytes


class BadImage(ValueError):
    """An image that cannot be used; the text says why."""


class Stored(NamedTuple):
    """An image as it is stored.

    Attributes:
      data: the JPEG.
      height: pixels.
      width: pixels.
      converted: what it was, if it could not be kept as it is; else empty.
    """

    data: bytes
    height: int
    width: int
    converted: str


def stored(data: bytes, max_side: int = 0, quality: int = 0) -> Stored:
    """What to store of an image.

    Args:
      data: its file.
      max_side: pixels; an image with a longer side is made smaller. 0: none is.
      quality: of a JPEG, 1 to 100: every image is encoded anew, and stored so if that
        takes fewer bytes. 0: only what has to be, at CONVERTED_QUALITY.

    Raises:
      BadImage: it cannot be decoded.
    """
    if not data:
        raise BadImage("the file has 0 bytes")
    size = _sound(data)
    shrinks = size is not None and 0 < max_side < max(size)
    if size and not shrinks and not quality:
        return Stored(data, *size, "")
    image, was = _decoded(data, max_side)
    file = io.BytesIO()
    # 4:2:0 is what nearly all JPEGs of photographs have; small PNGs would lose by it.
    subsampling = 2 if size else 0
    image.save(
        file, "JPEG", quality=quality or CONVERTED_QUALITY, subsampling=subsampling
    )
    if size and not shrinks and file.tell() >= len(data):
        return Stored(data, *size, "")
    return Stored(file.getvalue(), image.height, image.width, "" if size else was)


def _sound(data: bytes) -> tuple[int, int] | None:
    """Height and width of a JPEG that can be kept, else None."""
    try:
        header = image_header.read(data)
    except ValueError:
        return None
    keeps = header.usual and header.channels in (1, 3)
    size = header.height, header.width
    return size if keeps and header.height * header.width < _MAX_PIXELS else None


def _decoded(data: bytes, max_side: int) -> tuple[Pillow.Image, str]:
    """An image in RGB or, if it is a grey JPEG, grey; and what it was.

    Raises:
      BadImage: Pillow cannot decode it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large, odd EXIF, odd palette
            image = Pillow.open(io.BytesIO(data))
            was = image.format
            if was == "JPEG":
                was = "CMYK" if image.mode == "CMYK" else "damaged or unusual JPEG"
            if image.mode.startswith("I"):  # 16 bits: Pillow would cut at 255
                image = image.point(lambda level: level * (1 / 256)).convert("L")
            if image.mode != "RGB" and not (image.mode == "L" and was[-4:] == "JPEG"):
                image = image.convert("RGB")
            if max_side:
                image.thumbnail((max_side, max_side), Pillow.Resampling.LANCZOS)
            image.load()
    except UnidentifiedImageError:
        raise BadImage("cannot be decoded: no image of a known kind") from None
    # Pillow's decoders raise nearly anything on broken files.
    except Exception as error:
        raise BadImage(f"cannot be decoded: {error}") from error
    return image, was
