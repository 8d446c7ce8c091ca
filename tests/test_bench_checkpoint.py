"""The checkpoint benchmark: a tiny run of it, and its summary by hand."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from tf_goyal import flags

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.fixture
def bench_checkpoint(monkeypatch, tmp_path):
    """The tool, which writes its result to `tmp_path`."""
    monkeypatch.syspath_prepend(str(TOOLS))
    machine = importlib.import_module("machine")
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    return importlib.import_module("bench_checkpoint")


def test_a_tiny_run_writes_every_number(
    bench_checkpoint, monkeypatch, tmp_path, capsys
):
    tiny = ["--model=resnet20", "--image_size=16", "--batch=8", "--rounds=2"]
    monkeypatch.setattr(sys, "argv", ["tools/bench_checkpoint.py", *tiny])
    with pytest.raises(SystemExit) as ended:
        flags.run(
            bench_checkpoint.main, define=bench_checkpoint.define, with_config=False
        )
    assert ended.value.code == 0, capsys.readouterr().err
    result = json.loads((tmp_path / "bench_checkpoint.json").read_text())
    assert result["model"] == "resnet20" and len(result["checkpoint"]["rounds"]) == 2
    # float32 parameters of the smallest network, and the momentum of each.
    assert result["checkpoint"]["checkpoint_bytes"] > 4 * 2 * 270_000
    summary = result["checkpoint"]["summary"]
    assert summary["step_seconds"] > 0 and summary["foreground_seconds"] > 0
    resume = result["resume"]
    assert resume["beside_compilation_seconds"] > 0
    assert resume["first_step_done_after_seconds"] == pytest.approx(
        resume["beside_compilation_seconds"] + resume["of_these_compilation_seconds"]
    )


def test_the_summary_compares_within_a_round(bench_checkpoint):
    """Rounds of 1 s and of 10 s a step; saves hold up 0.5 s and 1 s more."""
    fast = {
        "without": [1.0, 1.0, 5.0],
        "held_up": [0.5],
        "meanwhile": [1.25, 1.5],
        "foreground": [2.0],
        "tensorflow": [3.0],
    }
    slow = {
        "without": [10.0, 10.0, 10.0],
        "held_up": [1.0],
        "meanwhile": [11.0],
        "foreground": [4.0],
        "tensorflow": [5.0],
    }
    assert bench_checkpoint.summary([fast, slow]) == {
        "step_seconds": 5.5,
        "background_held_up_seconds": 0.75,
        "background_held_up_most_seconds": 1.0,
        "step_in_which_a_save_begins_seconds": (1.75 + 12.0) / 2,
        "steps_while_written": 1.5,
        "those_steps_slowed_down_seconds": (0.75 + 1.0) / 2,
        "foreground_seconds": 3.0,
        "tensorflow_seconds": 4.0,
    }
