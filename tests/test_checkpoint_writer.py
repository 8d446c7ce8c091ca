"""Checkpoints in the background."""

import errno
import os
import threading

import numpy as np
import pytest

from tf_goyal import arrays_file, checkpoint, checkpoint_writer, config
from tf_goyal.checkpoint_writer import CheckpointWriter
from tf_goyal.config import Config

SECONDS = 60  # more than anything here takes


def arrays(step):
    return {"model/w": np.full(4, step, np.float32)}


class Failures(list):
    """What the writer tells of."""

    def __call__(self, step, why):
        self.append((step, why))


@pytest.fixture
def failures():
    return Failures()


@pytest.fixture
def writer(tmp_path, failures):
    return CheckpointWriter(
        str(tmp_path), keep=2, keeps=lambda step: step % 4 == 0, failed=failures
    )


class Gate:
    """Holds `checkpoint.save` up until it is let through; counts what is inside."""

    def __init__(self, monkeypatch):
        self.reached, self.open = threading.Semaphore(0), threading.Semaphore(0)
        self.inside = self.most = 0
        real = checkpoint.save

        def save(*arguments, **settings):
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.reached.release()
            assert self.open.acquire(timeout=SECONDS)
            real(*arguments, **settings)
            self.inside -= 1

        monkeypatch.setattr(checkpoint, "save", save)


def test_training_goes_on_while_one_is_written(tmp_path, writer, monkeypatch):
    gate = Gate(monkeypatch)
    writer.save(1, arrays(1), {})
    assert gate.reached.acquire(timeout=SECONDS)  # being written, and we are here
    assert checkpoint.steps(tmp_path) == [] and writer.busy
    assert "of step 1 was not written within 0.01 s" in writer.wait(0.01)
    gate.open.release()
    assert writer.wait() == "" and not writer.busy
    assert checkpoint.load_latest(tmp_path)[1]["step"] == 1


def test_the_second_waits_for_the_first(tmp_path, writer, monkeypatch):
    """Bounded memory: one copy is being written, one waits."""
    gate = Gate(monkeypatch)
    writer.save(1, arrays(1), {})
    second = threading.Thread(target=writer.save, args=(2, arrays(2), {}))
    second.start()
    assert gate.reached.acquire(timeout=SECONDS)
    assert not gate.reached.acquire(timeout=0.2)  # the second has not begun
    assert second.is_alive()
    gate.open.release()
    second.join(SECONDS)
    gate.open.release()
    assert writer.wait() == ""
    assert gate.most == 1
    assert checkpoint.steps(tmp_path) == [1, 2]


def test_who_waits_long_says_for_what(writer, monkeypatch, capsys):
    monkeypatch.setattr(checkpoint_writer, "_SAY_SECONDS", 0.05)
    gate = Gate(monkeypatch)
    writer.save(7, arrays(7), {})
    opening = threading.Timer(0.5, gate.open.release)
    opening.start()
    assert writer.wait() == ""
    assert "waits for the checkpoint of step 7, since 0 s" in capsys.readouterr().err


def test_the_newest_and_those_for_good_are_kept(tmp_path, writer):
    for step in range(1, 12):
        writer.save(step, arrays(step), {})
    assert writer.wait() == ""
    assert checkpoint.steps(tmp_path) == [4, 8, 10, 11]
    for step in (4, 11):
        path = checkpoint.folder(tmp_path) / f"step-{step}"
        assert checkpoint.load(path)[0]["model/w"][0] == step


def test_f6_a_failed_write_is_told_and_the_next_one_tried(
    tmp_path, writer, failures, monkeypatch
):
    """F6: the disk fills up in the middle and is freed later."""
    writer.save(1, arrays(1), {})
    assert writer.wait() == ""
    with monkeypatch.context() as broken:

        def full(file, _):
            file.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        broken.setattr(arrays_file, "write", full)
        writer.save(2, arrays(2), {})
        why = writer.wait()
    assert "step 2 could not be written" in why and "No space left on device" in why
    assert str(tmp_path) in why and "\n" not in why
    assert failures == [(2, why)]
    assert checkpoint.steps(tmp_path) == [1]
    assert writer.wait() == why  # until another one is written
    writer.save(3, arrays(3), {})
    assert writer.wait() == ""
    assert checkpoint.steps(tmp_path) == [1, 3]
    assert len(failures) == 1


@pytest.mark.parametrize(
    ("keep_every", "refused"),
    [(0.0, False), (0.5, False), (2.5, False), (0.75, True), (0.25, True), (-1, True)],
)
def test_what_is_kept_for_good_must_have_been_saved(keep_every, refused):
    settings = Config(
        model_dir="run", dataset="digits", checkpoint_every=0.5, keep_every=keep_every
    )
    sizes = {"train_images": 10**6, "eval_images": 1, "classes": 2, "processes": 1}
    if refused:
        with pytest.raises(ValueError, match="--keep_every must be"):
            config.validate(settings, **sizes)
    else:
        config.validate(settings, **sizes)


def test_nothing_begun_is_nothing_failed(writer):
    assert writer.wait() == "" and not writer.busy


def test_a_forgotten_job_does_not_write_beside_the_one_that_follows_it(
    tmp_path, writer, failures
):
    """Nor does it remove what the other is writing."""
    writer.save(1, arrays(1), {})
    writer.wait()
    other = CheckpointWriter(
        str(tmp_path), keep=2, keeps=lambda _: False, failed=Failures()
    )
    half = checkpoint.folder(tmp_path) / ".step-3-abcd"
    half.mkdir()
    writer.save(2, arrays(2), {})
    assert "another run writes there now" in writer.wait()
    assert len(failures) == 1
    assert half.exists() and checkpoint.steps(tmp_path) == [1]
    other.save(2, arrays(2), {})
    assert other.wait() == ""
    assert checkpoint.steps(tmp_path) == [1, 2]


def test_the_process_ends_when_the_last_one_is_written(tmp_path, python):
    """A main function that forgets to wait loses nothing."""
    script = f"""if True:
        import time
        import numpy as np
        from tf_goyal import checkpoint
        from tf_goyal.checkpoint_writer import CheckpointWriter
        writer = CheckpointWriter({str(tmp_path)!r}, keep=1, keeps=bool, failed=print)
        save = checkpoint.save
        def slow(*arguments, **settings):
            time.sleep(0.5)
            save(*arguments, **settings)
        checkpoint.save = slow
        writer.save(3, {{"w": np.arange(10**6)}}, {{}})
        print("main is done", flush=True)
    """
    done = python("-c", script, seconds=SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "main is done\n"
    assert checkpoint.load_latest(tmp_path)[1]["step"] == 3
