"""The end of a run, which processes do not reach together."""

import contextlib
import time

import pytest
from training import DEADLINE, final_hash, recipe, started

from tf_goyal.launch import free_ports

# `train`, but for its last act: it waits for a file, as for a slow disk or an export.
BUSY = """
import runpy, sys, time
from pathlib import Path
from tf_goyal.run_log import RunLog

go, close = Path(sys.argv.pop(1)), RunLog.close

def slow(log):
    print("is busy", flush=True)
    while not go.exists():
        time.sleep(0.1)
    close(log)

RunLog.close = slow
runpy.run_module("tf_goyal.train", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("busy", [0, 1])
def test_f8_one_is_busy_while_the_other_is_done(data, tmp_path, monkeypatch, busy):
    """F8: all exit 0, also long after TensorFlow's heartbeats would miss the other."""
    flags = recipe(data, tmp_path / "run", steps=2)
    go, ports = tmp_path / "go", free_ports(2)
    (tmp_path / "busy.py").write_text(BUSY)
    monkeypatch.chdir(tmp_path)  # where "python -m" looks first
    with contextlib.ExitStack() as stack:
        done = stack.enter_context(started("tf_goyal.train", flags, 1 - busy, ports))
        slow = stack.enter_context(started("busy", [go, *flags], busy, ports))
        output, _ = done.communicate(timeout=DEADLINE)
        time.sleep(15)
        still_there = slow.poll() is None
        go.touch()
        slow_output, _ = slow.communicate(timeout=DEADLINE)
    assert (done.returncode, slow.returncode) == (0, 0), output + slow_output
    assert still_there and "is busy" in slow_output
    assert "lost" not in output + slow_output
    assert final_hash(output) == final_hash(slow_output)
