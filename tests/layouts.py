"""Runs `layout_process.py` on any number of processes, for tests."""

from pathlib import Path
from typing import Any

import numpy as np
import rank_runs

DEADLINE = 900  # seconds

DEFAULTS = {
    "workers": 4,
    "worker_batch": 6,
    "statistics": "worker",
    "exact": False,
    "bucket_bytes": 2**20,
    "algorithm": "auto",
    "hosts": None,  # the ranks on each; by default each is alone
    "wire": None,
    "learning_rate": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "steps": 5,
    "bright": False,
    "nan_on": None,  # the rank whose first kernel is NaN in the last step
}


def train(
    folder: Path,
    runs: dict[str, dict[str, Any]],
    processes: int = 1,
    devices: int = 1,
) -> dict[str, list[dict[str, Any]]]:
    """Trains each of `runs` on one layout, in fresh processes.

    Args:
      folder: where the ranks write.
      runs: settings over `DEFAULTS`, by name.
      processes, devices: the layout; devices are per process.

    Returns:
      For each name what each rank ended with.
    """
    settings = {
        "devices": devices,
        "runs": [
            [{**DEFAULTS, **changes}, str(folder / name)]
            for name, changes in runs.items()
        ],
    }
    rank_runs.run("layout_process.py", folder, processes, settings, DEADLINE)
    return {
        name: [dict(np.load(folder / f"{name}-{r}.npz")) for r in range(processes)]
        for name in runs
    }


def difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest absolute difference between two results' variables."""
    names = [name for name in a if name.startswith("model/")]
    assert names and sorted(a) == sorted(b)
    return max(float(np.abs(a[name] - b[name]).max()) for name in names)
