"""python -m tf_goyal.launch: N processes of a run on this machine, with restarts.

    python -m tf_goyal.launch --processes=2 -- --recipe=digits --model_dir=...

Everything behind `--` goes to `tf_goyal.train`. Rank 0 writes to this terminal, the
others to `logs/rank-I.log` in the run's folder.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from absl import flags as absl_flags

from tf_goyal import flags, preflight, resume, storage

START_AGAIN = 128  # exit codes from here on ask for a restart
GRACE_SECONDS = 60.0


def define(values: absl_flags.FlagValues) -> None:
    """The flags of launch."""
    absl_flags.DEFINE_integer(
        "processes",
        None,
        "Number of processes.",
        lower_bound=1,
        flag_values=values,
        required=True,
    )
    absl_flags.DEFINE_integer(
        "restarts",
        0,
        "How many times all processes are started again after a lost process.",
        lower_bound=0,
        flag_values=values,
    )


def main(arguments: list[str]) -> int:
    """Starts the processes until they are done. Returns the run's exit code."""
    processes, restarts = flags.FLAGS.processes, flags.FLAGS.restarts
    # Refused here, once, and not by each process.
    if rest := flags.parse(["train", *arguments]):
        raise ValueError(
            f"train takes flags only, written --name=value, got {rest[0]!r}"
        )
    settings = flags.config_from_flags()
    model_dir = Path(settings.model_dir)
    data = preflight.check(settings, processes)
    resume.last_checkpoint(settings, data)
    storage.trial_write(model_dir)
    stop = _StopRequest()
    while True:
        code = run_once(processes, arguments, model_dir, stop)
        if code < START_AGAIN or restarts == 0 or stop.signal:
            return code
        restarts -= 1
        print(f"launch: exit code {code}: starting again", file=sys.stderr)


class _StopRequest:
    """SIGTERM and SIGINT to launch are handed on to the processes."""

    def __init__(self):
        self.signal = None
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, *_) -> None:
        self.signal = signal.SIGTERM


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def run_once(
    processes: int, arguments: list[str], model_dir: Path, stop: _StopRequest
) -> int:
    """Starts all processes, waits for them, and ends those that are left over.

    Returns:
      0, or the first exit code that does not ask for a restart, or else that of the
      process that ended first; 128 + the signal's number where a signal ended it.
    """
    workers = [f"127.0.0.1:{port}" for port in free_ports(processes)]
    children = [_start(r, workers, model_dir, arguments) for r in range(processes)]
    first_failure, deadline, asked = 0, None, False
    while any(child.poll() is None for child in children):
        time.sleep(0.05)
        failures = [child.poll() for child in children if child.poll()]
        first_failure = first_failure or (failures[0] if failures else 0)
        if deadline is None and (first_failure or stop.signal):
            deadline = time.monotonic() + GRACE_SECONDS
        for child in children:
            if stop.signal and not asked:
                child.send_signal(stop.signal)
            if deadline and time.monotonic() > deadline:
                child.kill()
        asked = asked or stop.signal is not None
    failures = [first_failure, *(child.returncode for child in children)]
    codes = [128 - code if code < 0 else code for code in failures if code]
    # The cause comes before its consequence: peers of one that refused leave with 138.
    return next(
        (code for code in codes if code < START_AGAIN), codes[0] if codes else 0
    )


def _start(
    rank: int, workers: list[str], model_dir: Path, arguments: list[str]
) -> subprocess.Popen:
    """One process of the run; its output goes here, or to a file for rank > 0."""
    environment = dict(os.environ)
    environment.pop("TF_CONFIG", None)
    if len(workers) > 1:
        task = {"type": "worker", "index": rank}
        description = {"cluster": {"worker": workers}, "task": task}
        environment["TF_CONFIG"] = json.dumps(description)
    command = [sys.executable, "-m", "tf_goyal.train", *arguments]
    with contextlib.ExitStack() as stack:
        output = None
        if rank > 0:
            logs = model_dir / "logs"
            logs.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context((logs / f"rank-{rank}.log").open("ab"))
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )


def _end_with_parent() -> None:
    """In the new process: SIGTERM when launch dies, however it does."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False, arguments="-- FLAGS of train")
