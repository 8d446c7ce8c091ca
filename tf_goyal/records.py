"""TFRecord files read by record number, without a shuffle buffer; and written.

A TFRecord file is a chain of records::

    uint64 length | uint32 masked CRC32C of length | data | uint32 masked CRC32C of data

so the length headers alone say where every record lies. `index_file` follows them
once; from then on any record is one `pread` away, in any order. A header that does not
fit its checksum costs one record: the chain goes on at the next header that does. No
TensorFlow here: files are checked before TensorFlow starts.
"""

import array
import concurrent.futures
import dataclasses
import functools
import os
import resource
import struct
import threading
from collections.abc import Iterable, Sequence

import google_crc32c
import numpy as np

from tf_goyal.second_tries import SecondTries

_HEADER_BYTES = 12  # uint64 length, uint32 CRC of it
_FOOTER_BYTES = 4  # uint32 CRC of the data
_MASK = 0xA282EAD8
_CHUNK = 1 << 22  # bytes looked through at once for a header
_READERS = 16  # files indexed at once: what a file system takes that is far away
BROKEN = -1  # length of a record whose header is broken


class BadRecord(ValueError):
    """A record that cannot be used; the text says why."""


def masked_crc(data: bytes | memoryview) -> int:
    """The checksum of the TFRecord format: CRC32C, rotated, plus a constant."""
    crc = google_crc32c.value(bytes(data))
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """One record as it stands in a TFRecord file."""
    length = struct.pack("<Q", len(data))
    header = length + struct.pack("<I", masked_crc(length))
    return header + data + struct.pack("<I", masked_crc(data))


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
      length: int64 [records], bytes of data; BROKEN where the header is broken, and
        `offset` is then the header's.
    """

    files: tuple[str, ...]
    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.offset)

    def where(self, record: int) -> str:
        """A record's place, for people."""
        file = int(self.file[record])
        first = int(np.searchsorted(self.file, file))
        return (
            f"{self.files[file]}, record {record - first} of the file at byte "
            f"{self.offset[record]}"
        )


def index_file(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and lengths of one file's records, from its length headers alone.

    A record that the end of the file cuts off keeps the length that it announces.

    Args:
      path: an uncompressed TFRecord file.

    Returns:
      int64 [records] offsets and int64 [records] lengths of the data, in bytes; see
      `Index`.

    Raises:
      ValueError: the file cannot be read, or holds something else.
    """
    offsets, lengths = array.array("q"), array.array("q")
    try:
        with open(path, "rb", buffering=0) as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            start = 0
            while start < size:
                length = _length(os.pread(descriptor, _HEADER_BYTES, start))
                if length == BROKEN:
                    end = _next_header(descriptor, start + 1, size)
                    if end == size and not offsets:
                        raise ValueError(_no_records(path, descriptor))
                    offsets.append(start)
                else:
                    end = start + _HEADER_BYTES + length + _FOOTER_BYTES
                    offsets.append(start + _HEADER_BYTES)
                lengths.append(length)
                start = end
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read: {error.strerror}; check the path and "
            "its permissions."
        ) from error
    return np.array(offsets, np.int64), np.array(lengths, np.int64)


def _length(header: bytes) -> int:
    """The length that a header announces, or BROKEN."""
    if len(header) == _HEADER_BYTES:
        length, crc = struct.unpack("<QI", header)
        if masked_crc(header[:8]) == crc and length < 2**62:
            return length
    return BROKEN


def _fits(data: bytes) -> bool:
    """Whether some data, and the masked checksum at their end, belong together.

    The data are not copied to part them from it: two checksums are equal if and only if
    they still are when both are carried on over the same bytes.
    """
    footer = data[-_FOOTER_BYTES:]
    (masked,) = struct.unpack("<I", footer)
    rotated = (masked - _MASK) & 0xFFFFFFFF
    crc = (rotated >> 17 | rotated << 15) & 0xFFFFFFFF
    return google_crc32c.value(data) == google_crc32c.extend(crc, footer)


@functools.cache
def _crc_tables() -> tuple[np.ndarray, int]:
    """uint32 [8, 256] and the CRC of 8 zeros: xor of them is the CRC of any 8 bytes."""
    zeros = google_crc32c.value(bytes(8))
    tables = np.empty([8, 256], np.uint32)
    for place in range(8):
        for byte in range(256):
            word = bytes(place) + bytes([byte]) + bytes(7 - place)
            tables[place, byte] = google_crc32c.value(word) ^ zeros
    return tables, zeros


def _next_header(descriptor: int, start: int, size: int) -> int:
    """Byte of the first header from `start` on that fits its checksum, or `size`."""
    tables, zeros = _crc_tables()
    while start + _HEADER_BYTES <= size:
        chunk = os.pread(descriptor, _CHUNK + _HEADER_BYTES - 1, start)
        data = np.frombuffer(chunk, np.uint8)
        places = len(data) - _HEADER_BYTES + 1
        if places <= 0:
            break
        crc = np.full(places, zeros, np.uint32)
        for place in range(8):
            crc ^= tables[place][data[place : place + places]]
        crc = (crc >> 15 | crc << 17) + np.uint32(_MASK)
        stored = np.zeros(places, np.uint32)
        for place in range(4):
            stored |= data[8 + place : 8 + place + places].astype(np.uint32) << (
                8 * place
            )
        for at in np.flatnonzero(crc == stored):
            length = _length(chunk[at : at + _HEADER_BYTES])
            end = start + int(at) + _HEADER_BYTES + length + _FOOTER_BYTES
            if length != BROKEN and end <= size:
                return start + int(at)
        start += places
    return size


def _no_records(path: str, descriptor: int) -> str:
    if os.pread(descriptor, 2, 0) == b"\x1f\x8b":
        return (
            f"{path}: must be an uncompressed TFRecord file, but is compressed with "
            "gzip: unpack it (gzip -d), since records are read by their place."
        )
    return (
        f"{path}: must be an uncompressed TFRecord file, but no record was found in "
        "it: it is another kind of file, or broken; copy or prepare it again."
    )


def index_each(files: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """`index_file` of several files at the same time.

    Raises:
      ValueError: as `index_file`.
    """
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(index_file, files))


def join(
    files: Sequence[str], tables: Iterable[tuple[np.ndarray, np.ndarray]]
) -> Index:
    """The Index of files that are sorted by name, from each one's `index_file`."""
    tables = list(tables)
    counts = [len(offsets) for offsets, _ in tables]
    empty = np.empty(0, np.int64)  # concatenate wants at least one array
    return Index(
        files=tuple(files),
        file=np.repeat(np.arange(len(files), dtype=np.int32), counts),
        offset=np.concatenate([empty, *(offsets for offsets, _ in tables)]),
        length=np.concatenate([empty, *(lengths for _, lengths in tables)]),
    )


def index_files(files: Iterable[str]) -> Index:
    """Numbers the records of all `files`.

    Raises:
      ValueError: as `index_file`.
    """
    files = sorted(files)
    return join(files, index_each(files))


class Reader:
    """Reads the records of an index by number; safe to call from several threads.

    Files are opened when first needed and stay open as far as the process' limit
    allows; ImageNet has 1,024 shards, and so many open files is a usual limit. A read
    that fails is tried again, with the file opened anew.

    Args:
      index: of the records.
      verify: whether to compare each record with its checksum.
    """

    def __init__(self, index: Index, verify: bool = True):
        self._index = index
        self._verify = verify
        self._descriptors: dict[int, int] = {}  # position in index.files: descriptor
        self._stale: list[int] = []  # failed, but another thread may be reading
        self._second_tries = SecondTries()
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = max(256, limit // 4)  # -1: no limit was readable
        self._lock = threading.Lock()

    def __del__(self):
        for descriptor in (*self._descriptors.values(), *self._stale):
            os.close(descriptor)

    def will_read(self, record: int) -> None:
        """Lets the system fetch a record meanwhile, if its file is open."""
        descriptor = self._descriptors.get(int(self._index.file[record]))
        length = int(self._index.length[record])
        if descriptor is not None and length > 0:
            offset = int(self._index.offset[record])
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def read(self, record: int) -> memoryview:
        """The data of a record.

        Args:
          record: its number, 0 <= record < len(index).

        Raises:
          IndexError: no such number.
          BadRecord: the record is broken or cannot be read.
        """
        index = self._index
        if not 0 <= record < len(index):
            raise IndexError(
                f"Record numbers go from 0 to {len(index) - 1}; received {record}."
            )
        file, offset = int(index.file[record]), int(index.offset[record])
        length = int(index.length[record])
        if length == BROKEN:
            raise BadRecord("the header's checksum does not fit its length")
        try:
            data = self._second_tries(
                lambda: self._pread(file, length + _FOOTER_BYTES, offset)
            )
        except OSError as error:
            raise BadRecord(f"the file cannot be read: {error.strerror}") from error
        except (MemoryError, OverflowError) as error:
            raise BadRecord(f"its header announces {length} bytes") from error
        if len(data) != length + _FOOTER_BYTES:
            raise BadRecord(
                f"the file ends {length + _FOOTER_BYTES - len(data)} bytes before the "
                "record does"
            )
        if self._verify and not _fits(data):
            raise BadRecord("the data do not fit their checksum")
        return memoryview(data)[:length]

    def _pread(self, file: int, length: int, offset: int) -> bytes:
        descriptor = self._descriptors.get(file)
        if descriptor is not None:
            try:
                return os.pread(descriptor, length, offset)
            except OSError:
                self._forget(file, descriptor)
                raise
        descriptor = os.open(self._index.files[file], os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, length, offset)
        except BaseException:
            os.close(descriptor)
            raise
        self._keep_or_close(file, descriptor)
        return data

    def _forget(self, file: int, descriptor: int) -> None:
        """The next read of the file opens it anew."""
        with self._lock:
            if self._descriptors.get(file) == descriptor:
                self._stale.append(self._descriptors.pop(file))

    def _keep_or_close(self, file: int, descriptor: int) -> None:
        # A kept descriptor is never closed before the reader goes: another thread
        # may be reading from it.
        with self._lock:
            if file in self._descriptors or len(self._descriptors) >= self._most_open:
                os.close(descriptor)
            else:
                self._descriptors[file] = descriptor
