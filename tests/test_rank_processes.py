"""A tool's ranks: where they are, and that none outlives it."""

import json
import os
import subprocess
import sys

import tool_runs

rank_processes = tool_runs.load("rank_processes")


def test_addresses():
    """One pattern, a list, loopback."""
    assert rank_processes.addresses("h{number}:1", 2) == ["h1:1", "h2:1"]
    assert rank_processes.addresses("a:1,b:2,c:3", 2) == ["a:1", "b:2"]
    assert len(set(rank_processes.addresses("", 3))) == 3


def test_a_rank_ends_with_the_tool():
    """It is told by stdin, and waits there for the end while it works."""
    script = "import rank_processes as ranks; ranks.report(ranks.begin())"
    rank = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tool_runs.TOOLS,
        env={**os.environ, "PYTHONPATH": str(tool_runs.TOOLS.parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        rank.stdin.write('{"rank": 3}\n')
        rank.stdin.flush()
        assert json.loads(rank.stdout.readline()) == {"rank": 3}
        assert rank.poll() is None
        rank.stdin.close()
        assert rank.wait(timeout=60) == 1
    finally:
        rank.kill()
