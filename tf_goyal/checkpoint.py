"""Checkpoints: complete or absent.

`checkpoints/step-N/` holds `variables.npz`, every variable under its name, and
`manifest.json` with the SHA-256 of that file. Both are written into a folder beside,
flushed to the disk, read back, and only then renamed. Nothing in them knows of devices
or processes.
"""

import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_VARIABLES = "variables.npz"
_MANIFEST = "manifest.json"


def folder(model_dir: str) -> Path:
    """The folder that holds a run's checkpoints."""
    return Path(model_dir) / "checkpoints"


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
      ValueError: one is missing or has another shape; the message names it. Nothing
        has been assigned then.
    """
    pairs = []
    for variable in variables:
        name = f"{prefix}/{variable.path}"
        found = arrays[name].shape if name in arrays else "nothing"
        if found != tuple(variable.shape):
            raise ValueError(
                f"the checkpoint has {found} for variable {name}, which has shape "
                f"{tuple(variable.shape)}; was it written with another --model?"
            )
        pairs.append((variable, arrays[name]))
    for variable, array in pairs:
        variable.assign(array)


def save(
    model_dir: str,
    step: int,
    variables: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
    *,
    keep: int,
) -> Path:
    """Writes a checkpoint and removes the oldest beyond the last `keep`.

    Args:
      model_dir: the run's folder.
      step: number of steps done.
      variables: name to array.
      metadata: JSON values to keep with it.
      keep: how many checkpoints stay, this one included.

    Returns:
      The checkpoint's folder.

    Raises:
      OSError: the disk is full or read-only; the checkpoints that were there stay.
    """
    final = folder(model_dir) / f"step-{step}"
    beside = folder(model_dir) / f".step-{step}-{uuid.uuid4().hex[:8]}"
    for abandoned in folder(model_dir).glob(".step-*"):
        shutil.rmtree(abandoned)
    beside.mkdir(parents=True)
    try:
        with open(beside / _VARIABLES, "wb") as file:
            np.savez(file, **variables)
            _flush(file)
        manifest = {
            "step": step,
            "sha256": _sha256(beside / _VARIABLES),
            "variables": {
                name: {"shape": list(array.shape), "dtype": array.dtype.name}
                for name, array in variables.items()
            },
            "metadata": dict(metadata),
        }
        with open(beside / _MANIFEST, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            _flush(file)
        load(beside)
        if final.exists():
            # Step `step` ran again after a resume: rename cannot replace a folder.
            shutil.rmtree(final)
        os.rename(beside, final)
        _flush_folder(final.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    # A later one is of a run that this one does not go on from: not ours to count.
    for old in [s for s in steps(model_dir) if s <= step][:-keep]:
        shutil.rmtree(folder(model_dir) / f"step-{old}")
    return final


def steps(model_dir: str) -> list[int]:
    """The steps of the checkpoints there are, ascending."""
    found = [path for path in folder(model_dir).glob("step-*") if path.is_dir()]
    numbers = [path.name.removeprefix("step-") for path in found]
    return sorted(int(n) for n in numbers if n.isdecimal() and n == str(int(n)))


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads one checkpoint and verifies it.

    Returns:
      Name to array, and the manifest.

    Raises:
      ValueError: a file is missing, cut, or differs from its checksum; the message
        names it.
    """
    try:
        manifest = json.loads((path / _MANIFEST).read_text("utf-8"))
        expected = manifest["sha256"], manifest["step"], manifest["metadata"]
        found = _sha256(path / _VARIABLES)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"checkpoint {path} is broken: {error!r}") from error
    if found != expected[0]:
        raise ValueError(
            f"checkpoint {path / _VARIABLES} is broken: its SHA-256 is {found}, "
            f"{_MANIFEST} says {expected[0]}"
        )
    with np.load(path / _VARIABLES, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}, manifest


def load_latest(
    model_dir: str, unusable: Callable[[dict[str, Any]], str] = lambda _: ""
) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Reads the newest complete checkpoint; says on stderr which it passed over.

    Args:
      model_dir: the run's folder.
      unusable: manifest -> why that checkpoint must be passed over; "" if it need not.

    Returns:
      As `load`, or None when there is no checkpoint at all.

    Raises:
      ValueError: there are checkpoints, and none of them can be used.
    """
    errors = []
    for step in reversed(steps(model_dir)):
        try:
            arrays, manifest = load(folder(model_dir) / f"step-{step}")
            if why := unusable(manifest):
                raise ValueError(f"checkpoint {folder(model_dir)}/step-{step} {why}")
            return arrays, manifest
        except ValueError as error:
            print(f"passed over: {error}", file=sys.stderr)
            errors.append(str(error))
    if errors:
        raise ValueError(
            f"no checkpoint in {folder(model_dir)} can be used: remove the folder to "
            f"start anew ({errors[0]})"
        )
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _flush(file) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
