"""log.jsonl: written, killed, read."""

import json
import math
import sys

import pytest

from tf_goyal import run_log
from tf_goyal.run_log import RunLog


def test_lines_come_back_as_written(tmp_path):
    log = RunLog(str(tmp_path), tensorboard=False)
    log.write("event", event="start")
    log.write("train", step=10, loss=0.5, seconds={"input": 0.1})
    log.close()
    assert run_log.read(str(tmp_path)) == [
        {"kind": "event", "event": "start"},
        {"kind": "train", "step": 10, "loss": 0.5, "seconds": {"input": 0.1}},
    ]


def test_a_line_is_on_its_way_before_the_next_step(tmp_path):
    """A killed process loses nothing that it logged."""
    log = RunLog(str(tmp_path), tensorboard=False)
    log.write("train", step=1)
    assert run_log.read(str(tmp_path)) == [{"kind": "train", "step": 1}]
    log.close()


def test_a_half_written_line_is_passed_over_and_ended(tmp_path):
    path = tmp_path / run_log.FILE_NAME
    path.write_text('{"kind": "train", "step": 1}\n12\n{"a": 1}\n{"kind": "tra')
    log = RunLog(str(tmp_path), tensorboard=False)
    log.write("train", step=2)
    log.close()
    assert [line["step"] for line in run_log.read(str(tmp_path))] == [1, 2]


@pytest.mark.parametrize(
    "odd",
    [b"\xff\xfe", b'{"kind": [], "step": 1}', b"[" * 100_000, b'{"kind": "\xff"}'],
)
def test_what_is_no_line_of_ours_is_passed_over(tmp_path, odd):
    """F3's kind, of the log: bytes that are no text, and JSON of something else."""
    path = tmp_path / run_log.FILE_NAME
    good = b'{"kind": "train", "step": %d}\n'
    path.write_bytes(good % 1 + odd + b"\n" + good % 2)
    assert [line["step"] for line in run_log.read(str(tmp_path))] == [1, 2]


def test_a_full_disk_behind_stderr_stops_nothing(tmp_path, monkeypatch):
    """F6: the log says that it cannot be written, on the same disk."""
    log = RunLog(str(tmp_path), tensorboard=False)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with open("/dev/full", "w") as stream, monkeypatch.context() as patch:
        patch.setattr(log._file, "write", full)
        patch.setattr(sys, "stderr", stream)
        log.write("train", step=1)
    log.write("train", step=2)
    log.close()
    assert [line["step"] for line in run_log.read(str(tmp_path))] == [2]


def test_steps_that_ran_twice_count_as_they_ran_last(tmp_path):
    log = RunLog(str(tmp_path), tensorboard=False)
    for step, loss in ((1, 4.0), (2, 3.0), (3, 2.0), (2, 3.5), (3, 2.5)):
        log.write("train", step=step, loss=loss)
    log.close()
    assert [line["loss"] for line in run_log.read(str(tmp_path))] == [4.0, 3.5, 2.5]


def test_other_ranks_write_nothing(tmp_path):
    RunLog(str(tmp_path), writes=False).write("train", step=1)
    assert list(tmp_path.iterdir()) == []


def test_numbers_reach_tensorboard(tmp_path):
    import tensorflow as tf

    log = RunLog(str(tmp_path))
    log.write("eval", step=7, top1_error=12.5, weights_sha256="ab")
    log.write("train", step=8, seconds={"input": 0.25})
    log.close()
    (path,) = tmp_path.glob("events.out.tfevents.*")
    found = {
        value.tag: (event.step, float(tf.make_ndarray(value.tensor)))
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert found == {"eval/top1_error": (7, 12.5), "train/input": (8, 0.25)}


@pytest.mark.parametrize(
    ("errors", "median"),
    [([5.0], 5.0), ([9.0, 1.0, 3.0], 3.0), ([90.0, 80.0, 5.0, 1.0, 4.0, 2.0], 4.0)],
)
def test_reported_error_is_the_median_of_the_last_five(errors, median):
    """§5.1, protocol: the last of six is left out here but one, 80 of the first two."""
    lines = [{"kind": "eval", "step": i, "top1_error": e} for i, e in enumerate(errors)]
    assert run_log.reported_error(lines) == {
        "last": errors[-1],
        "median_of_last_5": median,
    }


def test_no_evaluation_is_no_error_of_0():
    reported = run_log.reported_error([{"kind": "train", "step": 1}])
    assert all(math.isnan(value) for value in reported.values())


def test_not_finite_numbers_are_null(tmp_path):
    log = RunLog(str(tmp_path), tensorboard=False)
    log.write("train", step=1, loss=math.nan)
    log.close()
    assert json.loads((tmp_path / "log.jsonl").read_text())["loss"] is None
