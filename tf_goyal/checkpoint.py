"""Checkpoints: complete or absent.

`checkpoints/step-N/` holds `variables.npz`, every variable under its name, and
`manifest.json` with the SHA-256 of that file and one of itself. Both are written into
a folder beside, flushed to the disk, read back, and only then renamed. A store of
objects renames no folder in one go: there the manifest is moved last, and without it
there is no checkpoint. Nothing in them knows of devices or processes.
"""

import contextlib
import hashlib
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from tf_goyal import arrays_file, files
from tf_goyal.files import AnyPath
from tf_goyal.progress import say

_VARIABLES = "variables.npz"
_MANIFEST = "manifest.json"
_VERSION = 1  # of the format; manifests without one are of version 1
_MANIFEST_BYTES = 2**26  # more than any manifest has
_OWN_SHA256 = "manifest_sha256"  # over all else in it; older ones lack it


def folder(model_dir: str | os.PathLike[str]) -> AnyPath:
    """The folder that holds a run's checkpoints."""
    return files.path(model_dir) / "checkpoints"


def weights_sha256(variables: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over all variables: sorted by name, little-endian bytes."""
    digest = hashlib.sha256()
    for name in sorted(variables):
        array = np.asarray(variables[name])
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def arrays_of(prefix: str, variables: Iterable[Any]) -> dict[str, np.ndarray]:
    """Copies Keras variables to the host, named `prefix/path`.

    Raises:
      ValueError: two variables have the same path.
    """
    arrays: dict[str, np.ndarray] = {}
    for variable in variables:
        name = f"{prefix}/{variable.path}"
        if name in arrays:
            raise ValueError(f"two variables have the name {name}; give layers names")
        arrays[name] = variable.numpy()
    return arrays


def assign(
    prefix: str, variables: Iterable[Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Gives Keras variables the values stored under `prefix/path`.

    Raises:
      ValueError: one is missing, has another shape or type, or is stored and nobody's;
        the message names it. Nothing has been assigned then.
    """
    wanted = {f"{prefix}/{variable.path}": variable for variable in variables}
    for name, variable in wanted.items():
        needs = f"{variable.dtype} of shape {tuple(variable.shape)}"
        has = "nothing"
        if name in arrays:
            has = f"{arrays[name].dtype.name} of shape {arrays[name].shape}"
        if has != needs:
            raise ValueError(
                f"the checkpoint has {has} for variable {name}, which needs {needs}; "
                "was it written with another --model?"
            )
    stored = {name for name in arrays if name.startswith(f"{prefix}/")}
    if nobodys := sorted(stored - set(wanted)):
        raise ValueError(
            f"the checkpoint has {len(nobodys)} variables that the model lacks, the "
            f"first is {nobodys[0]}; was it written with another --model?"
        )
    for name, variable in wanted.items():
        variable.assign(arrays[name])


def save(
    model_dir: str | os.PathLike[str],
    step: int,
    variables: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
    *,
    keep: int,
    keeps: Callable[[int], bool] = lambda _: False,
) -> AnyPath:
    """Writes a checkpoint and removes the oldest complete ones beyond the last `keep`.

    Args:
      model_dir: the run's folder.
      step: number of steps done.
      variables: name to array.
      metadata: JSON values to keep with it.
      keep: how many checkpoints stay, this one included.
      keeps: step -> whether a checkpoint of that step stays for good, beside them.

    Returns:
      The checkpoint's folder.

    Raises:
      OSError: the disk is full or read-only, or gave back other bytes than were
        written; the checkpoints that were there stay.
      ValueError: a variable cannot be stored.
    """
    final = folder(model_dir) / f"step-{step}"
    _remove_abandoned(folder(model_dir))
    beside = final.parent / f".{final.name}-{uuid.uuid4().hex[:8]}"
    try:
        _write(beside, step, variables, metadata)
        _rename(beside, final)
    except BaseException:
        if beside.exists():
            files.remove_tree(beside)
        raise
    # A later one is of a run that this one does not go on from: not ours to count.
    # Nor is a broken one: it would push a good one out.
    ours = [s for s in steps(model_dir) if s < step and not keeps(s)]
    counted = [
        old for s in ours if _looks_whole(old := folder(model_dir) / f"step-{s}")
    ]
    for old in counted[: max(0, len(counted) - (keep - 1))]:
        with _told(f"cannot remove the old checkpoint {old}"):
            _remove(old)
    return final


def _write(
    where: AnyPath,
    step: int,
    variables: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
) -> None:
    """Writes and reads back both files, the manifest last."""
    where.mkdir(parents=True, exist_ok=True)
    with (where / _VARIABLES).open("wb") as file:
        hashed = _Hashed(file)
        arrays_file.write(hashed, variables)
        files.sync(file)
    expected = hashed.bytes, hashed.digest.hexdigest()
    found = _size_and_sha256(where / _VARIABLES)
    if found != expected:
        raise OSError(
            f"{where / _VARIABLES} was written as {expected} (bytes, SHA-256) and read "
            f"back as {found}"
        )
    told = {
        "version": _VERSION,
        "step": step,
        "bytes": hashed.bytes,
        "sha256": expected[1],
        "variables": arrays_file.describe(variables),
        "metadata": dict(metadata),
    }
    told[_OWN_SHA256] = _own_sha256(json.loads(json.dumps(told)))
    with (where / _MANIFEST).open("wb") as file:
        file.write(json.dumps(told, indent=1).encode())
        files.sync(file)
    _flush_folder(where)


def _own_sha256(told: Mapping[str, Any]) -> str:
    """SHA-256 over a manifest as it is read, however its JSON is laid out."""
    rest = {name: value for name, value in told.items() if name != _OWN_SHA256}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def steps(model_dir: str | os.PathLike[str]) -> list[int]:
    """The steps of the checkpoints there are, broken ones too, ascending.

    Raises:
      ValueError: it cannot be found out: the folder cannot be read.
    """
    with files.model_dir_refused(model_dir):
        if not folder(model_dir).is_dir():
            return []
        found = [path for path in folder(model_dir).iterdir() if path.is_dir()]
    numbers = [
        path.name.removeprefix("step-")
        for path in found
        if path.name.startswith("step-")
    ]
    return sorted(int(n) for n in numbers if n.isdecimal() and n == str(int(n)))


def manifest(path: AnyPath) -> dict[str, Any]:
    """What a checkpoint says of itself, without a look at its variables.

    Returns:
      {"version", "step", "bytes", "sha256", "variables", "metadata",
      "manifest_sha256"}; those of older checkpoints lack the last, or "version" and
      "bytes" as well.

    Raises:
      ValueError: it is missing, damaged, or of another version; the message names it.
    """
    try:
        with (path / _MANIFEST).open("rb") as file:
            content = file.read(_MANIFEST_BYTES + 1)
        if len(content) > _MANIFEST_BYTES:
            raise ValueError(f"it has more than {_MANIFEST_BYTES} bytes")
        found = json.loads(content)
        for name, kind in (
            ("step", int),
            ("sha256", str),
            ("variables", dict),
            ("metadata", dict),
        ):
            if type(found[name]) is not kind:
                raise ValueError(f"its {name} is {found[name]!r:.40}")
        if (version := found.get("version", _VERSION)) != _VERSION:
            raise ValueError(
                f"it is of version {version!r:.40}, this program reads {_VERSION}"
            )
        if path.name != f"step-{found['step']}":
            raise ValueError(f"it is of step {found['step']}")
        if (own := found.get(_OWN_SHA256)) not in (None, _own_sha256(found)):
            raise ValueError(f"its own SHA-256 is not {own!r:.80}, as it says")
    except FileNotFoundError:
        raise ValueError(
            f"checkpoint {path} is not complete: it has no {_MANIFEST}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"checkpoint {path} is broken: {_MANIFEST}: {error!r}"
        ) from error
    return found


def load(path: AnyPath) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads one checkpoint and verifies it.

    Returns:
      Name to array, and the manifest.

    Raises:
      ValueError: a file is missing, cut, or differs from its checksum; the message
        names it.
    """
    about = manifest(path)
    try:
        bytes_, sha256 = _size_and_sha256(path / _VARIABLES)
        if bytes_ != about.get("bytes", bytes_):
            raise ValueError(f"it has {bytes_} bytes, should have {about['bytes']}")
        if sha256 != about["sha256"]:
            raise ValueError(f"its SHA-256 is {sha256}, should be {about['sha256']}")
        with (path / _VARIABLES).open("rb") as file:
            return arrays_file.read(file, about["variables"]), about
    except (OSError, ValueError) as error:
        raise ValueError(
            f"checkpoint {path / _VARIABLES} is broken: {error}"
        ) from error


def load_latest(
    model_dir: str | os.PathLike[str],
    unusable: Callable[[dict[str, Any]], str] = lambda _: "",
    at_most: int | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Reads the newest complete checkpoint; says on stderr which it passed over.

    Args:
      model_dir: the run's folder.
      unusable: manifest -> why that checkpoint must be passed over; "" if it need not.
      at_most: the last step to look at; None: there is none.

    Returns:
      As `load`, or None when there is no checkpoint at all.

    Raises:
      ValueError: there are checkpoints, and none of them can be used.
    """
    errors = []
    for step in reversed(steps(model_dir)):
        if at_most is not None and step > at_most:
            continue
        path = folder(model_dir) / f"step-{step}"
        try:
            if why := unusable(manifest(path)):
                raise ValueError(f"checkpoint {path} {why}")
            return load(path)
        except ValueError as error:
            say(f"passed over: {error}", sys.stderr)
            errors.append(str(error))
    if errors:
        raise ValueError(
            f"no checkpoint in {folder(model_dir)} can be used ({errors[0]}): put a "
            "whole one there, or, to train anew, remove the folder"
        )
    return None


def newest_whole(model_dir: str | os.PathLike[str], at_most: int) -> int | None:
    """The newest step up to `at_most` with all its files; None: there is none.

    Checksums are not looked at, which would take long.

    Raises:
      ValueError: as `steps`.
    """
    whole = (
        step
        for step in reversed(steps(model_dir))
        if step <= at_most and _looks_whole(folder(model_dir) / f"step-{step}")
    )
    return next(whole, None)


def _looks_whole(path: AnyPath) -> bool:
    """Whether a checkpoint is complete but for its checksum, which takes long."""
    try:
        about = manifest(path)
        with (path / _VARIABLES).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
    except (OSError, ValueError):
        return False
    return size == about.get("bytes", size)


def _rename(beside: AnyPath, final: AnyPath) -> None:
    """Makes what was written beside the checkpoint of its step.

    Where the step ran again, its files are replaced one by one: they hold the same
    variables, unless a run went on from an older checkpoint, which it then has.
    """
    if files.is_local(final) and not final.exists():
        os.rename(beside, final)
    else:
        final.mkdir(parents=True, exist_ok=True)
        for name in (_VARIABLES, _MANIFEST):
            files.move(beside / name, final / name)
        _flush_folder(final)
        files.remove_tree(beside)
    _flush_folder(final.parent)


def _remove(path: AnyPath) -> None:
    """Removes a checkpoint so that no half of it is ever there under its name."""
    if files.is_local(path):
        aside = path.parent / f".{path.name}-old"
        os.rename(path, aside)
        files.remove_tree(aside)
        return
    (path / _MANIFEST).unlink()
    files.remove_tree(path)


def _remove_abandoned(where: AnyPath) -> None:
    """Removes what a killed save left beside, and says so."""
    if not where.is_dir():
        return
    for abandoned in where.iterdir():
        if abandoned.name.startswith(".step-"):
            with _told(f"cannot remove {abandoned}, left by a killed save"):
                files.remove_tree(abandoned)
                say(f"removed {abandoned}, left by a killed save", sys.stderr)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Says on stderr what could not be done, which is no reason not to save."""
    try:
        yield
    except OSError as error:
        say(f"{what}: {error}", sys.stderr)


class _Hashed:
    """Writes through to a file and takes size and SHA-256 on the way."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data) -> int:
        self.digest.update(data)
        self.bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _size_and_sha256(path: AnyPath) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _flush_folder(path: AnyPath) -> None:
    """Names of files reach the disk by themselves only some time later."""
    if files.is_local(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
