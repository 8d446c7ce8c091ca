import concurrent.futures
import os
import struct
import threading

import google_crc32c
import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import records

DATAS = (b"abc", b"", b"defgh")  # at 12, 31, 47; the file ends at 56


def write(path, *datas: bytes) -> str:
    path.write_bytes(b"".join(records.framed(data) for data in datas))
    return str(path)


def read_all(path) -> list[bytes | str]:
    """Each record's data, or why it is bad."""
    index = records.index_files([str(path)])
    reader = records.Reader(index)

    def read(record: int) -> bytes | str:
        try:
            return reader.read(record)
        except records.BadRecord as error:
            return str(error)

    return [read(record) for record in range(len(index))]


def test_checksum_by_hand():
    """The CRC32C of "123456789" is E3069283 (RFC 3720); masked by hand."""
    assert google_crc32c.value(b"123456789") == 0xE3069283
    rotated = (0xE3069283 >> 15) | (0xE3069283 << 17) & 0xFFFFFFFF
    assert records.masked_crc(b"123456789") == (rotated + 0xA282EAD8) % 2**32


def test_index_of_one_file_by_hand(tmp_path):
    offsets, lengths = records.index_file(write(tmp_path / "a", *DATAS))
    # 12 | 16 + 3 + 12 | 16 + 3 + 16 + 12
    assert offsets.tolist() == [12, 31, 47]
    assert lengths.tolist() == [3, 0, 5]
    assert offsets.dtype == lengths.dtype == np.int64


def test_reads_what_tensorflow_wrote_and_writes_the_same(tmp_path):
    path = tmp_path / "a"
    datas = [os.urandom(size) for size in (0, 1, 11, 12, 13, 70_000)]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for data in datas:
            writer.write(data)
    assert read_all(path) == datas
    assert path.read_bytes() == b"".join(map(records.framed, datas))


def test_numbers_follow_sorted_names_whatever_the_order_given(tmp_path):
    b = write(tmp_path / "b", b"2", b"3")
    a = write(tmp_path / "a", b"0", b"1")
    empty = write(tmp_path / "ab")
    index = records.index_files([b, empty, a])
    assert index.files == (a, empty, b)
    assert len(index) == 4
    assert index.file.tolist() == [0, 0, 2, 2]
    assert index.file.dtype == np.int32
    reader = records.Reader(index)
    assert [reader.read(record) for record in (3, 0, 2, 0)] == [b"3", b"0", b"2", b"0"]
    assert index.where(3) == f"{b}, record 1 of the file at byte 29"


@pytest.mark.parametrize("files", [4, 8, 16])
def test_the_same_records_in_other_files_are_the_same_sequence(tmp_path, files):
    """D3."""
    datas = [b"%d" % number for number in range(50)]
    paths = [
        write(tmp_path / f"{i:05d}", *datas[i * 50 // files : (i + 1) * 50 // files])
        for i in range(files)
    ]
    reader = records.Reader(records.index_files(paths))
    assert [reader.read(record) for record in range(50)] == datas


def test_no_files_and_empty_files_hold_no_records(tmp_path):
    assert len(records.index_files([])) == 0
    assert len(records.index_files([write(tmp_path / "a")])) == 0


def test_every_byte_flipped(tmp_path):
    """D6: one record is bad, never another one, wherever the byte is."""
    good = open(write(tmp_path / "good", *DATAS), "rb").read()
    path = tmp_path / "bad"
    ends = [19, 35, 56]
    for at in range(len(good)):
        record = next(record for record, end in enumerate(ends) if at < end)
        for flip in (0x01, 0x80, 0xFF):
            path.write_bytes(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
            found = read_all(path)
            assert len(found) == 3, at
            assert isinstance(found[record], str), at
            others = [data for i, data in enumerate(found) if i != record]
            assert others == [data for i, data in enumerate(DATAS) if i != record], at


@pytest.mark.parametrize(
    "at, reason",
    [
        (19, "the header's checksum does not fit its length"),  # the length
        (30, "the header's checksum does not fit its length"),  # its CRC
        (13, "the data do not fit their checksum"),  # the data
        (15, "the data do not fit their checksum"),  # their CRC
    ],
)
def test_reasons(tmp_path, at, reason):
    """D6: a flipped byte in a header, in data, in a CRC."""
    path = tmp_path / "a"
    data = bytearray(open(write(path, *DATAS), "rb").read())
    data[at] ^= 4
    path.write_bytes(data)
    assert reason in read_all(path)


def test_checksums_of_data_are_not_compared_when_not_asked_for(tmp_path):
    path = tmp_path / "a"
    data = bytearray(open(write(path, *DATAS), "rb").read())
    data[13] ^= 4
    path.write_bytes(data)
    reader = records.Reader(records.index_files([str(path)]), verify=False)
    assert reader.read(0) == b"afc"


@pytest.mark.parametrize("cut", [*range(1, 9), 10, 20])
def test_a_cut_file(tmp_path, cut):
    """D6: every cut inside the last record (21 bytes) costs that record alone."""
    path = tmp_path / "cut"
    path.write_bytes((records.framed(b"abc") + records.framed(b"defgh"))[:-cut])
    first, last = read_all(path)
    assert first == b"abc"
    if cut < 10:
        assert last == f"the file ends {cut} bytes before the record does"
    else:  # in the header
        assert last == "the header's checksum does not fit its length"


def test_a_file_cut_between_records_has_fewer_records(tmp_path):
    path = tmp_path / "cut"
    path.write_bytes((records.framed(b"abc") + records.framed(b"defgh"))[:-21])
    assert read_all(path) == [b"abc"]


@pytest.mark.parametrize("power", [33, 40, 61, 62, 63])
def test_a_length_beyond_everything(tmp_path, power):
    """A valid header can announce what no memory holds."""
    length = struct.pack("<Q", 2**power)
    header = length + struct.pack("<I", records.masked_crc(length))
    (tmp_path / "a").write_bytes(records.framed(b"abc") + header + b"data")
    first, last = read_all(tmp_path / "a")
    assert first == b"abc" and isinstance(last, str)


def test_a_header_that_leads_beyond_the_end_is_none_to_resume_at(tmp_path):
    """Some bytes of an image look like a header; only what follows tells them apart."""
    false = records.framed(bytes(1000))[:12]
    path = tmp_path / "a"
    write(path, b"pixels" + false + b"pixels", b"good")
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    bad, good = read_all(path)
    assert "header" in bad and good == b"good"


def test_resync_over_more_than_one_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_CHUNK", 64)
    path = tmp_path / "a"
    data = bytearray(open(write(path, b"x" * 500, b"y" * 500, b"z"), "rb").read())
    data[0] ^= 1
    path.write_bytes(data)
    assert read_all(path)[1:] == [b"y" * 500, b"z"]


@pytest.mark.parametrize(
    "content", [b"\xff\xd8\xff\xe0" + bytes(range(60)), b"\xff" * 12, b"x"]
)
def test_other_content_is_refused(tmp_path, content):
    path = tmp_path / "photo.jpeg"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"photo\.jpeg: must be an uncompressed TFR"):
        records.index_file(str(path))


def test_gzip_is_named(tmp_path):
    path = tmp_path / "a"
    with tf.io.TFRecordWriter(str(path), "GZIP") as writer:
        writer.write(b"abc" * 50)
    with pytest.raises(ValueError, match="gzip -d"):
        records.index_file(str(path))


def test_a_missing_file_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="nothing: cannot be read: No such file"):
        records.index_file(str(tmp_path / "nothing"))


@pytest.mark.parametrize("record", [-1, 2])
def test_a_record_out_of_range_is_refused(tmp_path, record):
    reader = records.Reader(records.index_files([write(tmp_path / "a", b"0", b"1")]))
    assert [reader.read(0), reader.read(1)] == [b"0", b"1"]
    with pytest.raises(IndexError, match=f"from 0 to 1; received {record}"):
        reader.read(record)


def test_a_file_changed_after_indexing(tmp_path):
    path = write(tmp_path / "a", b"0", b"12345")
    reader = records.Reader(records.index_files([path]))
    os.truncate(path, os.path.getsize(path) - 6)
    assert reader.read(0) == b"0"
    with pytest.raises(records.BadRecord, match="ends 6 bytes before"):
        reader.read(1)


def test_a_file_removed_after_indexing(tmp_path):
    path = write(tmp_path / "a", b"0")
    reader = records.Reader(records.index_files([path]))
    os.remove(path)
    reader.will_read(0)
    with pytest.raises(records.BadRecord, match="No such file"):
        reader.read(0)


def open_below(folder):
    """The files in `folder` that this process has open, once for each descriptor."""
    # Other descriptors of the process come and go meanwhile.
    numbers = os.listdir("/proc/self/fd")
    files = [os.path.realpath(f"/proc/self/fd/{number}") for number in numbers]
    return [file for file in files if file.startswith(f"{folder}/")]


@pytest.mark.parametrize("most_open", [0, 1, 256])
def test_many_threads_read_through_few_open_files(tmp_path, most_open):
    files = [write(tmp_path / f"{i:02d}", b"%d" % i * 50) for i in range(10)]
    reader = records.Reader(records.index_files(files))
    reader._most_open = most_open
    order = np.random.default_rng(0).integers(0, 10, 2000).tolist()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for number, data in zip(order, pool.map(reader.read, order), strict=True):
            assert data == b"%d" % number * 50
            reader.will_read(number)
    assert len(open_below(tmp_path)) == min(most_open, 10)
    del reader
    assert open_below(tmp_path) == []


def test_two_threads_that_open_a_file_at_once_keep_it_open_once(tmp_path, monkeypatch):
    path = write(tmp_path / "a", *DATAS)
    reader = records.Reader(records.index_files([path]))
    opened, both = [], threading.Barrier(2, timeout=120)
    open_file = os.open

    def open_together(*arguments):
        descriptor = open_file(*arguments)
        opened.append(descriptor)
        both.wait()
        return descriptor

    monkeypatch.setattr(records.os, "open", open_together)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(reader.read, (0, 2))) == [DATAS[0], DATAS[2]]
    assert len(opened) == 2
    place = tmp_path.resolve() / "a"
    links = [os.path.realpath(f"/proc/self/fd/{descriptor}") for descriptor in opened]
    assert links.count(str(place)) == 1
