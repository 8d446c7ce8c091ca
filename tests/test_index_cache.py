import concurrent.futures
import os
import subprocess
import sys
import tempfile
import types

import numpy as np
import pytest
from pictures import write_numbered

from tf_goyal import index_cache, label_sample, records, shards

BESIDE = ".tf_goyal_index-train.npz"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The user's cache folder is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "tf_goyal"


@pytest.fixture
def followed(monkeypatch) -> list[str]:
    """Names of the files whose headers were followed since it was last cleared."""
    names = []
    index_each = records.index_each

    def spy(files):
        names.extend(os.path.basename(file) for file in files)
        return index_each(files)

    monkeypatch.setattr(records, "index_each", spy)
    return names


@pytest.fixture
def sampled(monkeypatch) -> list[int]:
    """One entry for each label sample taken."""
    calls = []
    take = label_sample.take

    def spy(split, features):
        calls.append(len(split))
        return take(split, features)

    monkeypatch.setattr(label_sample, "take", spy)
    return calls


def load(folder) -> list[int]:
    """Numbers of the records, as read by the index, which is the same as a new one."""
    files = sorted(str(path) for path in folder.glob("train-*"))
    split, sample = shards.load("train", str(folder), files)
    fresh = records.index_files(files)
    assert split.index.files == fresh.files
    for name in ("file", "offset", "length"):
        stored, made = getattr(split.index, name), getattr(fresh, name)
        assert stored.dtype == made.dtype and np.array_equal(stored, made)
    assert sample.features == shards.FEATURES[0]
    numbers = []
    for record in range(len(split)):
        image, label = split.read(record)
        numbers.append(int(image.split()[1]))
        assert label == numbers[-1] % 2
    assert sample.label.tolist() == [numbers[r] % 2 for r in sample.record]
    return numbers


def test_a_second_start_follows_and_reads_nothing(tmp_path, followed, sampled):
    folder = tmp_path / "data"
    write_numbered(folder, "train", 3, 10)
    assert load(folder) == list(range(10))
    assert os.listdir(folder).count(BESIDE) == 1 and len(followed) == 2 * 3
    assert not list(folder.glob("*.tmp")) and not (tmp_path / "home").exists()
    followed.clear()
    assert load(folder) == list(range(10))
    assert len(followed) == 3  # by the test's own comparison
    assert sampled == [10]


def test_only_changed_files_are_followed_again(tmp_path, followed, sampled):
    folder = tmp_path / "data"
    paths = write_numbered(folder, "train", 3, 9)
    load(folder)
    more = paths[1].read_bytes() + paths[0].read_bytes()
    paths[1].write_bytes(more)
    followed.clear()
    assert load(folder) == [0, 1, 2, 3, 4, 5, 0, 1, 2, 6, 7, 8]
    assert followed[:-3] == [paths[1].name]
    assert sampled == [9, 12]  # any change may bring other labels


def test_same_size_but_another_time(tmp_path, followed):
    """The first record goes to the end: as many bytes, cut elsewhere."""
    folder = tmp_path / "data"
    (path,) = write_numbered(folder, "train", 1, 11)
    load(folder)
    before, size = records.index_files([str(path)]), path.stat().st_size
    second = int(before.offset[1]) - 12
    path.write_bytes(path.read_bytes()[second:] + path.read_bytes()[:second])
    os.utime(path, ns=(1, 1))
    assert path.stat().st_size == size
    assert records.index_files([str(path)]).offset[-1] != before.offset[-1]
    followed.clear()
    assert load(folder) == [*range(1, 11), 0]
    assert followed[:-1] == [path.name]


def test_rewritten_in_place_with_its_size_and_time_put_back(tmp_path, followed):
    """As `touch -r` and `rsync --inplace -t` do."""
    folder = tmp_path / "data"
    (path,) = write_numbered(folder, "train", 1, 11)
    load(folder)
    before, content = path.stat(), path.read_bytes()
    second = int(records.index_files([str(path)]).offset[1]) - 12
    with open(path, "r+b") as file:
        file.write(content[second:] + content[:second])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    for same in ("st_size", "st_mtime_ns", "st_ino"):
        assert getattr(after, same) == getattr(before, same)
    followed.clear()
    assert load(folder) == [*range(1, 11), 0]
    assert followed[:-1] == [path.name]


def status(monkeypatch, **changes):
    """What `index_cache` is told of each shard."""
    ask = os.stat

    def stat(path, *args, **options):
        found = ask(path, *args, **options)
        if "/train-" not in str(path):
            return found
        names = ("st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
        values = {name: getattr(found, name) for name in names}
        return types.SimpleNamespace(**values | changes)

    monkeypatch.setattr(index_cache.os, "stat", stat)


@pytest.mark.parametrize("changed", ["st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"])
def test_each_part_of_the_stamp_counts(tmp_path, monkeypatch, followed, changed):
    folder = tmp_path / "data"
    (path,) = write_numbered(folder, "train", 1, 4)
    usual = {"st_size": 9, "st_mtime_ns": 9, "st_ctime_ns": 9, "st_ino": 2**64 - 1}
    files = [str(path)]
    for changes, again in (({}, True), ({}, False), ({changed: 8}, True)):
        with monkeypatch.context() as patch:
            status(patch, **usual | changes)
            followed.clear()
            shards.load("train", str(folder), files)
            assert followed == [path.name] * again


def test_a_pipe_in_place_of_a_shard_is_not_waited_for(tmp_path):
    folder = tmp_path / "data"
    (path,) = write_numbered(folder, "train", 1, 3)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert load(folder) == [0, 1, 2]
    for make in (os.mkfifo, os.mkdir):
        path.unlink()
        make(tmp_path / make.__name__)
        path.symlink_to(tmp_path / make.__name__)
        with pytest.raises(ValueError, match=f"{path.name}: must be a TFRecord file"):
            shards.load("train", str(folder), [str(path)])


def test_files_that_come_and_go(tmp_path, followed):
    folder = tmp_path / "data"
    paths = write_numbered(folder, "train", 3, 9)
    load(folder)
    paths[0].unlink()
    followed.clear()
    assert load(folder) == [3, 4, 5, 6, 7, 8]
    assert followed == [paths[1].name, paths[2].name]  # the test's own
    write_numbered(tmp_path / "other", "train", 1, 2)[0].rename(folder / "train-x")
    followed.clear()
    assert load(folder) == [3, 4, 5, 6, 7, 8, 0, 1]
    assert followed[:-3] == ["train-x"]


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, b"text", b"PK\3\4" + bytes(60), b"\x93NUMPY\1\0"],
    ids=["empty", "zeros", "text", "zip", "npy"],
)
def test_what_is_no_index_is_ignored_and_replaced(tmp_path, content, followed):
    folder = tmp_path / "data"
    write_numbered(folder, "train", 2, 5)
    (folder / BESIDE).write_bytes(content)
    assert load(folder) == list(range(5))
    followed.clear()
    assert load(folder) == list(range(5))
    assert len(followed) == 2


def test_an_index_cut_at_any_byte_or_with_any_byte_changed(tmp_path):
    folder = tmp_path / "data"
    write_numbered(folder, "train", 2, 3)
    load(folder)
    good = (folder / BESIDE).read_bytes()
    for at in range(0, len(good), 31):
        for bad in (good[:at], good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :]):
            (folder / BESIDE).write_bytes(bad)
            assert load(folder) == [0, 1, 2], at


@pytest.mark.parametrize(
    "change",
    [
        {"format": np.int64(1)},
        {"counts": np.array([1, 1])},
        {"counts": np.array([4, -1])},
        {"offset": np.array([-12, 12, 12])},
        {"offset": np.array([12.0, 12, 12])},
        {"length": np.array([-2, 1, 1])},
        {"record": np.array([0, 1, 3])},
        {"record": np.array([], np.int64)},
        {"features": np.array(["image"])},
        {"stamps": np.array([[1, 2, 3, 4]])},
        {"stamps": np.array([[1, 2], [3, 4]])},
        {"stamps": np.ones([2, 4])},
        {"names": np.array([{}, {}], object)},
        {"label": None},
    ],
)
def test_an_index_that_cannot_be_right(tmp_path, change):
    folder = tmp_path / "data"
    write_numbered(folder, "train", 2, 3)
    load(folder)
    with np.load(folder / BESIDE) as stored:
        arrays = {name: stored[name] for name in stored.files} | change
    arrays = {name: array for name, array in arrays.items() if array is not None}
    np.savez(folder / BESIDE, **arrays)
    assert index_cache._read(str(folder / BESIDE)) is None
    assert load(folder) == [0, 1, 2]


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    folder = tmp_path / "data"
    write_numbered(folder, "train", 1, 3)
    np.savez(folder / BESIDE, format=np.array(Trap(), object))
    assert load(folder) == [0, 1, 2]
    assert not (tmp_path / "sprung").exists()


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path):
    folder = tmp_path / "data"
    write_numbered(folder, "train", 1, 3)
    os.mkfifo(folder / BESIDE)
    assert load(folder) == [0, 1, 2]


def read_only(monkeypatch, *folders):
    """As for a user that is not root: nothing can be made in there."""
    make, folders = tempfile.mkstemp, [os.fspath(folder) for folder in folders]

    def mkstemp(suffix, prefix, folder):
        if folder in folders:
            raise PermissionError(13, "Permission denied", folder)
        return make(suffix, prefix, folder)

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)


def test_a_read_only_folder(tmp_path, monkeypatch, home, followed, sampled):
    """The index of each folder lies in the user's cache folder."""
    for name, count in (("data", 5), ("other", 7)):
        write_numbered(tmp_path / name, "train", 2, count)
    read_only(monkeypatch, tmp_path / "data", tmp_path / "other")
    for _ in range(2):
        assert load(tmp_path / "data") == list(range(5))
        assert load(tmp_path / "other") == list(range(7))
    assert not (tmp_path / "data" / BESIDE).exists()
    assert len(os.listdir(home)) == 2 and sampled == [5, 7]
    # Under another name, it is the same folder.
    (tmp_path / "link").symlink_to(tmp_path / "data")
    followed.clear()
    assert load(tmp_path / "link") == list(range(5))
    assert len(followed) == 2 and len(os.listdir(home)) == 2


def test_nowhere_to_write(tmp_path, monkeypatch, home):
    write_numbered(tmp_path / "data", "train", 2, 5)
    read_only(monkeypatch, tmp_path / "data", home)
    assert load(tmp_path / "data") == list(range(5))
    assert load(tmp_path / "data") == list(range(5))
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.parametrize("setting", ["", "relative"])
def test_the_users_cache_folder(tmp_path, monkeypatch, setting):
    """XDG Base Directory Specification: a relative path is to be ignored."""
    monkeypatch.setenv("XDG_CACHE_HOME", setting)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    folder = tmp_path / "data"
    write_numbered(folder, "train", 1, 3)
    read_only(monkeypatch, folder)
    load(folder)
    assert len(list((tmp_path / "me" / ".cache" / "tf_goyal").glob("*-train.npz"))) == 1


def test_a_full_disk(tmp_path, monkeypatch):
    """What was begun is removed."""
    write_numbered(tmp_path / "data", "train", 2, 5)

    def full(file, **arrays):
        file.write(b"PK")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert load(tmp_path / "data") == list(range(5))
    assert sorted(os.listdir(tmp_path / "data")) == [
        "train-00000-of-00002",
        "train-00001-of-00002",
    ]


def test_other_users_can_read_it(tmp_path):
    write_numbered(tmp_path / "data", "train", 1, 3)
    load(tmp_path / "data")
    assert (tmp_path / "data" / BESIDE).stat().st_mode & 0o777 == 0o644


def test_many_processes_at_once(tmp_path):
    """Each sees a whole index or none, and all the same records."""
    folder = tmp_path / "data"
    paths = write_numbered(folder, "train", 4, 400)
    code = (
        "import glob, os, sys; from tf_goyal import index_cache, shards;"
        "folder = sys.argv[1]; files = sorted(glob.glob(folder + '/train-*'))\n"
        "place = os.path.join(folder, '.tf_goyal_index-train.npz')\n"
        "for _ in range(30):\n"
        "    split, _ = shards.load('train', folder, files)\n"
        "    assert len(split) == 400 and split.read(399)[0].endswith(b' 399')\n"
        "    assert index_cache._read(place) is not None\n"
        "    os.utime(files[0])\n"
    )
    root = os.path.dirname(os.path.dirname(index_cache.__file__))
    command = [sys.executable, "-c", code, str(folder)]

    def run(_):
        return subprocess.run(command, cwd=root, timeout=180, check=True)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert sorted(os.listdir(folder)) == [BESIDE, *(path.name for path in paths)]


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="train-9: cannot be read: No such file"):
        shards.load("train", str(tmp_path), [str(tmp_path / "train-9")])
