"""What several test files share: commands with a deadline, and one trained run."""

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import training

from tf_goyal import train

ROOT = Path(__file__).resolve().parent.parent

# Files that take minutes, the longest first: begun early, none is left over at the end
# for one of the two pytest processes.
LONGEST = (
    "test_train.py",
    "test_slurm.py",
    "test_chaos.py",
    "test_layouts.py",
    "test_launch.py",
    "test_train_stopped.py",
    "test_halving_doubling.py",
    "test_evaluator.py",
    "test_train_peers.py",
    "test_export_formats.py",
    "test_export.py",
    "test_train_start.py",
    "test_hierarchical.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first; otherwise the order stays."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


def _run(
    *arguments: str,
    environment: dict[str, str] | None = None,
    seconds: float = 600.0,
) -> subprocess.CompletedProcess:
    """Runs `python ARGUMENTS` from the clone; SIGKILL for all of it at the deadline."""
    settings = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **(environment or {})}
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        raise AssertionError(
            f"{arguments} did not end within {seconds} s\n{output}\n{errors}"
        ) from None
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess]:
    """Runs Python in a process of its own, see `_run`."""
    return _run


@pytest.fixture
def no_signals(monkeypatch) -> None:
    """`train.main` in this process leaves its signals as they are."""
    asked = types.SimpleNamespace(
        grace_seconds=0, to_stop=False, by=None, tell=lambda _: None
    )
    monkeypatch.setattr(train, "Asked", lambda: asked)


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> Path:
    """The folder of a run of 14 steps on the digits by two processes (X1).

    An epoch ends in step 12, so there are a checkpoint and an evaluation of it and of
    the last step.
    """
    model_dir = tmp_path_factory.mktemp("trained") / "run"
    flags = ["--recipe=digits", "--steps=14", f"--model_dir={model_dir}"]
    done = _run("-m", "tf_goyal.launch", "--processes=2", "--", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    return model_dir


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """120 training images in one file, 50 for validation."""
    return training.make_data(tmp_path_factory.mktemp("data") / "set", 120, 50)
