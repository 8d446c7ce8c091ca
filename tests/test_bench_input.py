"""The input benchmark: a tiny run of it, and its medians by hand."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from tf_goyal import flags

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.fixture
def bench_input(monkeypatch, tmp_path):
    """The tool, which writes its result to `tmp_path`."""
    monkeypatch.syspath_prepend(str(TOOLS))
    machine = importlib.import_module("machine")
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    return importlib.import_module("bench_input")


def test_a_tiny_run_writes_every_number(bench_input, monkeypatch, tmp_path, capsys):
    written = [
        "tools/bench_input.py",
        "--rounds=2",
        "--steps=2",
        "--warm_steps=1",
        "--images=24",
        "--workers=2",
        "--worker_batch=2",
        "--image_size=16",
        "--records=2600",
        "--epochs=2",
        f"--rivals_python={sys.executable}",
    ]
    monkeypatch.setattr(sys, "argv", written)
    with pytest.raises(SystemExit) as ended:
        flags.run(bench_input.main, define=bench_input.define, with_config=False)
    assert ended.value.code == 0, capsys.readouterr().err
    result = json.loads((tmp_path / "bench_input.json").read_text())
    assert result["jpegs"]["mean_bytes"] > 50_000
    assert sys.executable not in result["machine"]["command"]
    ours = ["ours", "usual", "decode"]
    # What else is installed here takes part as well.
    contestants = {*ours, *result["rivals_versions"]}
    assert set(result["images_per_second"]) == contestants
    assert set(result["ours_is_times_as_fast_as"]) == contestants - {"ours"}
    assert min(result["images_per_second"].values()) > 0
    assert len(result["rounds_of_seconds_and_processor_seconds_per_image"]) == 2
    for index, shards in (("photographs", 8), ("small_records", 3)):
        assert result["index"][index]["shards"] == shards
        assert result["index"][index]["records_a_minute_from_page_cache"] > 0
    assert result["starts"]["records"] == 2600
    assert result["starts"]["first_batch_in_mid_epoch_seconds"] > 0
    assert len(result["memory_mb_after_epochs"]) == 2


def test_ratios_are_taken_within_a_round(bench_input):
    rounds = [
        {"ours": [0.001, 0.002], "usual": [0.002, 0.004], "grain": [0.003, None]},
        {"ours": [0.004, 0.002], "usual": [0.004, 0.006], "grain": [0.020, None]},
        {"ours": [0.002, 0.002], "usual": [0.006, 0.008], "grain": [0.008, None]},
    ]
    found = bench_input.summary(rounds, cores=2)
    assert found["images_per_second"] == {"ours": 500, "usual": 250, "grain": 125}
    assert found["images_per_second_and_core"]["usual"] == 125
    # 2, 1, 3 and 3, 5, 4.
    assert found["ours_is_times_as_fast_as"] == {"usual": 2, "grain": 4}
    # 2, 3, 4.
    assert found["ours_is_times_as_fast_as_by_processor_seconds"] == {"usual": 3}


def test_turns_go_there_and_back(bench_input):
    order = []

    def turn(name):
        return lambda: (order.append(name), (0.5, None))[1]

    rounds = bench_input.measure({name: turn(name) for name in "abc"}, 3)
    assert "".join(order) == "abc" + "cba" + "abc"
    assert rounds == [{name: [0.5, None] for name in "abc"}] * 3


def test_a_python_that_cannot_run_the_rivals_is_named(bench_input, tmp_path):
    input_contestants = importlib.import_module("input_contestants")
    batch = input_contestants.Batch(1, 2, 16)
    with pytest.raises(ValueError, match="--rivals_python must be a Python that runs"):
        input_contestants.Rivals("/bin/false", tmp_path, batch, 1, 1)
