"""log.jsonl: one JSON object a line, its writer and its reader together."""

import json
import math
import os
import statistics
from pathlib import Path
from typing import Any

FILE_NAME = "log.jsonl"


class RunLog:
    """Appends to a run's log.jsonl and, when asked, to TensorBoard events.

    Args:
      model_dir: the run's folder, which exists.
      writes: False makes a log that drops everything: for every rank but 0.
      tensorboard: also write the numbers as TensorBoard scalars.
    """

    def __init__(self, model_dir: str, *, writes: bool = True, tensorboard=True):
        self._file = None
        self._summary = None
        if not writes:
            return
        path = Path(model_dir) / FILE_NAME
        _end_last_line(path)
        self._file = path.open("a", encoding="utf-8")
        if tensorboard:
            import tensorflow as tf

            self._summary = tf.summary.create_file_writer(model_dir)

    def write(self, kind: str, **fields: Any) -> None:
        """Writes one line and hands it to the operating system at once.

        Args:
          kind: "train", "eval" or "event".
          **fields: JSON values. Numbers of "train" and "eval" lines also go to
            TensorBoard, at `step`, under "kind/name".
        """
        if self._file is None:
            return
        # JSON has no NaN: what is not finite is written as null.
        finite = {
            name: None
            if isinstance(value, float) and not math.isfinite(value)
            else value
            for name, value in fields.items()
        }
        line = json.dumps({"kind": kind, **finite}, default=float, allow_nan=False)
        self._file.write(line + "\n")
        self._file.flush()
        if self._summary is not None and kind != "event":
            self._write_scalars(kind, fields)

    def _write_scalars(self, kind: str, fields: dict[str, Any]) -> None:
        import tensorflow as tf

        # What tf.summary.scalar writes; that one insists on TensorBoard being here.
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
            data_class="DATA_CLASS_SCALAR",
        )
        flat = {**fields, **fields.get("seconds", {})}
        with self._summary.as_default(step=fields["step"]):
            for name, value in flat.items():
                if name != "step" and isinstance(value, (int, float)):
                    value = tf.constant(value, tf.float32)
                    tf.summary.write(f"{kind}/{name}", value, metadata=metadata)
        self._summary.flush()

    def close(self) -> None:
        """Flushes everything to the disk. Nothing can be written after it."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        if self._summary is not None:
            self._summary.close()
        self._file = self._summary = None


def _end_last_line(path: Path) -> None:
    """Ends a line that a killed process left half-written, so ours starts a new one."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")


def read(model_dir: str) -> list[dict[str, Any]]:
    """Reads a run's log.

    Steps that ran twice, because a run was stopped and resumed at an older checkpoint,
    are given once: as they ran last. Half-written lines are passed over.

    Returns:
      The lines as dictionaries, in the order of the file.

    Raises:
      FileNotFoundError: there is no log in `model_dir`.
    """
    lines: dict[Any, dict[str, Any]] = {}
    path = Path(model_dir) / FILE_NAME
    for number, text in enumerate(path.read_text("utf-8").splitlines()):
        try:
            line = json.loads(text)
            place = line["kind"], number if line["kind"] == "event" else line["step"]
        except (ValueError, KeyError, TypeError):
            continue
        lines.pop(place, None)
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
