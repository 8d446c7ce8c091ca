"""Reads that fail for a moment, and for good."""

import errno
import os

import pytest

from tf_goyal import image_folder, records, second_tries
from tf_goyal.second_tries import SecondTries


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Nothing waits; how long it would have."""
    waited = []
    monkeypatch.setattr(second_tries.time, "sleep", waited.append)
    return waited


def failing(times, number=errno.EIO):
    """A read that fails so many times, then returns its number of calls."""
    calls = []

    def read():
        calls.append(None)
        if len(calls) <= times:
            raise OSError(number, os.strerror(number))
        return len(calls)

    return read


@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_what_fails_for_a_moment_is_read(times, pauses):
    assert SecondTries()(failing(times)) == times + 1
    assert pauses == [0.1, 1.0, 5.0][:times]


def test_what_fails_four_times_fails(pauses):
    with pytest.raises(OSError, match="Input/output"):
        SecondTries()(failing(4))
    assert pauses == [0.1, 1.0, 5.0]


def test_where_the_storage_is_gone_one_read_waits_and_no_more(pauses):
    tries = SecondTries()
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            tries(failing(9))
    assert len(pauses) == 3
    assert tries(failing(0)) == 1  # it is back
    assert tries(failing(1)) == 2
    assert len(pauses) == 4


@pytest.mark.parametrize(
    "number", [errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOTDIR]
)
def test_what_does_not_pass_is_not_waited_for(number, pauses):
    read = failing(1, number)
    with pytest.raises(OSError, match="|".join([os.strerror(number)])):
        SecondTries()(read)
    assert pauses == []
    assert read() == 2


def fail_once(monkeypatch, module, name):
    """The next call of os.NAME fails: what it was called with."""
    right, calls = getattr(os, name), []

    def wrong(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return right(*arguments)

    monkeypatch.setattr(module.os, name, wrong)
    return calls


@pytest.mark.parametrize("kept", [False, True])
def test_a_file_whose_handle_is_stale_is_opened_anew(tmp_path, monkeypatch, kept):
    """An NFS server that failed over: no record is replaced for it."""
    path = tmp_path / "a"
    path.write_bytes(records.framed(b"0") + records.framed(b"12345"))
    reader = records.Reader(records.index_files([str(path)]))
    if kept:
        assert reader.read(0) == b"0"
    reads = fail_once(monkeypatch, records, "pread")
    assert reader.read(1) == b"12345"
    assert len(reads) == 2
    descriptors = {arguments[0] for arguments in reads}
    if kept:  # another thread may have been reading from it
        assert len(descriptors) == 2
    monkeypatch.undo()
    assert reader.read(0) == b"0"
    del reader
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_an_image_in_a_folder_is_read_again(tmp_path, monkeypatch):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").write_bytes(b"image")
    split = image_folder.FolderSplit("train", [str(tmp_path / "cat")], [3], [["1.jpg"]])
    right, calls = image_folder._content, []

    def content(path):
        calls.append(path)
        if len(calls) < 3:
            raise OSError(errno.EIO, "no answer")
        return right(path)

    monkeypatch.setattr(image_folder, "_content", content)
    assert split.read(0) == (b"image", 3)
    assert len(calls) == 3
