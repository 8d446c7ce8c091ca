"""Runs `reduction_process.py` on any number of processes, for tests."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tf_goyal.launch import free_ports

HERE = Path(__file__).parent
DEADLINE = 120  # seconds; a process hung in a collective is killed then


def values(case: dict[str, Any], rank: int) -> np.ndarray:
    """What a rank puts in: float64 [length].

    Whole numbers whose sums every dtype holds exactly, or random ones.
    """
    if case.get("random"):
        return np.random.default_rng(rank).normal(size=case["length"])
    return (rank + 1) * (1 + np.arange(case["length"]) % 5).astype(np.float64)


def ranks_of(case: dict[str, Any]) -> list[int]:
    """Who takes part in a case."""
    return case["ranks"] if "ranks" in case else [*itertools.chain(*case["hosts"])]


def total(case: dict[str, Any]) -> np.ndarray:
    """The sum over all ranks of a case: float64 [length]."""
    return sum(values(case, rank) for rank in ranks_of(case))


def run(
    folder: Path, processes: int, layout: dict[str, Any]
) -> list[dict[str, np.ndarray]]:
    """Starts the processes.

    Args:
      folder: where the ranks write.
      processes: p.
      layout: what `reduction_process.main` takes, but for rank, ports and output.

    Returns:
      What each rank wrote.
    """
    ports = free_ports(processes)
    outputs = [folder / f"{rank}.npz" for rank in range(processes)]
    children = []
    for rank, output in enumerate(outputs):
        arguments = {**layout, "rank": rank, "ports": ports, "output": str(output)}
        children.append(
            subprocess.Popen(
                [sys.executable, str(HERE / "reduction_process.py")],
                env={**os.environ, "PYTHONPATH": str(HERE.parent)},
                stdin=subprocess.PIPE,
                stdout=(folder / f"rank-{rank}.out").open("w"),
                stderr=subprocess.STDOUT,
            )
        )
        children[-1].stdin.write(json.dumps(arguments).encode())
        children[-1].stdin.close()
    try:
        for rank, child in enumerate(children):
            code = child.wait(timeout=DEADLINE)
            assert code == 0, (folder / f"rank-{rank}.out").read_text()[-3000:]
    finally:
        for child in children:
            child.kill()
    return [dict(np.load(output)) for output in outputs]
