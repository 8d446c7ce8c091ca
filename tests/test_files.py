"""Paths on a disk and in a store, and what a run writes to each."""

import os
from pathlib import Path

import pytest

from tf_goyal import checkpoint, files

STORE_CHECKS = Path(__file__).with_name("store_checks.py")


@pytest.mark.parametrize("text", ["gs://b/run", "s3://b/run", "ram://b", "hdfs://h/x"])
def test_a_scheme_makes_a_store(text):
    path = files.path(text)
    assert str(path) == text and not files.is_local(path)
    assert str(path / "a" / "b") == f"{text}/a/b"


@pytest.mark.parametrize("text", ["run", "/a/b", "a:b", "C:/x", ".", "gs:/b/run"])
def test_everything_else_is_a_disk(text):
    assert files.path(text) == Path(text)
    assert files.path(Path(text)) == Path(text) and files.is_local(files.path(text))


@pytest.mark.parametrize(
    ("error", "there"),
    [
        ("NotFoundError", False),
        ("PermissionDeniedError", None),
        ("UnavailableError", None),
    ],
)
def test_a_store_that_does_not_answer_is_no_empty_one(monkeypatch, error, there):
    """Else a run would begin anew beside its checkpoints."""
    import tensorflow as tf

    def stat(_):
        raise getattr(tf.errors, error)(None, None, "no answer")

    monkeypatch.setattr(tf.io.gfile, "stat", stat)
    if there is None:
        with pytest.raises(OSError, match="no answer"):
            files.path("gs://b/run").is_dir()
        with pytest.raises(ValueError, match="--model_dir .*gs://b/run .*: no answer"):
            checkpoint.steps("gs://b/run")
    else:
        assert files.path("gs://b/run").is_dir() == there
        assert checkpoint.steps("gs://b/run") == []


def test_a_file_is_replaced_in_one_go(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    files.replace(file, b"old")
    files.replace(file, b"new")
    assert file.read_bytes() == b"new"

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            files.replace(file, b"newer")
    assert file.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_run_in_a_store(python):
    """Checkpoints (F3), log, settings, trial write and a training, in ram://."""
    done = python(STORE_CHECKS, seconds=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "training" in done.stderr.split()


@pytest.mark.parametrize("module", ["files", "checkpoint_writer", "storage", "run_log"])
def test_a_disk_needs_no_tensorflow(module, python, tmp_path):
    script = (
        f"import sys, numpy; from tf_goyal import {module}, checkpoint, storage; "
        f"checkpoint.save({str(tmp_path)!r}, 1, {{'a': numpy.zeros(1)}}, {{}}, keep=1);"
        f"checkpoint.load_latest({str(tmp_path)!r}); storage.trial_write('x');"
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    assert python("-c", script, seconds=180).returncode == 0
