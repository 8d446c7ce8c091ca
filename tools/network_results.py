"""Results by network and number of processes: one file and one picture for all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine

Entries = list[dict[str, Any]]


def keep(
    name: str, result: dict[str, Any], draw: Callable[[Entries, Path], None]
) -> Path:
    """Adds a result to tools/results/NAME.json and draws all of them again.

    Args:
      name: of the file.
      result: with "network" and "processes".
      draw: makes a PNG of the file's entries.

    Returns:
      The file.
    """
    path = machine.RESULTS / f"{name}.json"
    entries = json.loads(path.read_text())["runs"] if path.exists() else []
    entries = merge(entries, {**result, "machine": machine.describe()})
    machine.write(name, {"runs": entries})
    draw(entries, path.with_suffix(".png"))
    return path


def merge(entries: Entries, new: dict[str, Any]) -> Entries:
    """The entries with `new` in place of the one of its network and processes."""
    same = ("network", "processes")
    kept = [e for e in entries if any(e[key] != new[key] for key in same)]
    return sorted([*kept, new], key=lambda e: (e["network"], e["processes"]))
