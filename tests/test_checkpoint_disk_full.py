"""F6: disks that fill up while a run writes."""

import contextlib
import json
import os

import numpy as np
import pytest
import tool_runs

from tf_goyal import checkpoint, run_log
from tf_goyal.checkpoint_writer import CheckpointWriter
from tf_goyal.run_log import RunLog

small_disk = tool_runs.load("small_disk")
VARIABLES = {"model/w": np.arange(2**15, dtype=np.float64)}  # 256 KB
DISK = 2**20


@pytest.fixture
def disk(tmp_path):
    """A real disk of 1 MB.

    Only root may mount one. Elsewhere its tests are skipped, and those with a limit on
    the size of a file, which need nobody's leave, show the same.
    """
    where = tmp_path / "disk"
    where.mkdir()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(small_disk.mounted(where, DISK))
        except (PermissionError, FileNotFoundError) as error:
            # The limit on a file's size in the last test shows the same.
            pytest.skip(f"a disk of its own needs the right to mount: {error}")
        yield where


def test_f6_the_disk_is_full_for_a_while(disk):
    """F6: the last checkpoint stays, training goes on, the next save is tried."""
    failures = []
    writer = CheckpointWriter(
        str(disk),
        keep=2,
        keeps=lambda _: False,
        failed=lambda step, why: failures.append(step),
    )
    log = RunLog(str(disk), tensorboard=False)
    writer.save(1, VARIABLES, {})
    log.write("event", event="start")
    assert writer.wait() == ""
    rest = small_disk.fill(disk)
    os.truncate(rest, rest.stat().st_size - 2**17)  # half of it fits
    writer.save(2, VARIABLES, {})
    assert "No space left on device" in writer.wait()
    assert failures == [2]
    assert sorted(os.listdir(checkpoint.folder(disk))) == ["owner.json", "step-1"]
    assert checkpoint.load_latest(disk)[1]["step"] == 1
    small_disk.fill(disk)
    for step in range(100):
        log.write("train", step=step, text="x" * 100)
    rest.unlink()
    writer.save(3, VARIABLES, {})
    assert writer.wait() == ""
    log.close()
    assert checkpoint.steps(disk) == [1, 3]
    lines = run_log.read(disk)
    assert [line["step"] for line in lines[1:]] == list(range(100))


def test_f6_a_full_disk_is_told_once(disk, capsys):
    """F6: neither log.jsonl nor TensorBoard's events stop the run."""
    log = RunLog(str(disk))
    rest = small_disk.fill(disk)
    for step in range(300):
        log.write("eval", step=step, top1_error=1.0)
    assert capsys.readouterr().err.count("log.jsonl cannot be written") == 1
    rest.unlink()
    log.write("eval", step=300, top1_error=1.0)
    log.close()
    assert [line["step"] for line in run_log.read(disk)] == list(range(301))


def test_f6_a_file_may_grow_no_longer(tmp_path, python):
    """F6 where nothing can be mounted: the kernel's limit cuts the file off."""
    script = f"""if True:
        import json, resource
        import numpy as np
        from tf_goyal import checkpoint
        from tf_goyal.checkpoint_writer import CheckpointWriter
        told = []
        writer = CheckpointWriter(
            {str(tmp_path)!r}, keep=1, keeps=lambda _: False,
            failed=lambda *what: told.append(what))
        writer.save(1, {{"w": np.zeros(10)}}, {{}})
        assert writer.wait() == ""
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
        writer.save(2, {{"w": np.zeros(2**16)}}, {{}})
        why = writer.wait()
        writer.save(3, {{"w": np.ones(10)}}, {{}})
        print(json.dumps([told, why, writer.wait()]))
    """
    done = python("-c", script, seconds=180)
    assert done.returncode == 0, done.stderr
    told, why, then = json.loads(done.stdout)
    assert told == [[2, why]] and "File too large" in why
    assert then == ""
    assert sorted(os.listdir(checkpoint.folder(tmp_path))) == ["owner.json", "step-3"]
