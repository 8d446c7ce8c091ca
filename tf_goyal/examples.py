"""`tf.train.Example` without TensorFlow: its bytes to an image and a label, and back.

An Example is a protocol buffer: a map of names to lists of bytes, floats or integers,

    Example  { Features features = 1; }
    Features { map<string, Feature> feature = 1; }   entry: key = 1, value = 2
    Feature  { BytesList = 1 | FloatList = 2 | Int64List = 3 }   each: value = 1

Reading it here costs some microseconds, and lets labels be checked before TensorFlow
starts.
"""

from collections.abc import Iterator, Mapping

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_BYTES_LIST, _INT64_LIST = 1, 3  # fields of Feature


def encode(features: Mapping[str, bytes | str | int]) -> bytes:
    """The Example of some features, each of one value, in the given order."""
    entries = []
    for name, value in features.items():
        if isinstance(value, int):
            feature = _field(_INT64_LIST, _field(1, _to_varint(value % 2**64)))
        else:
            data = value.encode() if isinstance(value, str) else value
            feature = _field(_BYTES_LIST, _field(1, data))
        entries.append(_field(1, _field(1, name.encode()) + _field(2, feature)))
    return _field(1, b"".join(entries))


def image_and_label(
    example: bytes | memoryview, image_feature: str, label_feature: str
) -> tuple[bytes, int]:
    """The encoded image and the stored label of an Example.

    Raises:
      ValueError: the bytes are no Example, or have no such feature of one value.
    """
    image, label = image_feature.encode(), label_feature.encode()
    found: dict[bytes, memoryview] = {}
    for name, feature in _features(example):
        if name == image or name == label:
            found[name] = feature
            if len(found) == 2:
                break  # what follows costs as much as the rest of reading a record
    missing = [name.decode() for name in (image, label) if name not in found]
    if missing:
        there = ", ".join(names(example)) or "none"
        raise ValueError(
            f"the feature {missing[0]} is not in the Example, whose features are: "
            f"{there}"
        )
    return _bytes_value(found[image], image_feature), _int64_value(
        found[label], label_feature
    )


def names(example: bytes | memoryview) -> list[str]:
    """The names of an Example's features, sorted.

    Raises:
      ValueError: the bytes are no Example.
    """
    return sorted(name.decode("utf-8", "replace") for name, _ in _features(example))


def _features(example: bytes | memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Names and Feature messages."""
    for number, features in _fields(memoryview(example)):
        if number != 1:
            continue
        for number, entry in _fields(features):
            if number != 1:
                continue
            name, feature = b"", memoryview(b"")
            for number, value in _fields(entry):
                if number == 1:
                    name = _bytes(value)
                elif number == 2:
                    feature = value
            yield name, feature


def _bytes_value(feature: memoryview, name: str) -> bytes:
    values = [
        value
        for kind, values in _fields(feature)
        if kind == _BYTES_LIST
        for number, value in _fields(values)
        if number == 1
    ]
    if len(values) != 1:
        raise ValueError(f"the feature {name} must be one string, not {len(values)}")
    return _bytes(values[0])


def _int64_value(feature: memoryview, name: str) -> int:
    values: list[int] = []
    for kind, integers in _fields(feature):
        if kind != _INT64_LIST:
            continue
        for number, value in _fields(integers):
            if number != 1:
                continue
            if isinstance(value, int):
                values.append(value)
                continue
            at = 0  # packed
            while at < len(value):
                one, at = _varint(value, at)
                values.append(one)
    if len(values) != 1:
        raise ValueError(f"the feature {name} must be one integer, not {len(values)}")
    return values[0] - 2**64 if values[0] >= 2**63 else values[0]


def _bytes(value: memoryview | int) -> bytes:
    if isinstance(value, int):  # bytes(n) would be n zeros
        raise ValueError("the bytes are no tf.train.Example")
    return bytes(value)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Field numbers and values: integers for varints, else bytes."""
    if not isinstance(message, memoryview):
        raise ValueError("the bytes are no tf.train.Example")
    at, size = 0, len(message)
    while at < size:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            if kind == _BYTES:
                length, at = _varint(message, at)
            elif kind in (_FIXED64, _FIXED32):
                length = 8 if kind == _FIXED64 else 4
            else:
                raise ValueError("the bytes are no tf.train.Example")
            value = message[at : at + length]
            at += length
            if at > size:
                raise ValueError("the bytes are no tf.train.Example: they are cut off")
        yield tag >> 3, value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The integer at a place, and the place behind it."""
    value = shift = 0
    try:
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value % 2**64, at
            shift += 7
            if shift > 63:
                raise ValueError("the bytes are no tf.train.Example")
    except IndexError:
        raise ValueError(
            "the bytes are no tf.train.Example: they are cut off"
        ) from None


def _to_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: bytes) -> bytes:
    """A field of bytes. An Int64List holds its integers packed, so as bytes too."""
    return _to_varint(number << 3 | _BYTES) + _to_varint(len(value)) + value
