"""A preparation that is stopped, killed, raced or done already, and taken up again."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from preparation import (
    DEADLINE,
    TOOLS,
    TRAIN,
    VALIDATION,
    add,
    contents,
    finish_within,
    prepare,
    prepare_imagenet,
    refused,
)

from tf_goyal import records

pytest_plugins = ["preparation_fixtures"]


def test_a_finished_folder_is_left_alone_and_other_options_are_refused(
    like, prepared, capsys
):
    before = contents(prepared)
    any_ = "--noexpect_imagenet"
    gone = ["--train_archive=gone.tar", "--validation_archive=gone.tar", any_]
    assert prepare(f"--data_dir={prepared}", *gone) == 0
    output = capsys.readouterr().out
    assert "is finished" in output
    for split in ("train", "validation"):
        assert f"the {split} images were not looked at: gone.tar is not" in output
    assert prepare(f"--data_dir={prepared}", any_) == 0
    assert "not looked at: they are not named" in capsys.readouterr().out
    only = [like.flags[1], "--train_archive=gone.tar", any_]
    assert prepare(f"--data_dir={prepared}", *only) == 0
    assert "validation images were not looked at: the train" in capsys.readouterr().out
    assert prepare(f"--data_dir={prepared}", *like.flags) == 0
    assert "not looked at" not in capsys.readouterr().out
    for flag, was in (("--train_shards=8", 7), ("--quality=80", 0)):
        name, value = flag.split("=")
        error = refused(capsys, f"--data_dir={prepared}", flag, *like.flags)
        assert f"{name}={was}" in error and f"{name}={value}" in error
    assert contents(prepared) == before


def test_a_finished_folder_is_compared_with_the_images_that_are_named(
    like, prepared, tmp_path, capsys
):
    before = contents(prepared)
    error = refused(capsys, f"--data_dir={prepared}", *like.flags, "--expect_imagenet")
    assert f"but found 3, {TRAIN} and {VALIDATION}: " in error  # with those left out
    fewer = tmp_path / "fewer.tar"
    with tarfile.open(fewer, "w") as archive:
        for name in list(like.images)[1:]:
            add(archive, name, like.images[name])
    given = [*like.flags, f"--train_archive={fewer}"]
    error = refused(capsys, f"--data_dir={prepared}", *given)
    assert "the train images' checksum" in error
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"{one}\n" for one in reversed(like.synsets)))
    given = [*like.flags, f"--validation_labels={labels}"]
    error = refused(capsys, f"--data_dir={prepared}", *given)
    assert "the validation images' checksum" in error
    given = [f"--train_dir={like.train}", "--noexpect_imagenet"]
    assert "with --train_archive" in refused(capsys, f"--data_dir={prepared}", *given)
    assert contents(prepared) == before


def test_a_finished_folder_may_be_read_only(like, prepared, capsys, monkeypatch):
    # Linux says so before it looks for the file; root would not mind permissions.
    def unlink(path, missing_ok=False):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", unlink)
    assert prepare(f"--data_dir={prepared}", "--noexpect_imagenet") == 0
    assert "is finished" in capsys.readouterr().out


def started(folder, like, *arguments):
    """The tool as a process of its own that has written some shards, and not all."""
    slow = ["--train_shards=70", "--quality=50", *arguments]
    process = subprocess.Popen(
        [
            sys.executable,
            str(TOOLS / "prepare_imagenet.py"),
            f"--data_dir={folder}",
            *like.flags,
            *slow,
        ],
        cwd=TOOLS.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    journal = folder / "preparation.jsonl"
    end = time.monotonic() + DEADLINE
    while not journal.exists() or journal.read_bytes().count(b"\n") < 5:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    return process


def ended(process):
    """What it wrote and its exit code; with all that it started, it is gone."""
    try:
        output, errors = process.communicate(timeout=DEADLINE)  # workers hold the pipes
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return output, errors, process.returncode


def test_killed_in_the_middle_it_goes_on_to_the_same_files(like, tmp_path, capsys):
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    process = started(folder, like)
    process.kill()
    assert ended(process)[2] == -signal.SIGKILL
    assert not (folder / "manifest.json").exists()
    journal = folder / "preparation.jsonl"
    done = [json.loads(line)["file"] for line in journal.read_text().splitlines()[1:]]
    times = {name: (folder / name).stat().st_mtime_ns for name in done[1:]}
    (folder / done[0]).unlink()  # lost after all
    with open(journal, "a") as file:
        file.write('{"file": "train-0')  # the kill was in the middle of a line
    arguments = ["--train_shards=70", "--quality=50", *like.flags]

    error = refused(capsys, f"--data_dir={folder}", *arguments, "--quality=60")
    assert "--quality=50" in error and "--quality=60" in error
    other = tmp_path / "other.tar"  # one image has a byte more
    with tarfile.open(other, "w") as archive:
        for number, (name, data) in enumerate(like.images.items()):
            add(archive, name, data + bytes(number == 0))
    given = [*arguments, f"--train_archive={other}"]
    error = refused(capsys, f"--data_dir={folder}", *given)
    assert "the train images' checksum" in error
    assert not (folder / "manifest.json").exists()

    assert prepare(f"--data_dir={folder}", *arguments) == 0
    assert "going on" in capsys.readouterr().out
    assert prepare(f"--data_dir={whole}", *arguments) == 0
    assert contents(folder) == contents(whole)
    for name, written in times.items():  # kept, not written again
        assert (folder / name).stat().st_mtime_ns == written


@pytest.mark.parametrize(
    "name",
    ["preflight", "Journal"],  # a moment before each of them
)
def test_a_folder_that_another_process_finishes_meanwhile_is_left_alone(
    like, prepared, tmp_path, capsys, monkeypatch, name
):
    for flag, code in (("--quality=50", 2), ("--train_shards=7", 0)):
        folder = tmp_path / f"{name}{code}"
        folder.mkdir()
        (folder / "preparation.jsonl").touch()  # the other one is at it

        def finish(folder=folder):
            for one, data in contents(prepared).items():
                (folder / one).write_bytes(data)
            (folder / "preparation.jsonl").unlink()

        with monkeypatch.context() as patch:
            finish_within(patch, prepare_imagenet, name, finish)
            arguments = [f"--data_dir={folder}", "--train_shards=7", *like.flags, flag]
            assert prepare(*arguments) == code
        output, errors = capsys.readouterr()
        if code:
            assert "--quality=0" in errors and "--quality=50" in errors
        else:
            assert "is finished" in output
        assert contents(folder) == contents(prepared)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop_it_leaves_whole_shards_only(like, tmp_path, number, code):
    process = started(tmp_path / "data", like)
    os.killpg(process.pid, number)  # as a terminal does: to the workers too
    output, errors, returned = ended(process)
    assert returned == code, output + errors
    assert "Traceback" not in errors
    shards = [path for path in (tmp_path / "data").iterdir() if "-of-" in path.name]
    assert 4 <= len(shards) < 71
    for shard in shards:
        assert not shard.name.startswith(".")
        records.Reader(records.index_files([str(shard)]), verify=True).read(0)


def test_two_at_once_are_refused(like, tmp_path, capsys):
    folder = tmp_path / "data"
    process = started(folder, like)
    process.send_signal(signal.SIGSTOP)
    try:
        same = ["--train_shards=70", "--quality=50", *like.flags]
        assert "another is at it" in refused(capsys, f"--data_dir={folder}", *same)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        ended(process)


def test_on_a_full_disk_it_says_so_and_goes_on_later(like, tmp_path):
    arguments = [f"--data_dir={tmp_path}/data", "--train_shards=2", *like.flags]
    tool = [sys.executable, str(TOOLS / "prepare_imagenet.py"), *arguments]
    limit = (300_000, 300_000)  # bytes of a file: less than a shard has
    full = subprocess.run(
        tool,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert full.returncode == 2 and full.stderr.count("\n") == 1
    assert "File too large" in full.stderr and "same command" in full.stderr
    assert [path.name for path in (tmp_path / "data").iterdir()] == [
        "preparation.jsonl"
    ]
    assert prepare(*arguments) == 0
