"""Lines in place of a bar, with a clock of the test's own."""

import io
import os
import sys

import pytest

from tf_goyal import progress


class FakeBar:
    """As much of rich's bar as is used; it has a clock of its own."""

    def __init__(self, *_, **settings):
        assert settings["disable"]

    def add_task(self, *_, **__):
        return 0

    def start(self):
        pass

    stop = start

    def update(self, *_, **__):
        pass


@pytest.fixture
def clock(monkeypatch):
    """Sets the readings of the clock."""
    monkeypatch.setattr(progress, "Progress", FakeBar)

    def readings(*seconds):
        left = iter(seconds)
        monkeypatch.setattr(progress.time, "monotonic", lambda: next(left))

    return readings


def test_images_every_10_seconds_with_the_rate_and_the_time_left(clock, capsys):
    clock(100.0, 104.0, 120.0, 121.0, 140.0)
    with progress.ImageProgress("read", 4000, stream=sys.stderr) as shown:
        shown.add(32, 0)
        shown.add(968, 2)
        shown.add(500, 0)
        shown.add(500, 1)
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.splitlines() == [
        "read 1,000/4,000  50 images/s  2 broken  ETA 0:01:00",
        "read 2,000/4,000  50 images/s  3 broken  ETA 0:00:40",
    ]


def test_what_was_done_before_does_not_count_as_fast(clock, capsys):
    clock(0.0, 20.0)
    progress.ImageProgress("written", 400_000, 3000).add(1000, 0)
    out, errors = capsys.readouterr()
    assert errors == ""
    # (400,000 - 4,000) / 50 s
    assert out == "written 4,000/400,000  50 images/s  0 broken  ETA 2:12:00\n"


def test_the_first_step_of_training_says_nothing_of_the_others(clock, capsys):
    clock(0.0, 300.0, 305.0, 320.0)
    with progress.TrainingProgress(110, 50, 2.0, shows=True) as shown:
        shown.update(51, 0.93, "loss 9")  # compiles for 300 s
        shown.update(52, 0.95, "loss 8")
        shown.say("told")
        shown.update(61, 1.109, "loss 7")  # 10 steps in 20 s
    assert capsys.readouterr().out.splitlines() == [
        "step 52/110  epoch 0.95/2  loss 8  ETA 0:04:50",
        "told",
        "step 61/110  epoch 1.11/2  loss 7  ETA 0:01:38",
    ]


def test_other_ranks_show_nothing(clock, capsys):
    clock(0.0, 20.0, 40.0)
    with progress.TrainingProgress(10, 0, 1.0, shows=False) as shown:
        shown.update(1, 0.1, "")
        shown.update(2, 0.2, "")
        shown.say("told")
    assert capsys.readouterr() == ("", "")


def test_nobody_reads_what_is_said(clock, python, tmp_path):
    """F6's kind: stdout on a full disk, a pipe without a reader, or none at all."""
    script = """if True:
        import sys
        from tf_goyal import progress
        progress.LINE_SECONDS = -1
        with progress.TrainingProgress(10, 0, 1.0, shows=True) as shown:
            for step in range(1, 5):
                shown.update(step, 0.1, "x" * 3000)
            shown.say("y" * 30_000)
        progress.say("the last")
        sys.exit(7)
    """
    (tmp_path / "script.py").write_text(script)
    command = f"{sys.executable} {tmp_path}/script.py"
    for where in (
        f"{command} > /dev/full",
        f"{{ {command}; echo $? > {tmp_path}/code; }} | true; exit $(<{tmp_path}/code)",
        f"{command} >&-",
    ):
        bash = f"import os; os.execvp('bash', ['bash', '-c', {where!r}])"
        done = python("-c", bash, environment={"PYTHONPATH": "."}, seconds=60)
        assert (done.returncode, done.stderr) == (7, ""), where


def test_a_line_is_lost_and_the_next_one_is_not(tmp_path):
    """F6's kind: there is room again."""
    full, (kept, written) = os.open("/dev/full", os.O_WRONLY), os.pipe()
    descriptor = os.dup(full)
    with open(descriptor, "w") as stream, open(kept) as reads:
        progress.say("lost", stream)
        os.dup2(written, descriptor)
        progress.say("here", stream)
        assert reads.readline() == "here\n"
    os.close(full)
    os.close(written)


def test_a_bar_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    with progress.ImageProgress("read", 4000, stream=terminal) as shown:
        shown.add(1000, 7)
        shown.say("[told]")
    text = terminal.getvalue()
    assert "read 1,000/4,000" in text and "7 broken" in text and "[told]" in text
