"""The overlap benchmark: a tiny run of it, and its arithmetic."""

import json

import pytest
from tool_runs import load, run


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The tool, which writes its result to `tmp_path`."""
    monkeypatch.setattr(load("machine"), "RESULTS", tmp_path)
    return load("bench_overlap")


def test_a_tiny_run(bench, monkeypatch, tmp_path):
    """Two processes, the contestants of two reductions."""
    written = ["--model=resnet20", "--image_size=16", "--batch=1", "--rounds=1"]
    written += ["--steps=1", "--deadline=600", "--prefix=env NUMBER={number}"]
    written += ["--contestants=ours,tensorflow"]
    assert run(bench, monkeypatch, *written) == 0
    (entry,) = json.loads((tmp_path / "bench_overlap.json").read_text())["runs"]
    assert (entry["network"], entry["processes"]) == ("loopback", 2)
    names = ["compute", "ours", "tensorflow", "ours alone", "tensorflow alone"]
    assert list(entry["seconds"]) == names
    assert min(entry["seconds"].values()) > 0
    assert list(entry["over_larger"]) == ["ours", "tensorflow"]
    assert sum(b["bytes"] for b in entry["chosen"]["ours"]["buckets"]) > 4 * 270_000
    assert (tmp_path / "bench_overlap.png").stat().st_size > 10_000


def test_summary(bench):
    """By hand: compute 2 s, reduction 4 s (1 s in bfloat16)."""
    seconds = {
        "compute": 2.0,
        "ours": 5.0,
        "ours_bfloat16": 2.5,
        "barrier": 6.0,
        "ours alone": 4.0,
        "ours_bfloat16 alone": 1.0,
    }
    told = bench.summary([seconds])
    assert told["seconds"] == seconds
    names = ("ours", "ours_bfloat16", "barrier")
    assert told["over_larger"] == dict(zip(names, (1.25, 1.25, 1.5), strict=True))
    assert told["over_float32"] == dict(zip(names, (1.25, 0.625, 1.5), strict=True))
    assert told["hidden"] == dict(zip(names, (0.25, 0.5, 0.0), strict=True))
    # Ratios are of a round: the median of 1.25, 1.25 and 2.5.
    slow = {**seconds, "ours": 10.0}
    twice = {name: 2 * value for name, value in seconds.items()}
    assert bench.summary([seconds, slow, twice])["over_larger"]["ours"] == 1.25


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("--processes=1", "--processes must be at least 2, got 1"),
        ("--contestants=barrier", "--contestants must name ours, and be of ours, "),
        ("--contestants=ours,tree", "--contestants must name ours, and be of ours, "),
    ],
)
def test_refused(bench, monkeypatch, capsys, written, message):
    assert run(bench, monkeypatch, written) == 2
    assert message in capsys.readouterr().err
