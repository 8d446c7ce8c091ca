"""python -m tf_goyal.launch: N processes of a run on this machine, with restarts.

    python -m tf_goyal.launch --processes=2 -- --recipe=digits --model_dir=...

Everything behind `--` goes to `tf_goyal.train`. Rank 0 writes to this terminal, the
others to `logs/rank-I.log` in the run's folder, if that is on a disk. GPUs, those of
CUDA_VISIBLE_DEVICES or else all, are shared out, the same number for each.

A run goes on from its last checkpoint with as many processes as there are: --elastic
starts again without those that were lost.
"""

import contextlib
import ctypes
import itertools
import json
import math
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from absl import flags as absl_flags

from tf_goyal import files, flags, preflight, resume, storage
from tf_goyal.asked import ASKED_TO_STOP
from tf_goyal.config import Config
from tf_goyal.peers import PEER_LOST, REFUSED
from tf_goyal.progress import say

START_AGAIN = 128  # exit codes from here on ask for a restart
MARGIN_SECONDS = 15.0  # beyond what the processes take by their flags


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
    absl_flags.DEFINE_bool(
        "elastic",
        False,
        "Start again without the processes that were lost, but with one at least.",
        flag_values=values,
    )


def main(arguments: list[str]) -> int:
    """Starts the processes until they are done. Returns the run's exit code."""
    processes, restarts = flags.FLAGS.processes, flags.FLAGS.restarts
    elastic = flags.FLAGS.elastic
    # Refused here, once, and not by each process.
    if rest := flags.parse(["train", *arguments]):
        raise ValueError(
            f"train takes flags only, written --name=value, got {rest[0]!r}"
        )
    settings = flags.config_from_flags()
    _refuse(settings, restarts, elastic)
    if 0 < len(gpus := visible_gpus(os.environ)) < processes:
        raise ValueError(
            f"each process needs a GPU of its own, but there are {len(gpus)}, got "
            f"--processes={processes}: lower it, or train on CPUs with "
            "CUDA_VISIBLE_DEVICES=-1"
        )
    data = preflight.check(settings, processes)
    resume.last_checkpoint(settings, data)
    storage.trial_write(settings.model_dir)
    logs = _log_folder(settings.model_dir)
    grace = settings.grace_seconds or math.inf
    patience = MARGIN_SECONDS + max(grace, settings.peer_timeout)
    stop = _StopRequest()
    while True:
        ending = run_once(processes, arguments, logs, stop, patience)
        if ending.code < START_AGAIN or restarts == 0 or stop.signal:
            return ending.code
        left = max(1, processes - ending.lost) if elastic else processes
        restarts -= 1
        say(
            f"launch: exit code {ending.code}: starting again with {left} of "
            f"{processes} processes, restarts left: {restarts}",
            sys.stderr,
        )
        processes = left


class Ending(NamedTuple):
    """How the processes of a run ended.

    Attributes:
        code: the run's exit code.
        lost: how many ended by a fault of their own: a signal, or an exit code from
            128 on other than 138 and 143.
    """

    code: int
    lost: int


def _refuse(settings: Config, restarts: int, elastic: bool) -> None:
    """Raises ValueError where flags contradict what launch does."""
    if elastic and not restarts:
        raise ValueError(
            "--elastic is how to start again after a loss, so it needs --restarts of "
            "at least 1, got --restarts=0"
        )
    if restarts and settings.resume == "never":
        raise ValueError(
            "a run that is started again goes on from its checkpoints, which "
            f"--resume=never refuses, got --restarts={restarts} and --resume=never: "
            "leave one of them out; a new --model_dir starts anew by itself"
        )
    if settings.worker_hosts or settings.task_index != -1:
        raise ValueError(
            "launch makes the cluster itself, but got "
            f"--worker_hosts={settings.worker_hosts} and "
            f"--task_index={settings.task_index}: leave them out"
        )
    if elastic and settings.expected_workers:
        raise ValueError(
            "--elastic may go on with fewer processes, but "
            f"--expected_workers={settings.expected_workers} asks for that many: "
            "leave one of them out"
        )


def _log_folder(model_dir: str) -> Path:
    """Where the processes beyond the first write; in a store they could not append."""
    if files.is_local(files.path(model_dir)):
        return Path(model_dir) / "logs"
    logs = Path(tempfile.mkdtemp(prefix="tf_goyal-logs-"))
    say(f"launch: logs of the other processes: {logs}")
    return logs


class _StopRequest:
    """SIGTERM and SIGINT to launch are handed on to the processes."""

    def __init__(self):
        self.signal = None
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, *_) -> None:
        self.signal = signal.SIGTERM


def visible_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """The GPUs that a process with this environment sees, for CUDA_VISIBLE_DEVICES."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        names = (n.strip() for n in environ["CUDA_VISIBLE_DEVICES"].split(","))
        # CUDA does not look behind the first that is none, such as -1.
        return list(itertools.takewhile(re.compile("[0-9]|GPU-|MIG-").match, names))
    found = [path for path in devices.glob("nvidia*") if path.name[6:].isdecimal()]
    return [str(number) for number in range(len(found))]


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
    processes: int,
    arguments: list[str],
    logs: Path,
    stop: _StopRequest,
    patience: float,
) -> Ending:
    """Starts all processes, waits for them, and ends those that are left over.

    Args:
        processes: how many.
        arguments: of each.
        logs: folder for the output of all but the first.
        stop: whether launch was asked to stop.
        patience: seconds that they have to end, when one failed or all must stop.

    Returns:
        With the code 0, or the first that does not ask for a restart, or else that of
        the process that ended first; 128 + the signal's number where a signal ended it.
    """
    workers = [f"127.0.0.1:{port}" for port in free_ports(processes)]
    # A token of this start alone: what is left of an earlier one is a stranger.
    environment = {**os.environ, "TF_GOYAL_RUN_TOKEN": secrets.token_hex(32)}
    children = []
    gpus = visible_gpus(environment)
    for rank in range(processes):
        if gpus:
            each = len(gpus) // processes
            share = gpus[rank * each : (rank + 1) * each]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(share)
        task = {"type": "worker", "index": rank}
        description = {"cluster": {"worker": workers}, "task": task}
        environment["TF_CONFIG"] = json.dumps(description)
        children.append(_start(rank, environment, logs, arguments))
    first_failure, deadline, asked, ended_here = 0, None, False, set()
    while any(child.poll() is None for child in children):
        time.sleep(0.05)
        failures = [child.poll() for child in children if child.poll()]
        first_failure = first_failure or (failures[0] if failures else 0)
        if deadline is None and (first_failure or stop.signal):
            deadline = time.monotonic() + patience
        for child in children:
            if stop.signal and not asked:
                child.send_signal(stop.signal)
            if deadline and time.monotonic() > deadline and child.poll() is None:
                ended_here.add(child)
                child.kill()
        asked = asked or stop.signal is not None
    return _ending(children, first_failure, ended_here)


def _ending(
    children: list[subprocess.Popen], first_failure: int, ended_here: set
) -> Ending:
    """What processes that all have ended make of their run.

    Args:
        children: the processes.
        first_failure: return code of the one that failed first; 0: none did.
        ended_here: those that launch ended itself, since they hung.
    """
    failures = [first_failure, *(child.returncode for child in children)]
    codes = [_exit_code(failure) for failure in failures if failure]
    # The cause comes before its consequence: peers of one that refused leave with 138.
    # But one that was killed at the start is missed, and then the others refuse.
    consequences = {REFUSED} if first_failure < 0 else set()
    code = next(
        (c for c in codes if c < START_AGAIN and c not in consequences),
        codes[0] if codes else 0,
    )
    by_themselves = [_exit_code(c.returncode) for c in children if c not in ended_here]
    lost = [
        code
        for code in by_themselves
        if code >= START_AGAIN and code not in (PEER_LOST, ASKED_TO_STOP)
    ]
    return Ending(code, len(lost))


def _exit_code(returncode: int) -> int:
    """Popen's return code, as a shell gives it: 137 where SIGKILL ended a process."""
    return 128 - returncode if returncode < 0 else returncode


def _start(
    rank: int, environment: dict[str, str], logs: Path, arguments: list[str]
) -> subprocess.Popen:
    """One process of the run; its output goes here, or to a file for rank > 0."""
    command = [sys.executable, "-m", "tf_goyal.train", *arguments]
    with contextlib.ExitStack() as stack:
        output = None
        if rank > 0:
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
