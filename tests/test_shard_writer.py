"""tools/shard_writer.py: its processes and its files."""

import importlib
import signal
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS))
shard_writer = importlib.import_module("shard_writer")


def test_workers_leave_signals_to_the_process_that_started_them():
    """A terminal sends Ctrl-C to all of them, also while they start."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with shard_writer.workers(1) as pool:
        blocked = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result(60)
    assert {signal.SIGINT, signal.SIGTERM} <= blocked
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert not {signal.SIGINT, signal.SIGTERM} & before


def test_a_file_is_there_whole_or_as_it_was(tmp_path):
    path = tmp_path / "a"
    for content in (b"old", b"new"):
        with shard_writer.whole_file(path) as file:
            file.write(content)
            assert path.exists() == (content == b"new")
        assert path.read_bytes() == content
    with pytest.raises(OSError), shard_writer.whole_file(path) as file:
        file.write(b"torn")
        raise OSError("the disk is full")
    assert path.read_bytes() == b"new"
