"""A training of a few processes that something happens to, and what comes of it."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tf_goyal import checkpoint, run_log
from tf_goyal.launch import free_ports

START_SECONDS = 240.0  # until there is a first step
LEAVE_SECONDS = 120.0  # from a fault until all have left
RUN_SECONDS = 600.0  # of a start that nothing happens to


@dataclasses.dataclass
class Attempt:
    """One start of all processes, and how it ended.

    Attributes:
      processes: how many there were.
      codes: exit code of each rank; minus the signal that ended it.
      first_step: the checkpoint's that it went on from.
      last_step: the last one in the log, 0 if there is none.
      seconds: from the fault, if there was one, until the last process left; without
        one, of the whole attempt.
      hung: whether a process had to be killed because it did not leave.
      output: of all ranks, for people.
    """

    processes: int
    codes: list[int]
    first_step: int
    last_step: int
    seconds: float
    hung: bool
    output: str

    @property
    def done(self) -> bool:
        """Whether the run has come to its end."""
        return not any(self.codes)

    @property
    def sha256(self) -> str:
        """weights_sha256 that the ranks agree on; empty where they do not."""
        found = set(re.findall(r"weights_sha256 ([0-9a-f]{64})", self.output))
        return found.pop() if len(found) == 1 else ""


class Running:
    """All processes of a run, started."""

    def __init__(self, model_dir: Path, arguments: Sequence[str], processes: int):
        self.model_dir = model_dir
        self.first_step = newest(model_dir)
        self.outputs = [tempfile.TemporaryFile("w+") for _ in range(processes)]
        workers = [f"127.0.0.1:{port}" for port in free_ports(processes)]
        self.ranks = []
        for rank, output in enumerate(self.outputs):
            task = {"type": "worker", "index": rank}
            description = {"cluster": {"worker": workers}, "task": task}
            environment = {**os.environ, "TF_CONFIG": json.dumps(description)}
            command = [sys.executable, "-m", "tf_goyal.train", *arguments]
            self.ranks.append(
                subprocess.Popen(
                    [*command, f"--model_dir={model_dir}"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
        self.started = time.monotonic()

    def send(self, number: int, rank: int) -> None:
        """Sends a signal to a rank that may be gone."""
        if self.ranks[rank].poll() is None:
            self.ranks[rank].send_signal(number)

    def alive(self, besides: int | None = None) -> list[int]:
        """The ranks that run, without one of them."""
        return [
            rank
            for rank, process in enumerate(self.ranks)
            if process.poll() is None and rank != besides
        ]

    def step(self) -> int:
        """The last one in the log."""
        return last_step(self.model_dir)

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Waits for something, or for the end of all. Returns whether it came."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if until():
                return True
            if not self.alive():
                return until()
            time.sleep(0.01)
        return False

    def leave(self, seconds: float, since: float | None = None) -> Attempt:
        """Waits until all have left; kills those that do not."""
        hung = not self.wait(lambda: not self.alive(), seconds)
        took = time.monotonic() - (since or self.started)
        self.kill()
        texts = []
        for rank, output in enumerate(self.outputs):
            output.seek(0)
            texts.append(f"--- rank {rank}\n{output.read()}")
            output.close()
        return Attempt(
            processes=len(self.ranks),
            codes=[process.returncode for process in self.ranks],
            first_step=self.first_step,
            last_step=last_step(self.model_dir),
            seconds=took,
            hung=hung,
            output="\n".join(texts),
        )

    def kill(self) -> None:
        """Ends what is left."""
        for process in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


@contextlib.contextmanager
def running(
    model_dir: Path, arguments: Sequence[str], processes: int
) -> Iterator[Running]:
    """Starts all processes of a run; whatever happens, none outlives it."""
    ranks = Running(model_dir, arguments, processes)
    try:
        yield ranks
    finally:
        ranks.kill()


def newest(model_dir: Path) -> int:
    """The step of the newest checkpoint that can be read, 0 without one."""
    for step in reversed(checkpoint.steps(str(model_dir))):
        with contextlib.suppress(ValueError):
            checkpoint.load(checkpoint.folder(str(model_dir)) / f"step-{step}")
            return step
    return 0


def log_lines(model_dir: Path) -> list[dict[str, Any]]:
    """What the run has logged so far."""
    if not (model_dir / run_log.FILE_NAME).exists():
        return []
    return run_log.read(str(model_dir))


def last_step(model_dir: Path) -> int:
    """The last step in the log, 0 without one."""
    steps = [line["step"] for line in log_lines(model_dir) if line["kind"] == "train"]
    return steps[-1] if steps else 0


def losses(model_dir: Path) -> dict[int, float]:
    """Step -> the loss that was logged, the last time that it was."""
    lines = log_lines(model_dir)
    return {line["step"]: line["loss"] for line in lines if line["kind"] == "train"}
