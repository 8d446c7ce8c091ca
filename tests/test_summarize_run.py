"""The summary of a run: what training found, and what an evaluator beside it found."""

import json

import pytest
import tool_runs

from tf_goyal import run_log

summarize_run = tool_runs.load("summarize_run")


def write(folder, *errors, train=False):
    """A log with an evaluation in every second step, its top-1 errors given."""
    folder.mkdir(parents=True, exist_ok=True)
    log = run_log.RunLog(str(folder), tensorboard=False)
    if train:
        log.write("train", step=8, epoch=4.0, images_per_second=1234.5)
    for step, error in zip(range(2, 20, 2), errors, strict=False):
        line = {"step": step, "images": 50, "top1_error": error}
        log.write("eval", **line, weights_sha256=f"{step:064}")
    log.close()


@pytest.fixture
def run(tmp_path):
    """A run of 8 steps that has not evaluated."""
    config = {"derived": {"total_steps": 8}, "flags": {"global_batch": 32}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write(tmp_path, train=True)
    return tmp_path


def test_training_comes_first(run):
    write(run, 9.0, 7.0, 8.0)
    found = dict(summarize_run.rows(run))
    assert found["top-1 error"] == (
        "8.00 % (median of the last 5 evaluations: 8.00 %), 50 images"
    )
    assert found["length"] == "4.00 epochs, 8 of 8 steps of 32 images"
    assert "evaluator" not in found
    write(run / "evaluator", 5.0, 6.0)
    again = dict(summarize_run.rows(run))
    assert again.pop("evaluator") == "2 checkpoints, the last of step 4: 6.00 %"
    assert again == found


def test_without_evaluations_of_training_the_evaluator_has_the_result(run):
    """S5 with --eval_every=0."""
    with pytest.raises(ValueError, match="holds no evaluation yet"):
        summarize_run.rows(run)
    write(run / "evaluator", 9.0, 7.0, 8.5)
    found = dict(summarize_run.rows(run))
    assert found["top-1 error"] == (
        "8.50 % (median of the last 5 evaluations: 8.50 %), 50 images"
    )
    assert found["evaluator"] == "3 checkpoints, the last of step 6: 8.50 %"
