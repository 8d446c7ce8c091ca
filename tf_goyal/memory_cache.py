"""Records kept in memory once they are read (--cache=memory).

For storage that is far away and has no cache of its own; the page cache of the system
does the same for local disks, once for all processes of a machine. No TensorFlow.
"""

import os
from pathlib import Path

import numpy as np

from tf_goyal.datasets import Dataset, Split

_ROOM = 0.8  # the part of the free memory that records may take


class CachedSplit:
    """A `Split` that reads each record of another one once.

    Safe to read from several threads. Broken records are not kept.

    Attributes:
      split: the other one.
    """

    def __init__(self, split: Split):
        self.split = split
        self._kept: dict[int, tuple[bytes, int]] = {}
        self.name, self.files, self.bytes = split.name, split.files, split.bytes
        self.part_sizes: np.ndarray = split.part_sizes

    def __len__(self) -> int:
        return len(self.split)

    def where(self, record: int) -> str:
        """A record's place, for people."""
        return self.split.where(record)

    def will_read(self, record: int) -> None:
        """Lets the system fetch a record meanwhile."""
        if record not in self._kept:
            self.split.will_read(record)

    def read(self, record: int) -> tuple[bytes, int]:
        """Encoded image and stored label; raises `records.BadRecord`."""
        kept = self._kept.get(record)
        if kept is None:
            kept = self._kept[record] = self.split.read(record)
        return kept


def in_memory(data: Dataset) -> Dataset:
    """The data set, with its records kept once they are read.

    Raises:
      ValueError: there is not enough memory for all of them.
    """
    needed, free = data.train.bytes + data.validation.bytes, free_bytes()
    if needed > _ROOM * free:
        raise ValueError(
            f"--cache=memory needs room for all records, {needed / 2**30:.1f} GiB in "
            f"each process, but of {free / 2**30:.1f} GiB free memory at most "
            f"{_ROOM:.0%} may be taken: leave --cache out"
        )
    return Dataset(
        data.name, CachedSplit(data.train), CachedSplit(data.validation), data.labels
    )


def uncached(data: Dataset) -> Dataset:
    """The data set that `in_memory` got, if it made this one."""
    splits = (
        split.split if isinstance(split, CachedSplit) else split
        for split in (data.train, data.validation)
    )
    return Dataset(data.name, *splits, data.labels)


def free_bytes() -> int:
    """Memory that this process may still take, in bytes.

    The machine's free memory, or what the control group leaves of its limit. Files that
    the system keeps in memory because there is room do not count as used.
    """
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        meminfo = Path("/proc/meminfo").read_text()
        free = _value(meminfo, "MemAvailable:") * 1024 or pages
    except OSError:
        free = pages
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        used -= _value((group / "memory.stat").read_text(), "inactive_file")
    except (OSError, ValueError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def _value(text: str, name: str) -> int:
    """The number behind a name, in a file of the kernel; 0 where there is none."""
    for line in text.splitlines():
        if line.startswith(name + " "):
            return int(line.split()[1])
    return 0
