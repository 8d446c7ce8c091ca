"""A tool's ranks: where they are, and that none outlives it."""

import json
import os
import subprocess
import sys
import time
import types

import pytest
import tool_runs

rank_processes = tool_runs.load("rank_processes")


def test_addresses():
    """One pattern, a list, loopback."""
    assert rank_processes.addresses("h{number}:1", 2) == ["h1:1", "h2:1"]
    assert rank_processes.addresses("a:1,b:2,c:3", 2) == ["a:1", "b:2"]
    assert len(set(rank_processes.addresses("", 3))) == 3
    assert rank_processes.addresses("h{number:02d}:1", 1) == ["h01:1"]
    with pytest.raises(ValueError, match="the address of rank 1 are both"):
        rank_processes.addresses("a:1,a:1", 2)


# A rank without TensorFlow, in place of a tool.
RANK = """
import json, sys, time
told = json.loads(sys.stdin.readline())
print(f"rank {told['rank']} begins", flush=True)
print("{no result}", flush=True)
if told["rank"] == told.get("fails"):
    print("x" * 20_000 + "\\nwhat went wrong", file=sys.stderr)
    sys.exit(3)
if "fails" not in told and told["rank"] != told.get("sleeps"):
    print(json.dumps({"square": told["rank"] ** 2}), flush=True)
time.sleep(60)
"""


@pytest.fixture
def ranks(monkeypatch, tmp_path):
    """`run` of a tool that is RANK."""
    tool = tmp_path / "tool.py"
    tool.write_text(RANK)
    monkeypatch.setattr(sys, "argv", [str(tool)])

    def run(deadline=60, **settings):
        values = types.SimpleNamespace(deadline=deadline, addresses="", prefix="")
        monkeypatch.setattr(rank_processes.flags, "FLAGS", values)
        return rank_processes.run(3, settings)

    return run


def test_results_come_in_rank_order(ranks, capsys):
    assert ranks() == [{"square": 0}, {"square": 1}, {"square": 4}]
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed) == [
        *[f"rank {rank} begins" for rank in range(3)],
        *["{no result}"] * 3,
    ]


def test_a_rank_that_fails_is_shown_while_the_others_wait(ranks):
    """Not rank 0, and not at the deadline."""
    begun = time.monotonic()
    with pytest.raises(RuntimeError) as failed:
        ranks(fails=2)
    assert time.monotonic() - begun < 30
    first, *last = str(failed.value).splitlines()
    assert first == "rank 2 ended with exit code 3 and no result; it said last:"
    assert last[-1] == "what went wrong"
    assert len(str(failed.value)) < 9000


def test_the_deadline_is_named(ranks):
    with pytest.raises(RuntimeError, match=r"rank 1 had no result after --deadline=6 "):
        ranks(deadline=6, sleeps=1)


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
        assert rank.wait(timeout=180) == 1
    finally:
        rank.kill()
