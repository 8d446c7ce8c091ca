"""What a run was made with: `config.json`."""

import importlib.metadata
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

from tf_goyal import files
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset

FILE_NAME = "config.json"


def describe(config: Config, data: Dataset, processes: int) -> dict[str, Any]:
    """Every flag's value, the sizes derived from them, versions and the commit."""
    train_images, eval_images = len(data.train), len(data.validation)
    return {
        "flags": json.loads(config.to_json()),
        "derived": {
            "virtual_workers": config.virtual_workers,
            "scaled_lr": config.scaled_lr,
            "train_images": train_images,
            "eval_images": eval_images,
            "steps_per_epoch": config.steps_per_epoch(train_images),
            "total_steps": config.total_steps(train_images),
            "eval_shorter_side": config.eval_shorter_side,
            "op_threads": config.op_threads,
            "processes": processes,
            "labels": list(data.labels),
        },
        "versions": versions(),
        "git_commit": git_commit(),
    }


def versions() -> dict[str, str]:
    """Python's and the libraries' that results depend on."""
    names = ("tf_goyal", "tensorflow", "keras", "numpy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def git_commit() -> str | None:
    """The commit of the clone that this runs from; None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def write(model_dir: str, description: dict[str, Any]) -> None:
    """Writes config.json into the run's folder."""
    text = json.dumps(description, indent=2) + "\n"
    files.replace(files.path(model_dir) / FILE_NAME, text.encode())
