"""Arrays in an .npz file: written beside training, read without trust.

The format is that of `numpy.savez`. Writing hands each array's memory to the checksum
and the file as it is: no copy, and Python's lock is free while bytes are moved. Reading
allocates nothing that the caller did not expect, and unpickles nothing.
"""

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

_BLOCK = 2**24  # bytes handed on at a time
_KINDS = "biufc"  # of numbers

# What zipfile and NumPy raise at a file that is no .npz, or a damaged one; among them
# NotImplementedError, which is zipfile's for a method of compression that it lacks.
_DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, KeyError),
    *(TypeError, SyntaxError, NotImplementedError, RuntimeError, OverflowError),
)


def describe(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Name to {"shape", "dtype"}, as `read` expects it."""
    return {
        name: {"shape": list(array.shape), "dtype": array.dtype.name}
        for name, array in arrays.items()
    }


def write(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays under their names, from front to end.

    Args:
      file: needs no more than `write` and `flush`.
      arrays: name to array of numbers.

    Raises:
      OSError: the file cannot be written.
      ValueError: an array's type is none that NumPy stores as numbers.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            if array.dtype.kind not in _KINDS:
                raise ValueError(
                    f"variable {name} must be of a type that .npz files can hold, but "
                    f"is {array.dtype.name}: cast it"
                )
            array = np.asarray(array, order="C")
            about = np.lib.format.header_data_from_array_1_0(array)
            info = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, about)
                content = memoryview(array.reshape(-1).view(np.uint8))
                for start in range(0, len(content), _BLOCK):
                    member.write(content[start : start + _BLOCK])


def read(
    file: BinaryIO, expected: Mapping[str, Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    """Reads exactly the arrays that are expected.

    Args:
      file: can be read and sought in.
      expected: as of `describe`.

    Raises:
      ValueError: what is there is damaged, more, less or otherwise than expected.
    """
    try:
        return _read(file, expected)
    except _DAMAGES as error:
        raise ValueError(str(error) or repr(error)) from error


def _read(
    file: BinaryIO, expected: Mapping[str, Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    size = file.seek(0, os.SEEK_END)
    wanted = {
        name: (tuple(about["shape"]), np.dtype(about["dtype"]))
        for name, about in expected.items()
    }
    needed = sum(math.prod(shape) * dtype.itemsize for shape, dtype in wanted.values())
    if needed > size or any(n < 0 for shape, _ in wanted.values() for n in shape):
        raise ValueError(f"{needed} bytes of arrays cannot be in {size} bytes of file")
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        found = [info.filename.removesuffix(".npy") for info in archive.infolist()]
        if sorted(found) != sorted(wanted):
            odd = sorted(set(found) ^ set(wanted)) or "one name twice"
            raise ValueError(f"it and its description differ in {odd}")
        for name, about in wanted.items():
            with archive.open(f"{name}.npy") as member:
                if (there := _header(member)) != about:
                    raise ValueError(f"array {name} is {there}, described as {about}")
            with archive.open(f"{name}.npy") as member:
                arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays


def _header(member: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type that an array's own header gives it."""
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    return shape, dtype
