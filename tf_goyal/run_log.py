"""log.jsonl: one JSON object a line, its writer and its reader together."""

import json
import math
import os
import statistics
import sys
import threading
import time
from typing import Any

from tf_goyal import files
from tf_goyal.files import AnyPath
from tf_goyal.progress import say

FILE_NAME = "log.jsonl"
_PAUSE = 60.0  # seconds between whole logs written to a store, for "train" lines


class RunLog:
    """Appends to a run's log.jsonl and, when asked, to TensorBoard events.

    Any thread may write. A full disk stops nothing: lines wait until there is room.
    Where files cannot be appended to, as in stores of objects, the whole log is written
    anew: with every line that is no "train" line, and with those once a minute.

    Args:
      model_dir: the run's folder, which exists.
      writes: False makes a log that drops everything: for every rank but 0.
      tensorboard: also write the numbers as TensorBoard scalars.
    """

    def __init__(self, model_dir: str, *, writes: bool = True, tensorboard=True):
        self._lock = threading.Lock()
        self._file = None
        self._summary = None
        self._failing = False
        if not writes:
            return
        path = files.path(model_dir) / FILE_NAME
        self._file = _Appended(path) if files.is_local(path) else _Rewritten(path)
        if tensorboard:
            import tensorflow as tf

            self._summary = tf.summary.create_file_writer(str(model_dir))

    def write(self, kind: str, **fields: Any) -> None:
        """Writes one line and hands it to the operating system at once.

        Args:
          kind: "train", "eval" or "event".
          **fields: JSON values. Numbers of "train" and "eval" lines also go to
            TensorBoard, at `step`, under "kind/name".
        """
        # JSON has no NaN: what is not finite is written as null.
        finite = {
            name: None
            if isinstance(value, float) and not math.isfinite(value)
            else value
            for name, value in fields.items()
        }
        line = json.dumps({"kind": kind, **finite}, default=float, allow_nan=False)
        with self._lock:
            if self._file is None:
                return
            try:
                self._file.write(line.encode() + b"\n", soon=kind != "train")
                if self._summary is not None and kind != "event":
                    self._write_scalars(kind, fields)
                self._failing = False
            except OSError as error:
                self._tell(error)

    def _write_scalars(self, kind: str, fields: dict[str, Any]) -> None:
        import tensorflow as tf

        # What tf.summary.scalar writes; that one insists on TensorBoard being here.
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
            data_class="DATA_CLASS_SCALAR",
        )
        flat = {**fields, **fields.get("seconds", {})}
        try:
            with self._summary.as_default(step=fields["step"]):
                for name, value in flat.items():
                    if name != "step" and isinstance(value, (int, float)):
                        value = tf.constant(value, tf.float32)
                        tf.summary.write(f"{kind}/{name}", value, metadata=metadata)
            self._summary.flush()
        except tf.errors.OpError as error:
            raise OSError(error.message) from error

    def _tell(self, error: OSError) -> None:
        """Says that lines cannot be written, once until they can again."""
        if not self._failing:
            self._failing = True
            say(f"{FILE_NAME} cannot be written: {error}", sys.stderr)

    def close(self) -> None:
        """Flushes everything to the disk. Nothing can be written after it."""
        with self._lock:
            if self._file is not None:
                try:
                    self._file.close()
                except OSError as error:
                    self._tell(error)
            if self._summary is not None:
                self._summary.close()
            self._file = self._summary = None


class _Appended:
    """A file on a disk; a line that a killed process left half-written is ended."""

    def __init__(self, path: AnyPath):
        self._waiting = b""
        if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
            self._waiting = b"\n"
        self._file = path.open("ab", buffering=0)

    def write(self, line: bytes, soon: bool) -> None:
        del soon  # each line is
        self._waiting += line
        while self._waiting:  # a full disk may take a part
            self._waiting = self._waiting[self._file.write(self._waiting) :]

    def close(self) -> None:
        try:
            self.write(b"", soon=True)
            os.fsync(self._file.fileno())
        finally:
            self._file.close()


class _Rewritten:
    """A file in a store that cannot append."""

    def __init__(self, path: AnyPath):
        self._path = path
        old = path.read_bytes() if path.exists() else b""
        self._lines = [old if old.endswith(b"\n") or not old else old + b"\n"]
        self._written = time.monotonic()

    def write(self, line: bytes, soon: bool) -> None:
        self._lines.append(line)
        if soon or time.monotonic() - self._written >= _PAUSE:
            files.replace(self._path, b"".join(self._lines))
            self._written = time.monotonic()

    def close(self) -> None:
        self.write(b"", soon=True)


def read(model_dir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a run's log.

    Steps that ran twice, because a run was stopped and resumed at an older checkpoint,
    are given once: as they ran last. Half-written lines are passed over, and what else
    is none of ours.

    Returns:
      The lines as dictionaries, in the order of the file.

    Raises:
      FileNotFoundError: there is no log in `model_dir`.
    """
    lines: dict[Any, dict[str, Any]] = {}
    path = files.path(model_dir) / FILE_NAME
    for number, text in enumerate(path.read_bytes().splitlines()):
        try:
            line = json.loads(text.decode(errors="replace"))
            place = line["kind"], number if line["kind"] == "event" else line["step"]
            lines.pop(place, None)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        lines[place] = line
    return list(lines.values())


def reported_error(lines: list[dict[str, Any]]) -> dict[str, float]:
    """The error as the paper reports it (§5.1): the median of the last five epochs.

    Args:
      lines: as of `read`.

    Returns:
      {"last", "median_of_last_5"}: top-1 errors in per cent; NaN without evaluations.
    """
    errors = [line["top1_error"] for line in lines if line["kind"] == "eval"]
    if not errors:
        return {"last": math.nan, "median_of_last_5": math.nan}
    return {"last": errors[-1], "median_of_last_5": statistics.median(errors[-5:])}
