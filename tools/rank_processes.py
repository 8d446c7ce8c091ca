"""A tool that starts itself once for each rank, here or on other machines.

Each rank runs behind --prefix where there is one ({host} there is the host of its
address and {number} is its rank + 1). It reads on stdin what it is told, which no
remote shell can spoil, and ends when its stdin does: nobody outlives the tool, whatever
happens to it.
"""

import contextlib
import json
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, BinaryIO

from absl import flags as absl_flags

from tf_goyal import flags, host_port, start
from tf_goyal.launch import free_ports

_LAST_LINES = 20  # of a failed rank's stderr
_LAST_BYTES = 8192


def define(values: absl_flags.FlagValues) -> None:
    """The flags that all such tools have."""
    absl_flags.DEFINE_integer(
        "deadline",
        900,
        "Seconds after which the processes are killed.",
        lower_bound=1,
        flag_values=values,
    )
    for name, default, text in (
        ("network", "loopback", "Name of the network in the result."),
        ("prefix", "", "Command that rank i is started with, see above."),
        ("addresses", "", "host:port of each rank, or one text with {number}."),
    ):
        absl_flags.DEFINE_string(name, default, text, flag_values=values)
    absl_flags.DEFINE_boolean(
        "started_rank", False, "Internal: this is a started rank.", flag_values=values
    )


def addresses(text: str, processes: int) -> list[str]:
    """host:port of each rank.

    Args:
      text: --addresses: empty for loopback, one address with {number}, or a list.
      processes: how many are needed.

    Raises:
      ValueError: there are fewer, one is no address, or two are the same.
    """
    if not text:
        return [f"127.0.0.1:{port}" for port in free_ports(processes)]
    if "{" in text:
        given = [
            _filled("addresses", text, number=rank + 1) for rank in range(processes)
        ]
    else:
        given = text.split(",")
    if len(given) < processes:
        raise ValueError(
            f"--addresses must name {processes} addresses for --processes, got "
            f"{len(given)}: name more, or lower --processes"
        )
    given = given[:processes]
    host_port.check(
        "--addresses",
        [(f"the address of rank {rank}", each) for rank, each in enumerate(given)],
    )
    return given


def _filled(flag: str, text: str, **places: Any) -> str:
    try:
        return text.format(**places)
    except (LookupError, ValueError, AttributeError, TypeError):
        allowed = " and ".join(f"{{{name}}}" for name in places)
        raise ValueError(
            f"--{flag} may hold {allowed} in braces and nothing else, got {text!r}: "
            "write a brace of its own twice"
        ) from None


def run(processes: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Starts this tool once for each rank; its lines but the results are printed.

    Args:
      processes: how many ranks.
      settings: JSON values that each is told, beside "rank" and "workers" (host:port
        of all).

    Returns:
      What each rank gave to `report`, in rank order.

    Raises:
      ValueError: --addresses or --prefix are such that no rank can start.
      RuntimeError: a rank ended without a result; with the last lines of its stderr.
    """
    values = flags.FLAGS
    workers = addresses(values.addresses, processes)
    children: list[subprocess.Popen] = []
    late = threading.Event()

    def kill_all():
        for child in children:
            child.kill()

    def end_all():
        late.set()
        kill_all()

    clock = threading.Timer(values.deadline, end_all)
    answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    results: dict[int, dict[str, Any]] = {}
    with contextlib.ExitStack() as files:
        errors = [files.enter_context(tempfile.TemporaryFile()) for _ in workers]
        clock.start()
        try:
            for rank in range(processes):
                told = {**settings, "workers": workers, "rank": rank}
                children.append(_start(told, values.prefix, errors[rank]))
                # All are read at once: the first to end is the one that failed.
                threading.Thread(
                    target=_read, args=(rank, children[rank], answers), daemon=True
                ).start()
            while len(results) < processes:
                rank, result = answers.get()
                if result is None:
                    children[rank].kill()
                    code = children[rank].wait()
                    reason = f"ended with exit code {code} and no result"
                    if late.is_set():
                        reason = f"had no result after --deadline={values.deadline} s"
                    said = _last_lines(errors[rank]) or "nothing"
                    raise RuntimeError(f"rank {rank} {reason}; it said last:\n{said}")
                results[rank] = result
            return [results[rank] for rank in range(processes)]
        finally:
            clock.cancel()
            kill_all()
            for child in children:
                child.wait()


def _start(told: dict[str, Any], prefix: str, errors: BinaryIO) -> subprocess.Popen:
    rank = told["rank"]
    place = {"host": told["workers"][rank].rpartition(":")[0], "number": rank + 1}
    try:
        parts = shlex.split(prefix)
    except ValueError as error:
        raise ValueError(
            f"--prefix must be a command as a shell takes it, got {prefix!r}: {error}"
        ) from error
    command = [_filled("prefix", part, **place) for part in parts]
    try:
        child = subprocess.Popen(
            [*command, sys.executable, os.path.abspath(sys.argv[0]), "--started_rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ValueError(
            f"--prefix must be a command that can be started here, got {prefix!r}: "
            f"{error}"
        ) from error
    with contextlib.suppress(BrokenPipeError):  # `_read` tells that it has ended
        child.stdin.write(json.dumps(told) + "\n")
        child.stdin.flush()
    return child


def _read(rank: int, child: subprocess.Popen, answers: queue.SimpleQueue) -> None:
    """Gives the rank's result to `answers`, or None when it ended without."""
    for line in child.stdout:
        if line.startswith("{"):
            with contextlib.suppress(ValueError):  # some line of a prefix
                answers.put((rank, json.loads(line)))
                return
        print(line, end="", flush=True)
    answers.put((rank, None))


def _last_lines(file: BinaryIO) -> str:
    # The rank's processes share the file's position: it stays where it is.
    size = os.fstat(file.fileno()).st_size
    last = os.pread(file.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
    lines = last.decode("utf-8", errors="replace").rstrip().splitlines()
    return "\n".join(lines[-_LAST_LINES:])


def begin() -> dict[str, Any]:
    """In a started rank: starts TensorFlow. Returns what the rank is told."""
    told = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_tool, daemon=True).start()
    start.tensorflow()
    import tensorflow as tf

    # It takes a function for each size or contestant for retracing.
    tf.get_logger().setLevel("ERROR")
    return told


def _end_with_tool() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def report(result: dict[str, Any]) -> None:
    """Gives a rank's result to the tool, and waits to be ended.

    A process that ends aborts its peers, so none may end before all are done.
    """
    print(json.dumps(result), flush=True)
    time.sleep(3600)
