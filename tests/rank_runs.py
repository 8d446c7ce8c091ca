"""Runs a script once for each rank, with a deadline, for tests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tf_goyal.launch import free_ports

HERE = Path(__file__).parent


def run(
    script: str, folder: Path, processes: int, settings: dict[str, Any], seconds: float
) -> None:
    """Starts the processes and waits until all have ended well.

    Args:
      script: a file beside this one. It gets `settings` as JSON on stdin, with its
        "rank" and the "ports" of all.
      folder: where each writes what it says, as rank-RANK.out.
      processes: p.
      settings: JSON values.
      seconds: the deadline; a process hung in a collective is killed then.
    """
    ports = free_ports(processes)
    outputs = [folder / f"rank-{rank}.out" for rank in range(processes)]
    children = []
    try:
        for rank, output in enumerate(outputs):
            with output.open("w") as file:
                child = subprocess.Popen(
                    [sys.executable, str(HERE / script)],
                    env={**os.environ, "PYTHONPATH": str(HERE.parent)},
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            children.append(child)
            with child.stdin:
                json.dump({**settings, "rank": rank, "ports": ports}, child.stdin)
        for child, output in zip(children, outputs, strict=True):
            code = child.wait(timeout=seconds)
            assert code == 0, output.read_text()[-3000:]
    finally:
        for child in children:
            child.kill()
            child.wait()
