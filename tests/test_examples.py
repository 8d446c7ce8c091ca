import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import examples

INT64 = (0, 1, 127, 128, 1000, 2**31, 2**63 - 1, -1, -5, -(2**63))


def serialized(**features) -> bytes:
    """By protobuf itself; `__` in a name stands for a slash."""
    proto = tf.train.Example()
    for name, value in features.items():
        feature = proto.features.feature[name.replace("__", "/")]
        if isinstance(value, bytes):
            feature.bytes_list.value.append(value)
        elif isinstance(value, int):
            feature.int64_list.value.append(value)
        else:
            feature.float_list.value.extend(value)
    return proto.SerializeToString()


def read(example: bytes) -> tuple[bytes, int]:
    return examples.image_and_label(example, "image", "label")


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def with_label(feature: bytes) -> bytes:
    """An Example by hand: an image, and this Feature as label."""
    image = field(1, field(1, b"image") + field(2, field(1, field(1, b"jpeg"))))
    return field(1, image + field(1, field(1, b"label") + field(2, feature)))


@pytest.mark.parametrize("label", INT64)
def test_reads_what_protobuf_wrote(label):
    data = bytes(range(256)) * 3
    example = serialized(image=data, label=label, file__name=b"x", box=[0.5, 1.0])
    assert read(example) == (data, label)
    assert examples.names(example) == ["box", "file/name", "image", "label"]


@pytest.mark.parametrize("label", INT64)
def test_protobuf_reads_what_we_wrote(label):
    written = examples.encode({"image": b"\0\xff" * 200, "label": label, "name": "é"})
    proto = tf.train.Example.FromString(written)
    expected = tf.train.Example.FromString(
        serialized(image=b"\0\xff" * 200, label=label, name="é".encode())
    )
    assert proto == expected
    assert read(written) == (b"\0\xff" * 200, label)


@pytest.mark.parametrize("label", INT64)
def test_packed_and_unpacked_integers(label):
    wire = varint(label % 2**64)
    for values in (field(1, wire), varint(1 << 3) + wire):
        example = with_label(field(3, values))
        assert read(example) == (b"jpeg", label)
        proto = tf.train.Example.FromString(example)
        assert proto.features.feature["label"].int64_list.value == [label]


def test_unknown_fields_are_passed_over():
    label = field(3, varint(1 << 3) + varint(7))
    unknown = (
        (varint(9 << 3) + varint(300))  # varint
        + (varint(10 << 3 | 1) + bytes(8))  # fixed64
        + (varint(11 << 3 | 5) + bytes(4))  # fixed32
        + field(12, b"what")
    )
    for example in (
        unknown + with_label(label) + unknown,
        with_label(label + unknown),
        with_label(unknown + label),
    ):
        tf.train.Example.FromString(example)
        assert read(example) == (b"jpeg", 7)


def test_reading_ends_when_both_are_found():
    """Nobody writes an entry twice; of two the first holds, unlike in protobuf."""
    example = serialized(image=b"a", label=1) + serialized(image=b"b", label=2)
    assert read(example) == (b"a", 1)


@pytest.mark.parametrize(
    "example, said",
    [
        (serialized(image=b"a", number=1), "label is not in .* are: image, number"),
        (b"", "image is not in .* are: none"),
        (serialized(image=b"a", label=b"1"), "label must be one integer, not 0"),
        (serialized(image=1, label=1), "image must be one string, not 0"),
        (serialized(image=b"a", label=1)[:-1], "cut off"),
        (with_label(field(3, field(1, b"\1\2"))), "one integer, not 2"),
        (with_label(field(3, field(1, b"\x80"))), "cut off"),
        (with_label(field(3, field(1, b"\xff" * 11))), "no tf.train.Example"),
        (with_label(field(3, field(1, b"\x80" * 10 + b"\1"))), "no tf.train.Example"),
        (varint(1 << 3) + varint(2**40), "no tf.train.Example"),
        (b"\xff\xd8\xff\xe0 a JPEG", "no tf.train.Example"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,  # without an order
)
def test_refusals(example, said):
    with pytest.raises(ValueError, match=said):
        read(example)


def test_a_number_in_place_of_bytes_costs_no_memory():
    """bytes(2**40) would be 2**40 zeros."""
    number = varint(1 << 3) + varint(2**40)
    for example in (
        field(1, field(1, number)),  # a name
        field(1, field(1, field(1, b"image") + field(2, field(1, number)))),  # an image
    ):
        with pytest.raises(ValueError, match="no tf.train.Example|is not in"):
            read(example)


def test_random_bytes_raise_nothing_but_value_error():
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(4000):
        with pytest.raises(ValueError):
            read(rng.bytes(int(rng.integers(0, 60))))
        refused += 1
    assert refused == 4000


def test_random_integers_are_refused_or_what_protobuf_reads():
    """Random bytes in place of the label's payload, of its list, and of its Feature."""
    rng = np.random.default_rng(0)
    refused, labels = 0, []
    for _ in range(1000):
        junk = rng.bytes(int(rng.integers(0, 8)))
        for feature in (field(3, field(1, junk)), field(3, junk), junk):
            example = with_label(feature)
            try:
                image, label = read(example)
            except ValueError:
                refused += 1
                continue
            labels.append(label)
            proto = tf.train.Example.FromString(example).features.feature
            assert image == b"jpeg" == proto["image"].bytes_list.value[0]
            assert [label] == proto["label"].int64_list.value
    assert refused + len(labels) == 3000
    # Of the payloads every eighth is one byte, and half of these are a whole varint.
    assert len(labels) > 1000 / 8 / 2 / 2 and min(labels) < 64 < max(labels)


def test_damaged_examples_raise_nothing_but_value_error():
    """Each byte of an Example in turn, and some at once, become others."""
    rng = np.random.default_rng(1)
    good = serialized(image=b"jpeg" * 5, label=300, name=b"x", box=[1.0])
    damaged = [
        good[:at] + bytes([byte]) + good[at + 1 :]
        for at in range(len(good))
        for byte in (0, 1, 8, 0x0A, 0x12, 0x7F, 0x80, 0xFF)
    ]
    for _ in range(3000):
        data = np.frombuffer(good, np.uint8).copy()
        data[rng.integers(0, len(good), 3)] = rng.integers(0, 256, 3)
        damaged.append(data.tobytes()[: rng.integers(1, len(good) + 1)])
    for example in damaged:
        try:
            image, label = read(example)
        except ValueError:
            continue
        assert isinstance(image, bytes) and -(2**63) <= label < 2**63
        try:
            proto = tf.train.Example.FromString(example).features.feature
        except Exception:  # stricter: names must be UTF-8, for one
            continue
        if "image" in proto and "label" in proto:
            assert proto["image"].bytes_list.value in ([image], [])
