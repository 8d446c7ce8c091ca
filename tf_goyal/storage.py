"""Whether a run's folder can be written, found out before anything is computed.

This module imports no TensorFlow.
"""

import os
import shutil
import tempfile
from pathlib import Path


def trial_write(folder: Path) -> Path:
    """Writes, flushes and removes a file in a folder, or in the nearest above it.

    The folder need not exist and is not made: nothing is left behind.

    Returns:
        The folder that was tried.

    Raises:
        ValueError: it cannot be written: it is read-only, full, or no folder.
    """
    tried = folder = folder.absolute()
    try:
        tried = _nearest(folder)
        with tempfile.TemporaryFile(dir=tried) as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ValueError(
            f"--model_dir must be a folder that can be written, but a trial write "
            f"for {folder} failed in {tried}: {error.strerror}; free it or name "
            "another"
        ) from error
    return tried


def free_bytes(folder: Path) -> int:
    """Free bytes of the disk that a folder is on, or would be made on."""
    return shutil.disk_usage(_nearest(folder.absolute())).free


def _nearest(folder: Path) -> Path:
    """An absolute path itself, or the nearest one above it that is there.

    Raises:
        OSError: it can be neither looked at nor made, as below a file.
    """
    try:
        folder.lstat()
    except FileNotFoundError:
        return _nearest(folder.parent)
    return folder
