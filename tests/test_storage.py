"""The trial write, and the commands that it stops."""

import errno
import json
import os
from pathlib import Path

import pytest
import training

from tf_goyal import doctor, flags, launch, start, storage, train

pytestmark = pytest.mark.usefixtures("no_signals")


def test_trial_write_leaves_nothing(tmp_path):
    missing = tmp_path / "a" / "b"
    assert storage.trial_write(missing) == tmp_path
    assert storage.trial_write(tmp_path) == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_relative_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert storage.trial_write(Path("a/b")) == tmp_path
    assert storage.free_bytes(Path("a/b")) > 0


def test_f6_what_cannot_be_written(tmp_path, monkeypatch):
    """F6: a file in the way, a link to nowhere, a read-only and a full disk."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path / "nowhere")
    for folder, why in (
        (file, f"failed in {file}: Not a directory"),
        (file / "run", f"failed in {file}/run: Not a directory"),
        (link, f"failed in {link}: No such file or directory"),
        (tmp_path / ("a" * 256), "File name too long"),
        (Path("/proc/no/run"), "for /proc/no/run failed in /proc: "),
    ):
        with pytest.raises(ValueError) as caught:
            storage.trial_write(folder)
        assert why in str(caught.value)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match="No space left on device"):
        storage.trial_write(tmp_path / "run")
    assert sorted(tmp_path.iterdir()) == [file, link]


@pytest.mark.parametrize("name", ["checkpoints", "log.jsonl", "config.json"])
def test_f6_what_is_in_the_way_of_a_runs_files(tmp_path, name):
    """A file for a folder, or a folder for a file; what a run left behind is none."""
    for each in ("log.jsonl", "config.json"):
        (tmp_path / each).touch()
    (tmp_path / "checkpoints").mkdir()
    assert storage.trial_write(tmp_path) == tmp_path
    path = tmp_path / name
    if name == "checkpoints":
        path.rmdir()
        path.touch()
    else:
        path.unlink()
        path.mkdir()
    kind = "a folder" if name == "checkpoints" else "a file"
    with pytest.raises(ValueError, match=f"but {path} is not {kind} that can be"):
        storage.trial_write(tmp_path)


@pytest.fixture
def digits(tmp_path, monkeypatch) -> list[str]:
    """The flags of a run of which any start of TensorFlow or of a process is wrong.

    Its folder is below a file: root may write everywhere, but not there.
    """

    def started(*_):
        raise AssertionError("the run was started")

    monkeypatch.setattr(start, "tensorflow", started)
    monkeypatch.setattr(launch, "run_once", started)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    (tmp_path / "file").touch()
    return ["--recipe=digits", f"--model_dir={tmp_path / 'file' / 'run'}"]


COMMANDS = [(train, []), (doctor, []), (launch, ["--processes=2", "--"])]


def refusal(command, arguments, capsys):
    """The one line with which a command exits with 2."""
    with pytest.raises(SystemExit) as caught:
        flags.run(
            command.main,
            [command.__name__, *arguments],
            define=getattr(command, "define", None),
            with_config=command is not launch,
            arguments="-- FLAGS" if command is launch else "",
        )
    assert caught.value.code == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(("command", "before"), COMMANDS)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_f6_checkpoints_that_cannot_be_looked_at_are_no_empty_folder(
    command, before, number, digits, tmp_path, monkeypatch, capsys
):
    """F6's kind: another's folder, or storage that does not answer."""
    checkpoints = tmp_path / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    listed = Path.iterdir

    def iterdir(path):
        if path == checkpoints:
            raise OSError(number, os.strerror(number), str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    arguments = [*before, digits[0], f"--model_dir={tmp_path / 'run'}"]
    error = refusal(command, arguments, capsys)
    assert "--model_dir must be a folder that can be read" in error
    assert f"{checkpoints} cannot be: {os.strerror(number)}" in error


@pytest.mark.parametrize(("command", "before"), COMMANDS)
def test_f6_commands_refuse_it_before_tensorflow_starts(
    command, before, digits, tmp_path, capsys
):
    """F6: exit 2, one sentence, and nothing is left behind."""
    error = refusal(command, [*before, *digits], capsys)
    assert "--model_dir must be a folder that can be written" in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_only_rank_0_tries(digits, monkeypatch):
    task = {"type": "worker", "index": 1}
    description = {"cluster": {"worker": ["a:1", "b:1"]}, "task": task}
    monkeypatch.setenv("TF_CONFIG", json.dumps(description))
    with pytest.raises(AssertionError, match="the run was started"):
        flags.run(doctor.main, ["doctor", *digits], define=doctor.define)


def test_f6_all_ranks_are_told(tmp_path):
    """F6: rank 0 tries, nobody starts, each says why."""
    (tmp_path / "file").touch()
    run = ["--recipe=digits", f"--model_dir={tmp_path / 'file' / 'run'}"]
    for code, output in training.train(run, run):
        assert code == 2
        assert "a trial write" in output and "Not a directory" in output
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_tensorflow(python):
    check = (
        "import sys; from tf_goyal import storage; "
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    assert python("-c", check, seconds=180.0).returncode == 0
