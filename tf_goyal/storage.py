"""Whether a run's folder can be written, found out before anything is computed.

For a folder on a disk no TensorFlow is imported.
"""

import os
import shutil
import tempfile
import uuid
from pathlib import Path

from tf_goyal import checkpoint, files, provenance, run_log
from tf_goyal.files import AnyPath, StorePath


def trial_write(folder: str | os.PathLike[str]) -> AnyPath:
    """Writes, flushes and removes a file in a folder, or in the nearest above it.

    The folder need not exist and is not made: nothing is left behind. What is in it
    already must be of the kind that a run has there.

    Returns:
        The folder that was tried.

    Raises:
        ValueError: it cannot be written: it is read-only, full, or no folder, or
            TensorFlow does not reach such a store.
    """
    tried = wanted = files.path(folder)
    try:
        if not files.is_local(wanted):
            _try_store(wanted)
            return wanted
        tried = wanted = wanted.absolute()
        tried = _nearest(wanted)
        with tempfile.TemporaryFile(dir=tried) as file:
            file.write(bytes(4096))
            files.sync(file)
        if tried == wanted:
            _check_contents(wanted)
    except OSError as error:
        raise ValueError(
            f"--model_dir must be a folder that can be written, but a trial write "
            f"for {wanted} failed in {tried}: {error.strerror}; free it or name "
            "another"
        ) from error
    return tried


def _check_contents(folder: Path) -> None:
    """Looks at what a run writes to, where it is there from before.

    Raises:
        ValueError: a file is where a folder should be, or the other way round, or it
            cannot be written to.
    """
    for path, kind in (
        (checkpoint.folder(folder), "a folder"),
        (folder / run_log.FILE_NAME, "a file"),
        (folder / provenance.FILE_NAME, "a file"),
    ):
        if not os.path.lexists(path):
            continue
        if path.is_dir() != (kind == "a folder") or not os.access(path, os.W_OK):
            raise ValueError(
                f"--model_dir must be a run's folder or a new one, but {path} is not "
                f"{kind} that can be written: move it away or name another folder"
            )


def _try_store(folder: StorePath) -> None:
    """The trial write in a store, where a file needs no folder.

    Some, like hdfs, do have folders: there the missing ones are made and stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trial = folder / f".trial-{uuid.uuid4().hex[:8]}"
    files.replace(trial, bytes(4096))
    trial.unlink()


def free_bytes(folder: str | os.PathLike[str]) -> int | None:
    """Free bytes of the disk that a folder is, or would be made, on; None: no disk."""
    where = files.path(folder)
    if not files.is_local(where):
        return None
    return shutil.disk_usage(_nearest(where.absolute())).free


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
