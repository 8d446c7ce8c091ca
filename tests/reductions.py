"""Runs `reduction_process.py` on any number of processes, for tests."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import rank_runs
import tensorflow as tf

DEADLINE = 600  # seconds


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


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as they travel in a dtype."""
    return values.astype(tf.as_dtype(dtype).as_numpy_dtype).astype(values.dtype)


def run(
    folder: Path, processes: int, layout: dict[str, Any]
) -> list[dict[str, np.ndarray]]:
    """Starts the processes.

    Args:
      folder: where the ranks write.
      processes: p.
      layout: what `reduction_process.main` takes, but for rank, ports and
        outputs.

    Returns:
      What each rank wrote.
    """
    outputs = [str(folder / f"{rank}.npz") for rank in range(processes)]
    settings = {**layout, "outputs": outputs}
    rank_runs.run("reduction_process.py", folder, processes, settings, DEADLINE)
    return [dict(np.load(output)) for output in outputs]
