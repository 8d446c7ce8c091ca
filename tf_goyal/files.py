"""Paths of a run's files: on a disk, or in a store that `tf.io.gfile` reaches.

A path with a scheme (`gs://bucket/run`, `s3://…`, `hdfs://…`, `ram://…`) is a store's.
Its `StorePath` has the part of `pathlib.Path` that a run needs and raises OSError as a
disk does. TensorFlow is imported only there, when something is read or written.
"""

import contextlib
import errno
import io
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tf_goyal import start

_SCHEME = "://"


class StorePath:
    """A path in a store. Folders there may be no more than the beginnings of names.

    Args:
      text: the path, with its scheme.
    """

    def __init__(self, text: str):
        scheme, rest = text.split(_SCHEME, 1)
        self._text = scheme + _SCHEME + rest.rstrip("/")

    def __str__(self) -> str:
        return self._text

    def __truediv__(self, name: str) -> "StorePath":
        return StorePath(f"{self._text}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self._text.rsplit("/", 1)[1]

    @property
    def parent(self) -> "StorePath":
        """The folder that it is in."""
        return StorePath(self._text.rsplit("/", 1)[0])

    def exists(self) -> bool:
        """Whether a file or folder is there."""
        with _os_errors() as gfile:
            return gfile.exists(self._text)

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        # gfile.isdir says no, too, where the store did not answer.
        try:
            with _os_errors() as gfile:
                return gfile.stat(self._text).is_directory
        except FileNotFoundError:
            return False

    def iterdir(self) -> Iterator["StorePath"]:
        """What is in the folder."""
        with _os_errors() as gfile:
            names = gfile.listdir(self._text)
        return (self / name.rstrip("/") for name in names)

    def mkdir(self, parents: bool, exist_ok: bool) -> None:
        """Makes the folder and those above it; as a store does, never refuses one."""
        del parents, exist_ok
        with _os_errors() as gfile:
            gfile.makedirs(self._text)

    def unlink(self) -> None:
        """Removes the file."""
        with _os_errors() as gfile:
            gfile.remove(self._text)

    def open(self, mode: str) -> BinaryIO:
        """Opens the file to read ("rb") or to be written anew ("wb")."""
        with _os_errors() as gfile:
            stream = _Stream(gfile.GFile(self._text, mode), mode)
        return (io.BufferedReader if mode == "rb" else io.BufferedWriter)(stream, 2**20)

    def read_bytes(self) -> bytes:
        """The whole file."""
        with self.open("rb") as file:
            return file.read()

    def read_text(self, encoding: str) -> str:
        """The whole file as text."""
        return self.read_bytes().decode(encoding)


class _Stream(io.RawIOBase):
    """A file of `tf.io.gfile` as one of Python's."""

    def __init__(self, file: Any, mode: str):
        self._file, self._mode = file, mode

    def readable(self) -> bool:
        return self._mode == "rb"

    def seekable(self) -> bool:
        return self._mode == "rb"

    def writable(self) -> bool:
        return self._mode == "wb"

    def readinto(self, buffer) -> int:
        with _os_errors():
            found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _os_errors():
            self._file.seek(offset, whence)
            return self._file.tell()

    def tell(self) -> int:
        with _os_errors():
            return self._file.tell()

    def write(self, data) -> int:
        with _os_errors():
            self._file.write(bytes(data))
        return len(data)

    def close(self) -> None:
        if self.closed:
            return
        try:
            with _os_errors():
                self._file.close()
        finally:
            super().close()


AnyPath = Path | StorePath


def path(text: str | os.PathLike[str]) -> AnyPath:
    """A path of the kind that its text says."""
    text = os.fspath(text)
    return StorePath(text) if _SCHEME in text else Path(text)


def is_local(where: AnyPath) -> bool:
    """Whether it is on a disk: files can be appended to, folders renamed in one go."""
    return isinstance(where, Path)


def remove_tree(folder: AnyPath) -> None:
    """Removes a folder and what is in it.

    Raises:
      OSError: something cannot be removed.
    """
    if is_local(folder):
        shutil.rmtree(folder)
        return
    with _os_errors() as gfile:
        gfile.rmtree(str(folder))


def replace(file: AnyPath, content: bytes) -> None:
    """Writes a file anew: a reader finds the old content or the new.

    Raises:
      OSError: it cannot be written; the old one stays then.
    """
    beside = file.parent / f".{file.name}-{uuid.uuid4().hex[:8]}"
    try:
        with beside.open("wb") as stream:
            stream.write(content)
        move(beside, file)
    except BaseException:
        if beside.exists():
            beside.unlink()
        raise


def move(source: AnyPath, target: AnyPath) -> None:
    """Gives a file another name, in place of the file of that name, if there is one.

    Raises:
      OSError: it cannot be moved.
    """
    if is_local(source):
        os.replace(source, target)
        return
    with _os_errors() as gfile:
        gfile.rename(str(source), str(target), overwrite=True)


def sync(file: BinaryIO) -> None:
    """Flushes an open file as far as it goes: to the disk, where there is one."""
    file.flush()
    with contextlib.suppress(io.UnsupportedOperation):
        os.fsync(file.fileno())


@contextlib.contextmanager
def model_dir_refused(model_dir: str | os.PathLike[str]) -> Iterator[None]:
    """What a disk or a store says of a run's folder refuses the flag.

    Raises:
      ValueError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise ValueError(
            "--model_dir must be a folder that can be read and written, but "
            f"{error.filename or model_dir} cannot be: {error.strerror or error}; see "
            "to its permissions and its storage, or name another"
        ) from error


@contextlib.contextmanager
def _os_errors() -> Iterator[Any]:
    """`tf.io.gfile`, whose errors become OSError."""
    if "tensorflow" not in sys.modules:
        start.tensorflow()
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, error.message) from error
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message) from error
