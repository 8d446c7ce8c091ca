"""The all-reduce benchmark: a tiny run of it, and what it makes of its flags."""

import json

import pytest
from tool_runs import load, run


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The tool, which writes its result to `tmp_path`."""
    monkeypatch.setattr(load("machine"), "RESULTS", tmp_path)
    return load("bench_allreduce")


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
