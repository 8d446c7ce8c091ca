"""--cache=memory: each record is read once, if all of them fit."""

import concurrent.futures
import threading

import numpy as np
import pytest

from tf_goyal import memory_cache
from tf_goyal.datasets import Dataset
from tf_goyal.memory_cache import CachedSplit
from tf_goyal.records import BadRecord


class Shards:
    """A split that counts how often each record is asked for; record 3 is broken."""

    name, files, bytes = "train", ("shard",), 2**30

    def __init__(self, images: int = 8):
        self.part_sizes = np.array([images])
        self.read_times = np.zeros(images, int)
        self.hints: list[int] = []
        self._lock = threading.Lock()

    def __len__(self):
        return int(self.part_sizes.sum())

    def read(self, record):
        with self._lock:
            self.read_times[record] += 1
        if record == 3:
            raise BadRecord("it is broken")
        return b"image %d" % record, record

    def will_read(self, record):
        self.hints.append(record)

    def where(self, record):
        return f"shard, record {record}"


def test_each_record_is_read_once():
    shards = Shards()
    cached = CachedSplit(shards)
    for _ in range(3):
        for record in (0, 1, 7):
            assert cached.read(record) == (b"image %d" % record, record)
    assert shards.read_times.tolist() == [1, 1, 0, 0, 0, 0, 0, 1]


def test_broken_records_are_not_kept():
    """They may come back: storage that is far away fails now and then."""
    shards = Shards()
    cached = CachedSplit(shards)
    for _ in range(2):
        with pytest.raises(BadRecord, match="it is broken"):
            cached.read(3)
    assert shards.read_times[3] == 2


def test_what_is_kept_is_not_fetched_again():
    shards = Shards()
    cached = CachedSplit(shards)
    cached.will_read(5)
    cached.read(5)
    cached.will_read(5)
    assert shards.hints == [5]


def test_is_a_split():
    shards = Shards()
    cached = CachedSplit(shards)
    assert (cached.name, cached.files, cached.bytes) == ("train", ("shard",), 2**30)
    assert cached.part_sizes.tolist() == [8]
    assert len(cached) == 8
    assert cached.where(2) == "shard, record 2"


def test_threads():
    """Every thread gets the right record, and afterwards nothing is read."""
    shards = Shards(400)
    cached = CachedSplit(shards)
    records = [record for record in range(400) if record != 3] * 4

    def right(record):
        return cached.read(record) == (b"image %d" % record, record)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, records))
        before = shards.read_times.copy()
        assert all(pool.map(right, records))
    np.testing.assert_array_equal(shards.read_times, before)


def dataset() -> Dataset:
    return Dataset("tfrecord", Shards(), Shards(), ("a", "b"))


def test_fits_into_four_fifths_of_the_free_memory(monkeypatch):
    """Two splits of 1 GiB: 2.5 GiB free are enough, one byte less is not."""
    data = dataset()
    monkeypatch.setattr(memory_cache, "free_bytes", lambda: 5 * 2**29)
    cached = memory_cache.in_memory(data)
    assert isinstance(cached.train, CachedSplit)
    assert isinstance(cached.validation, CachedSplit)
    assert (cached.name, cached.labels) == (data.name, data.labels)
    back = memory_cache.uncached(cached)
    assert (back.train, back.validation) == (data.train, data.validation)
    assert memory_cache.uncached(data).train is data.train
    monkeypatch.setattr(memory_cache, "free_bytes", lambda: 5 * 2**29 - 1)
    with pytest.raises(ValueError) as caught:
        memory_cache.in_memory(data)
    text = str(caught.value)
    for part in ("--cache=memory", "2.0 GiB", "2.5 GiB", "80%", "leave --cache out"):
        assert part in text
    assert "\n" not in text


class Kernel:
    """Stands for Path: the files of a machine."""

    files: dict[str, str]

    def __init__(self, name: str):
        self.name = name

    def __truediv__(self, name: str) -> "Kernel":
        return Kernel(f"{self.name}/{name}")

    def read_text(self) -> str:
        if self.name not in self.files:
            raise FileNotFoundError(self.name)
        return self.files[self.name]


MACHINE = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1000 kB\nBuffers: 5 kB\n"}
GROUP = {
    "/sys/fs/cgroup/memory.max": "600000\n",
    "/sys/fs/cgroup/memory.current": "500000\n",
    "/sys/fs/cgroup/memory.stat": "anon 7\ninactive_file 300000\nactive_file 9\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (MACHINE, 1_024_000),
        # Of the 500,000 bytes used, files in memory take 300,000: they may go.
        (MACHINE | GROUP, 400_000),
        (MACHINE | GROUP | {"/sys/fs/cgroup/memory.max": "max\n"}, 1_024_000),
        (MACHINE | GROUP | {"/sys/fs/cgroup/memory.max": "9000000\n"}, 1_024_000),
        (MACHINE | GROUP | {"/sys/fs/cgroup/memory.max": "100000\n"}, 0),
    ],
)
def test_free_memory_of_machine_and_group(monkeypatch, files, free):
    monkeypatch.setattr(Kernel, "files", files, raising=False)
    monkeypatch.setattr(memory_cache, "Path", Kernel)
    assert memory_cache.free_bytes() == free


def test_free_memory_of_this_machine():
    assert memory_cache.free_bytes() > 0
