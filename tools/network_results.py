"""Results by network and number of processes: one file and one picture for all."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine

from tf_goyal import cost_model

Entries = list[dict[str, Any]]
# What was measured, in an entry of bench_allreduce.py and of bench_overlap.py.
_MEASURED = ("sizes", "seconds")
# What one of bench_overlap.py holds beside "seconds".
_OVERLAP = ("over_larger", "hidden", "model", "batch", "image_size")


def keep(
    name: str, result: dict[str, Any], draw: Callable[[Entries, Path], None]
) -> Path:
    """Adds a result to tools/results/NAME.json and draws all of them again.

    Args:
      name: of the file.
      result: with "network" and "processes", and "sizes" or "seconds".
      draw: makes a PNG of the file's entries, less those without a measurement.

    Returns:
      The file.

    Raises:
      ValueError: the result holds no measurement, or the file is not as `load` wants
        it.
    """
    if not _holds_measurement(result):
        raise ValueError(
            f"a result must hold {' or '.join(_MEASURED)} to be kept in {name}.json, "
            f"got {', '.join(result) or 'nothing'}: measure something"
        )
    entries = merge(kept(name), {**result, "machine": machine.describe()})
    path = machine.write(name, {"runs": entries})
    draw(list(filter(_holds_measurement, entries)), path.with_suffix(".png"))
    return path


def _holds_measurement(entry: dict[str, Any]) -> bool:
    return any(entry.get(field) for field in _MEASURED)


def kept(name: str) -> Entries:
    """The entries of tools/results/NAME.json, none where there is no such file.

    A tool calls it before it measures: what `keep` would refuse is refused at once.

    Raises:
      ValueError: the file is not as `load` wants it.
    """
    path = machine.RESULTS / f"{name}.json"
    return load(path) if path.exists() else []


def load(path: Path) -> Entries:
    """The entries of a file that `keep` wrote.

    Raises:
      ValueError: it cannot be read, or is no such file.
    """

    def refused(found: Any) -> ValueError:
        return ValueError(
            f"{path} must be a JSON file of bench_allreduce.py or bench_overlap.py, "
            f"got {found}: mend it, move it away, or take another"
        )

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise refused(error) from error
    runs = content.get("runs") if isinstance(content, dict) else None
    if not isinstance(runs, list):
        raise refused("one without a list of runs")
    for number, run in enumerate(runs):
        if wrong := _wrong(run):
            raise refused(f"{wrong} in run {number}")
    return runs


def _wrong(run: Any) -> str:
    """What of an entry is not as it was written; empty: nothing."""
    if not isinstance(run, dict):
        return "no object"
    if not isinstance(run.get("network"), str):
        return "no network"
    if not _is_count(run.get("processes")):
        return "no number of processes"
    if run.get("seconds") and (lacking := [n for n in _OVERLAP if n not in run]):
        return f"no {lacking[0]}"
    sizes = run.get("sizes", [])
    if not isinstance(sizes, list) or not all(isinstance(s, dict) for s in sizes):
        return "no list of sizes"
    for size in sizes:
        if not _is_count(size.get("elements")):
            return "a size without elements"
        seconds = size.get("seconds")
        if not isinstance(seconds, dict) or not seconds:
            return f"no seconds of {size['elements']} elements"
        for algorithm, each in seconds.items():
            if algorithm not in cost_model.ALGORITHMS:
                known = ", ".join(cost_model.ALGORITHMS)
                return f"an algorithm {algorithm!r}, which is none of {known},"
            if not isinstance(each, (int, float)) or not 0 < each < math.inf:
                return f"{each!r} seconds of {algorithm}, which must be more than 0,"
    return ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 1 and value is not True


def merge(entries: Entries, new: dict[str, Any]) -> Entries:
    """The entries with `new` in place of the one of its network and processes."""
    same = ("network", "processes")
    others = [e for e in entries if any(e[key] != new[key] for key in same)]
    return sorted([*others, new], key=lambda e: (e["network"], e["processes"]))
