"""The all-reduce benchmark: a tiny run of it, and what it makes of its flags."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from tf_goyal import flags

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The tool, which writes its result to `tmp_path`."""
    monkeypatch.syspath_prepend(str(TOOLS))
    machine = importlib.import_module("machine")
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    return importlib.import_module("bench_allreduce")


def run(bench, monkeypatch, *written):
    """The exit code of the tool."""
    monkeypatch.setattr(sys, "argv", ["tools/bench_allreduce.py", *written])
    with pytest.raises(SystemExit) as ended:
        flags.run(bench.main, define=bench.define, with_config=False)
    return ended.value.code


def test_a_tiny_run_is_kept_beside_an_older_one(bench, monkeypatch, tmp_path):
    older = {"network": "a", "processes": 2, "sizes": []}
    older["sizes"] = [{"elements": 8, "seconds": {"ring": 1.0}}]
    path = tmp_path / "bench_allreduce.json"
    path.write_text(json.dumps({"runs": [older]}))
    written = ["--processes=2", "--sizes=8,256", "--rounds=1", "--deadline=120"]
    written += ["--prefix=env NUMBER={number}", "--algorithms=ring,halving_doubling"]
    assert run(bench, monkeypatch, *written) == 0
    first, second = json.loads(path.read_text())["runs"]
    assert first == older
    assert (second["network"], second["processes"]) == ("loopback", 2)
    assert [size["elements"] for size in second["sizes"]] == [8, 256]
    for size in second["sizes"]:
        assert list(size["seconds"]) == ["ring", "halving_doubling"]
        assert min(size["seconds"].values()) > 0
    assert [m["bytes"] for m in second["messages"]] == [4, 4096, 2**18, 2**22]
    assert set(second["seconds_per_byte"]) == {"add", "copy"}
    assert (tmp_path / "bench_allreduce.png").stat().st_size > 10_000


def test_a_network_and_its_processes_are_replaced_by_a_new_run(bench):
    def entry(network, processes, sizes):
        return {"network": network, "processes": processes, "sizes": sizes}

    old = [entry("a", 2, 1), entry("b", 2, 2)]
    assert bench.merge(old, entry("a", 2, 3)) == [entry("a", 2, 3), old[1]]
    assert bench.merge(old, entry("a", 4, 3))[1] == entry("a", 4, 3)


def test_addresses(bench):
    """One pattern, a list, loopback."""
    assert bench.addresses("h{number}:1", 2) == ["h1:1", "h2:1"]
    assert bench.addresses("a:1,b:2,c:3", 2) == ["a:1", "b:2"]
    assert len(set(bench.addresses("", 3))) == 3


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (["--addresses=a:1"], "--addresses must name 2 addresses"),
        (["--algorithms=ring,tree"], "--algorithms must be of ring, "),
    ],
)
def test_refused(bench, monkeypatch, capsys, written, message):
    assert run(bench, monkeypatch, "--processes=2", *written) == 2
    assert message in capsys.readouterr().err
