"""A tool that starts itself once for each rank, here or on other machines.

Each rank runs behind --prefix where there is one ({host} there is the host of its
address and {number} is its rank + 1). It reads on stdin what it is told, which no
remote shell can spoil, and ends when its stdin does: nobody outlives the tool, whatever
happens to it.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from typing import Any

from absl import flags as absl_flags

from tf_goyal import flags, start
from tf_goyal.launch import free_ports


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
      ValueError: there are fewer.
    """
    if not text:
        return [f"127.0.0.1:{port}" for port in free_ports(processes)]
    if "{number}" in text:
        return [text.format(number=rank + 1) for rank in range(processes)]
    given = text.split(",")
    if len(given) < processes:
        raise ValueError(
            f"--addresses must name {processes} addresses for --processes, got "
            f"{len(given)}: name more, or lower --processes"
        )
    return given[:processes]


def run(processes: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Starts this tool once for each rank; its lines but the results are printed.

    Args:
      processes: how many ranks.
      settings: JSON values that each is told, beside "rank" and "workers" (host:port
        of all).

    Returns:
      What each rank gave to `report`, in rank order.

    Raises:
      RuntimeError: a rank ended without a result.
    """
    values = flags.FLAGS
    children: list[subprocess.Popen] = []

    def kill_all():
        for child in children:
            child.kill()

    clock = threading.Timer(values.deadline, kill_all)
    clock.start()
    try:
        workers = addresses(values.addresses, processes)
        for rank in range(processes):
            told = {**settings, "workers": workers, "rank": rank}
            children.append(_start(told, values.prefix))
        return [_result(rank, child) for rank, child in enumerate(children)]
    finally:
        clock.cancel()
        kill_all()
        for child in children:
            child.wait()


def _start(told: dict[str, Any], prefix: str) -> subprocess.Popen:
    rank = told["rank"]
    place = {"host": told["workers"][rank].rpartition(":")[0], "number": rank + 1}
    child = subprocess.Popen(
        [
            *[part.format(**place) for part in shlex.split(prefix)],
            *[sys.executable, os.path.abspath(sys.argv[0]), "--started_rank"],
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if rank == 0 else subprocess.DEVNULL,
        text=True,
    )
    with contextlib.suppress(BrokenPipeError):  # `_result` tells that it has ended
        child.stdin.write(json.dumps(told) + "\n")
        child.stdin.flush()
    return child


def _result(rank: int, child: subprocess.Popen) -> dict[str, Any]:
    for line in child.stdout:
        if line.startswith("{"):
            return json.loads(line)
        print(line, end="", flush=True)
    raise RuntimeError(
        f"rank {rank} ended without a result: rank 0's message stands above, or "
        "--deadline passed"
    )


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
