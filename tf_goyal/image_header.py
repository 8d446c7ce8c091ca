"""What an encoded image says of itself: format, size, channels, orientation.

Read from the first bytes, in microseconds, without decoding. What cannot be an image is
refused here; what only looks like one fails when it is decoded. No TensorFlow.
"""

import dataclasses
import struct

# Start-of-frame markers; C4, C8 and CC are something else.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_USUAL = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended, progressive
_SCAN, _EXIF = 0xDA, 0xE1
# Without a segment: a stuffed byte, TEM and the restarts.
_ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD8)})
_END = b"\xff\xd9"
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclasses.dataclass(frozen=True, slots=True)
class ImageHeader:
    """What an encoded image says of itself.

    Attributes:
      format: "JPEG", "PNG", "GIF" or "BMP".
      height, width: pixels, as stored; of a GIF, those of what TensorFlow decodes.
      channels: 1, 3 or 4 of a JPEG (grey, colour, CMYK), 1 to 4 of a PNG; 0 where it is
        not told.
      orientation: EXIF's, 1 to 8; 1 where nothing is said.
      usual: whether a JPEG is of 8 bits and Huffman coded, baseline or progressive,
        which every decoder takes.
    """

    format: str
    height: int
    width: int
    channels: int = 0
    orientation: int = 1
    usual: bool = False


def read(encoded: bytes) -> ImageHeader:
    """Reads the header of an encoded image.

    Raises:
      ValueError: it is empty, of no format that TensorFlow decodes, without a size, or
        a JPEG that is cut off.
    """
    if encoded.startswith(b"\xff\xd8\xff"):
        return _jpeg(encoded)
    channels = 0
    if encoded.startswith(_PNG) and len(encoded) >= 33:
        kind = "PNG"
        width, height, _, color = struct.unpack_from(">IIBB", encoded, 16)
        channels = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}.get(color, 0)
    elif encoded[:6] in (b"GIF87a", b"GIF89a") and len(encoded) >= 13:
        kind = "GIF"
        height, width = _gif_size(encoded)
    elif encoded.startswith(b"BM") and len(encoded) >= 26:
        kind = "BMP"
        width, height = struct.unpack_from("<ii", encoded, 18)
        height = abs(height)  # negative: from top to bottom
    elif not encoded:
        raise ValueError("the image is empty")
    else:
        raise ValueError("the image is no JPEG, PNG, GIF or BMP")
    if width < 1 or height < 1:
        raise ValueError(f"the {kind} image is {height}x{width} pixels")
    return ImageHeader(kind, height, width, channels)


def _gif_size(encoded: bytes) -> tuple[int, int]:
    """Height and width of the largest picture: TensorFlow's canvas, not the screen."""

    def table(flags: int) -> int:  # bytes of a colour table
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    height = width = 0
    at, end = 13 + table(encoded[10]), len(encoded)
    while at + 10 <= end:
        if encoded[at] == 0x2C:  # a picture
            across, down, flags = struct.unpack_from("<HHB", encoded, at + 5)
            height, width = max(height, down), max(width, across)
            at += 11 + table(flags)
        elif encoded[at] == 0x21:  # an extension
            at += 2
        else:
            break
        while at < end and encoded[at]:  # blocks of data, up to an empty one
            at += 1 + encoded[at]
        at += 1
    return height, width


def _jpeg(encoded: bytes) -> ImageHeader:
    """Walks the segments up to the first scan, and looks for the end of the image."""
    height = width = channels = 0
    orientation, usual = 1, False
    at, end = 2, len(encoded)
    while at + 4 <= end:
        if encoded[at] != 0xFF:  # libjpeg skips what does not belong there
            at = encoded.find(b"\xff", at)
            if at < 0:
                break
            continue
        marker = encoded[at + 1]
        if marker == 0xFF:  # filling
            at += 1
            continue
        if marker in _ALONE:
            at += 2
            continue
        size = encoded[at + 2] << 8 | encoded[at + 3]
        if marker in _FRAMES and at + 10 <= end:
            height = encoded[at + 5] << 8 | encoded[at + 6]
            width = encoded[at + 7] << 8 | encoded[at + 8]
            channels = encoded[at + 9]
            usual = marker in _USUAL and encoded[at + 4] == 8
        elif marker == _EXIF and orientation == 1:  # XMP has the same marker
            orientation = _orientation(encoded[at + 4 : at + 2 + size])
        elif marker == _SCAN:
            if height < 1 or width < 1:
                raise ValueError(f"the JPEG is {height}x{width} pixels")
            # Within a scan no FF D9 stands for anything else.
            if encoded.rfind(_END, at) < 0:
                raise ValueError("the JPEG is cut off: it has no end marker")
            return ImageHeader("JPEG", height, width, channels, orientation, usual)
        at += 2 + size
    raise ValueError("the JPEG is cut off or broken: its header leads to no picture")


def _orientation(segment: bytes) -> int:
    """EXIF's orientation, of the segment that holds it; 1 where it does not."""
    if not segment.startswith(b"Exif\0\0"):
        return 1
    tiff = segment[6:]
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    try:
        (first,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, first)
        for entry in range(count):
            tag, kind, _, value = struct.unpack_from(
                order + "HHIH", tiff, first + 2 + 12 * entry
            )
            if tag == 0x0112 and kind == 3 and 1 <= value <= 8:
                return value
    except (struct.error, TypeError):
        pass  # a broken EXIF segment hinders nobody from decoding
    return 1
