import concurrent.futures
import os
import struct

import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import records


def framed(data: bytes) -> bytes:
    """One TFRecord, its two checksums left zero."""
    return struct.pack("<QI", len(data), 0) + data + bytes(4)


def write(path, *datas: bytes) -> str:
    path.write_bytes(b"".join(framed(data) for data in datas))
    return str(path)


def test_index_of_one_file_by_hand(tmp_path):
    offsets, lengths = records.index_file(write(tmp_path / "a", b"abc", b"", b"defgh"))
    # 12 | 16 + 3 + 12 | 16 + 3 + 16 + 12
    assert offsets.tolist() == [12, 31, 47]
    assert lengths.tolist() == [3, 0, 5]
    assert offsets.dtype == lengths.dtype == np.int64


def test_index_reads_what_tensorflow_wrote(tmp_path):
    path = str(tmp_path / "a")
    datas = [os.urandom(size) for size in (0, 1, 11, 12, 13, 70_000)]
    with tf.io.TFRecordWriter(path) as writer:
        for data in datas:
            writer.write(data)
    index = records.index_files([path])
    assert records.Reader(index).read(range(len(datas))) == datas


def test_numbers_follow_sorted_names_whatever_the_order_given(tmp_path):
    b = write(tmp_path / "b", b"2", b"3")
    a = write(tmp_path / "a", b"0", b"1")
    empty = write(tmp_path / "ab")
    index = records.index_files([b, empty, a])
    assert index.files == (a, empty, b)
    assert len(index) == 4
    assert index.file.tolist() == [0, 0, 2, 2]
    assert index.file.dtype == np.int32
    assert records.Reader(index).read([3, 0, 2, 0]) == [b"3", b"0", b"2", b"0"]


def test_no_files_and_empty_files_hold_no_records(tmp_path):
    assert len(records.index_files([])) == 0
    assert len(records.index_files([write(tmp_path / "a")])) == 0


@pytest.mark.parametrize(
    "cut, offset, record",
    [(1, 19, 1), (4, 19, 1), (5, 19, 1), (9, 19, 1), (10, 19, 1), (20, 19, 1)],
)
def test_a_cut_file_is_refused_with_file_and_offset(tmp_path, cut, offset, record):
    # Two records of 19 and 21 bytes: every cut inside the second one.
    path = tmp_path / "cut"
    path.write_bytes((framed(b"abc") + framed(b"defgh"))[:-cut])
    with pytest.raises(ValueError, match=rf"cut: .*record {record}|cut: .*{record}\)"):
        records.index_file(str(path))
    with pytest.raises(ValueError, match=f"byte {offset} "):
        records.index_file(str(path))


def test_a_file_cut_between_records_has_fewer_records(tmp_path):
    path = tmp_path / "cut"
    path.write_bytes((framed(b"abc") + framed(b"defgh"))[:-21])
    assert records.index_file(str(path))[0].tolist() == [12]


@pytest.mark.parametrize(
    "content", [b"\xff\xd8\xff\xe0" + bytes(range(60)), b"\x1f\x8b" * 30, b"\xff" * 12]
)
def test_other_content_is_refused(tmp_path, content):
    path = tmp_path / "photo.jpeg"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"photo\.jpeg: the header at byte 0"):
        records.index_file(str(path))


def test_a_missing_file_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="nothing: cannot be read: No such file"):
        records.index_file(str(tmp_path / "nothing"))


@pytest.mark.parametrize("record", [-1, 2])
def test_a_record_out_of_range_is_refused(tmp_path, record):
    reader = records.Reader(records.index_files([write(tmp_path / "a", b"0", b"1")]))
    assert reader.read([0, 1]) == [b"0", b"1"]
    with pytest.raises(ValueError, match=f"from 0 to 1; received {record}"):
        reader.read([record])


def test_a_file_changed_after_indexing_is_named(tmp_path):
    path = write(tmp_path / "a", b"0", b"12345")
    reader = records.Reader(records.index_files([path]))
    os.truncate(path, os.path.getsize(path) - 6)
    with pytest.raises(ValueError, match="a: record 1 at byte 29 has 5 bytes, but 3"):
        reader.read([0, 1])


def test_a_file_removed_after_indexing_is_named(tmp_path):
    path = write(tmp_path / "a", b"0")
    reader = records.Reader(records.index_files([path]))
    os.remove(path)
    with pytest.raises(ValueError, match=r"a: record 0 .* No such file"):
        reader.read([0])


@pytest.mark.parametrize("most_open", [0, 1, 256])
def test_many_threads_read_through_few_open_files(tmp_path, most_open):
    files = [write(tmp_path / f"{i:02d}", b"%d" % i * 50) for i in range(10)]
    reader = records.Reader(records.index_files(files))
    reader._most_open = most_open
    before = len(os.listdir("/dev/fd"))
    order = np.random.default_rng(0).integers(0, 10, (40, 50))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for numbers, datas in zip(order, pool.map(reader.read, order), strict=True):
            assert datas == [b"%d" % number * 50 for number in numbers]
    assert len(os.listdir("/dev/fd")) - before == min(most_open, 10)
    del reader
    assert len(os.listdir("/dev/fd")) == before
