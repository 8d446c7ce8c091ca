"""What a process holds at its peak: alone, and as one of two, with the same n.

python tools/measure_memory.py [--steps=100]

Trains the digits recipe in one process and in two, in turns, and reads each process'
largest resident memory, and what it was before the first step. Writes
tools/results/memory.json.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
from absl import flags as absl_flags

from tf_goyal import flags, launch, run_log

DEADLINE = 600  # seconds


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    for name, default, text in (
        ("steps", 100, "Steps of each run."),
        ("rounds", 3, "Runs of each kind."),
    ):
        absl_flags.DEFINE_integer(name, default, text, flag_values=values)


def peaks(processes: int, steps: int) -> list[dict[str, float]]:
    """Trains; each rank's peak in MB, and its size when the first step was logged."""
    folder = Path(tempfile.mkdtemp())
    ports = launch.free_ports(processes)
    workers = [f"127.0.0.1:{port}" for port in ports]
    children = []
    for rank in range(processes):
        environment = dict(os.environ)
        if processes > 1:
            task = {"type": "worker", "index": rank}
            text = json.dumps({"cluster": {"worker": workers}, "task": task})
            environment["TF_CONFIG"] = text
        command = ["-m", "tf_goyal.train", "--recipe=digits", f"--steps={steps}"]
        children.append(
            subprocess.Popen(
                [sys.executable, *command, f"--model_dir={folder / 'run'}"],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    found = [{"built_mb": 0.0, "peak_mb": 0.0} for _ in children]
    log = folder / "run" / run_log.FILE_NAME
    deadline = time.monotonic() + DEADLINE
    try:
        while any(child.poll() is None for child in children):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{processes} processes took over {DEADLINE} s")
            stepped = log.exists() and '"kind": "train"' in log.read_text()
            for child, numbers in zip(children, found, strict=True):
                size = _peak(child.pid)
                numbers["peak_mb"] = max(numbers["peak_mb"], size)
                # The log's first line is written once everything is built.
                if log.exists() and not stepped and not numbers["built_mb"]:
                    numbers["built_mb"] = size
            time.sleep(0.02)
    finally:
        for child in children:
            child.kill()
        shutil.rmtree(folder)
    failed = [child.returncode for child in children if child.returncode]
    if failed:
        raise RuntimeError(f"training ended with {failed}")
    return found


def _peak(pid: int) -> float:
    """The largest resident memory of a process so far, in MB."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def main(_: list[str]) -> int:
    """Measures and writes. Returns the exit code."""
    rounds: dict[str, list] = {"one_process": [], "two_processes": []}
    for _ in range(flags.FLAGS.rounds):
        rounds["one_process"].append(peaks(1, flags.FLAGS.steps))
        rounds["two_processes"].append(peaks(2, flags.FLAGS.steps))
        print({name: runs[-1] for name, runs in rounds.items()})
    largest = {
        name: max(numbers["peak_mb"] for run in runs for numbers in run)
        for name, runs in rounds.items()
    }
    print(machine.write("memory", {"largest_peak_mb": largest, "rounds": rounds}))
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
