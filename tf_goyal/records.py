"""TFRecord files read by record number, without a shuffle buffer.

A TFRecord file is a chain of records::

    uint64 length | uint32 masked CRC32C of length | data | uint32 masked CRC32C of data

so the length headers alone say where every record lies. `index_files` follows them
once; from then on any record is one `pread` away, in any order. No TensorFlow here:
files are checked before TensorFlow starts.
"""

import array
import dataclasses
import os
import resource
import struct
import threading
from collections.abc import Iterable, Sequence

import numpy as np

_HEADER_BYTES = 12  # uint64 length, uint32 CRC of it
_FOOTER_BYTES = 4  # uint32 CRC of the data
_unpack_length = struct.Struct("<Q").unpack_from


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
    """Where each record of some TFRecord files lies.

    Record r is the r-th in the order of the sorted file names, then of the position in
    the file, so the numbers do not depend on how many files the same records were cut
    into.

    Attributes:
      files: file names, sorted.
      file: int32 [records], position in `files`.
      offset: int64 [records], first byte of the record's data in its file.
      length: int64 [records], bytes of data.
    """

    files: tuple[str, ...]
    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.offset)


def index_file(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and lengths of one file's records, from its length headers alone.

    Args:
      path: an uncompressed TFRecord file.

    Returns:
      int64 [records] offsets and int64 [records] lengths of the data, in bytes.

    Raises:
      ValueError: the file cannot be read, is cut off, or holds something else.
    """
    offsets, lengths = array.array("q"), array.array("q")
    try:
        with open(path, "rb", buffering=0) as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            start = 0
            while start < size:
                header = os.pread(descriptor, _HEADER_BYTES, start)
                if len(header) < _HEADER_BYTES:
                    raise ValueError(
                        f"{path}: record {len(offsets)} at byte {start} needs a header "
                        f"of {_HEADER_BYTES} bytes, but the file ends after "
                        f"{len(header)}; copy or prepare the file again."
                    )
                (length,) = _unpack_length(header)
                end = start + _HEADER_BYTES + length + _FOOTER_BYTES
                if end > size:
                    raise ValueError(
                        f"{path}: the header at byte {start} (record {len(offsets)}) "
                        f"announces {length} bytes of data, but the file has only "
                        f"{size} bytes in all: it is cut off or no uncompressed "
                        "TFRecord file; copy or prepare it again."
                    )
                offsets.append(start + _HEADER_BYTES)
                lengths.append(length)
                start = end
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read: {error.strerror}; check the path and "
            "its permissions."
        ) from error
    return np.array(offsets, np.int64), np.array(lengths, np.int64)


def index_files(files: Iterable[str]) -> Index:
    """Numbers the records of all `files`.

    Raises:
      ValueError: as `index_file`.
    """
    files = tuple(sorted(files))
    tables = [index_file(path) for path in files]
    counts = [len(offsets) for offsets, _ in tables]
    empty = np.empty(0, np.int64)  # concatenate wants at least one array
    return Index(
        files=files,
        file=np.repeat(np.arange(len(files), dtype=np.int32), counts),
        offset=np.concatenate([empty, *(offsets for offsets, _ in tables)]),
        length=np.concatenate([empty, *(lengths for _, lengths in tables)]),
    )


class Reader:
    """Reads the records of an index by number; safe to call from several threads.

    Files are opened when first needed and stay open as far as the process' limit
    allows; ImageNet has 1,024 shards, and so many open files is a usual limit.
    """

    def __init__(self, index: Index):
        self._index = index
        self._descriptors: dict[int, int] = {}  # position in index.files: descriptor
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = max(256, limit // 4)  # -1: no limit was readable
        self._lock = threading.Lock()

    def __del__(self):
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def read(self, records: Sequence[int] | np.ndarray) -> list[bytes]:
        """The data of the given records, in the given order.

        Args:
          records: record numbers, each 0 <= r < len(index).

        Raises:
          ValueError: a number out of range, or a file that cannot be read or was
            changed since it was indexed.
        """
        return [self._read(int(record)) for record in records]

    def _read(self, record: int) -> bytes:
        index = self._index
        if not 0 <= record < len(index):
            raise ValueError(
                f"Record numbers go from 0 to {len(index) - 1}; received {record}."
            )
        file = int(index.file[record])
        offset, length = int(index.offset[record]), int(index.length[record])
        try:
            data = self._pread(file, length, offset)
        except OSError as error:
            raise ValueError(
                f"{index.files[file]}: record {record} at byte {offset} cannot be "
                f"read: {error.strerror}; check the file and its storage."
            ) from error
        if len(data) != length:
            raise ValueError(
                f"{index.files[file]}: record {record} at byte {offset} has {length} "
                f"bytes, but {len(data)} were left: the file was changed after it was "
                "indexed; start again."
            )
        # The data's CRC is the 4 bytes behind it: here is the place to check it.
        return data

    def _pread(self, file: int, length: int, offset: int) -> bytes:
        descriptor = self._descriptors.get(file)
        if descriptor is not None:
            return os.pread(descriptor, length, offset)
        descriptor = os.open(self._index.files[file], os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, length, offset)
        finally:
            self._keep_or_close(file, descriptor)

    def _keep_or_close(self, file: int, descriptor: int) -> None:
        # A kept descriptor is never closed before the reader goes: another thread
        # may be reading from it.
        with self._lock:
            if file in self._descriptors or len(self._descriptors) >= self._most_open:
                os.close(descriptor)
            else:
                self._descriptors[file] = descriptor
