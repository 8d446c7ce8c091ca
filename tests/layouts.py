"""Runs `layout_process.py` on any number of processes, for tests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tf_goyal.launch import free_ports

HERE = Path(__file__).parent
DEADLINE = 300  # seconds; a process hung in a collective is killed then

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
    ports = free_ports(processes)
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    children = []
    for rank in range(processes):
        layout = {
            "rank": rank,
            "ports": ports,
            "devices": devices,
            "runs": [
                [{**DEFAULTS, **settings}, str(folder / f"{name}-{rank}.npz")]
                for name, settings in runs.items()
            ],
        }
        command = [sys.executable, str(HERE / "layout_process.py"), json.dumps(layout)]
        children.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=(folder / f"rank-{rank}.out").open("w"),
                stderr=subprocess.STDOUT,
            )
        )
    try:
        for rank, child in enumerate(children):
            code = child.wait(timeout=DEADLINE)
            assert code == 0, (folder / f"rank-{rank}.out").read_text()[-3000:]
    finally:
        for child in children:
            child.kill()
    return {
        name: [dict(np.load(folder / f"{name}-{r}.npz")) for r in range(processes)]
        for name in runs
    }


def difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest absolute difference between two results' variables."""
    names = [name for name in a if name.startswith("model/")]
    assert names and sorted(a) == sorted(b)
    return max(float(np.abs(a[name] - b[name]).max()) for name in names)
