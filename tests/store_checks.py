"""What a run writes, written to a store that lives in this process' memory (ram://).

python store_checks.py: for test_files.py, which cannot see another process' store.
"""

import errno
import json
import os
import sys
import time

import numpy as np
import tensorflow as tf

from tf_goyal import (
    checkpoint,
    files,
    flags,
    provenance,
    run_log,
    storage,
    train,
    trained,
)
from tf_goyal.checkpoint_writer import CheckpointWriter
from tf_goyal.run_log import RunLog

RUN = "ram://bucket/a/run"
VARIABLES = {"model/w": np.arange(6, dtype=np.float32).reshape(2, 3)}


def refused(error, call, *arguments):
    """What an exception says that must come."""
    try:
        call(*arguments)
    except error as raised:
        return str(raised)
    raise AssertionError(f"{call} was not refused")


def paths():
    root = files.path(RUN)
    assert str(root / "x" / "y") == f"{RUN}/x/y" and (root / "x").name == "x"
    assert str(files.path(RUN + "/")) == RUN and str(root.parent) == "ram://bucket/a"
    assert not root.exists() and not root.is_dir()
    root.mkdir(parents=True, exist_ok=True)
    root.mkdir(parents=True, exist_ok=True)
    assert root.is_dir()
    files.replace(root / "file", b"abc\n")
    files.replace(root / "file", b"de\n")
    assert (root / "file").read_text("utf-8") == "de\n"
    assert [str(path) for path in root.iterdir()] == [f"{RUN}/file"]
    with (root / "file").open("rb") as file:
        assert (file.seek(0, 2), file.tell()) == (3, 3)
        assert (file.seek(1), file.read()) == (1, b"e\n")
    with (root / "big").open("wb") as file:
        for _ in range(5):
            file.write(bytes(2**20 + 1))
        files.sync(file)
    assert len((root / "big").read_bytes()) == 5 * (2**20 + 1)
    (root / "big").unlink()
    (root / "file").unlink()
    refused(FileNotFoundError, (root / "file").read_bytes)
    refused(FileNotFoundError, (root / "none").iterdir)
    files.remove_tree(root)
    assert not root.exists()


def refusals():
    assert storage.trial_write(RUN).exists()
    assert list(files.path(RUN).iterdir()) == []
    assert storage.free_bytes(RUN) is None
    for where in ("foo://bucket/run", "s3://bucket/run"):
        told = refused(ValueError, storage.trial_write, where)
        assert f"for {where} failed in {where}" in told, told
        assert "not implemented" in told, told
    try:
        files.path("foo://x").exists()
    except OSError as error:
        assert error.errno == errno.EIO


def checkpoints():
    failures = []
    writer = CheckpointWriter(
        RUN,
        keep=2,
        keeps=lambda step: step == 1,
        failed=lambda *what: failures.append(what),
    )
    for step in (1, 2, 3, 4, 4):
        writer.save(step, VARIABLES, {"epoch": 0.5})
    assert writer.wait() == "" and not failures
    assert checkpoint.steps(RUN) == [1, 3, 4]
    arrays, told = checkpoint.load_latest(RUN)
    np.testing.assert_array_equal(arrays["model/w"], VARIABLES["model/w"])
    assert told["step"] == 4 and told["metadata"] == {"epoch": 0.5}
    newest = checkpoint.folder(RUN) / "step-4"
    assert {path.name for path in newest.iterdir()} == {
        "manifest.json",
        "variables.npz",
    }
    content = (newest / "variables.npz").read_bytes()
    files.replace(newest / "variables.npz", content[:-1])
    assert checkpoint.load_latest(RUN)[1]["step"] == 3
    (newest / "manifest.json").unlink()
    assert "not complete" in refused(ValueError, checkpoint.load, newest)
    writer.save(5, VARIABLES, {})
    assert writer.wait() == ""
    assert checkpoint.steps(RUN) == [1, 3, 4, 5]  # 4 is broken and counts for nothing
    CheckpointWriter(RUN, keep=1, keeps=bool, failed=print)
    writer.save(6, VARIABLES, {})
    assert "another run writes there now" in writer.wait()


def killed_saves():
    """F3: without its manifest, which comes last, there is no checkpoint."""
    run, order = "ram://bucket/killed", []
    checkpoint.save(run, 1, VARIABLES, {}, keep=1)
    move, unlink = files.move, files.StorePath.unlink

    class Killed(BaseException):
        pass

    def dies_before(number):
        def moves(source, target):
            order.append(target.name)
            if len(order) == number:
                raise Killed
            move(source, target)

        return moves

    for number in (1, 2):
        order.clear()
        files.move = dies_before(number)
        refused(Killed, lambda: checkpoint.save(run, 2, VARIABLES, {}, keep=1))
        assert checkpoint.load_latest(run)[1]["step"] == 1
    assert order == ["variables.npz", "manifest.json"]
    assert checkpoint.steps(run) == [1, 2]
    files.move = move
    half = checkpoint.folder(run) / ".step-2-abcd"
    half.mkdir(parents=True, exist_ok=True)
    files.replace(half / "variables.npz", b"half")
    checkpoint.save(run, 2, VARIABLES, {}, keep=1)
    assert checkpoint.load_latest(run)[1]["step"] == 2 and not half.exists()

    def told(path):
        order.append(str(path))
        unlink(path)

    order.clear()
    files.StorePath.unlink = told
    checkpoint.save(run, 3, VARIABLES, {}, keep=1)
    files.StorePath.unlink = unlink
    # Of step 2, and before the rest of it.
    assert order == [f"{checkpoint.folder(run)}/step-2/manifest.json"]
    assert checkpoint.steps(run) == [3]


def logs():
    log = RunLog(RUN)
    log.write("event", event="start")
    log.write("train", step=1, loss=1.5)
    assert len(run_log.read(RUN)) == 1  # the other line waits
    log.write("eval", step=1, top1_error=1.0)
    assert [line["kind"] for line in run_log.read(RUN)] == ["event", "train", "eval"]
    clock, run_log._PAUSE = run_log._PAUSE, 0.01
    time.sleep(0.02)
    log.write("train", step=2, loss=1.0)
    run_log._PAUSE = clock
    assert len(run_log.read(RUN)) == 4
    log.write("train", step=3, loss=1.0)
    log.close()
    assert len(run_log.read(RUN)) == 5
    path = files.path(RUN) / run_log.FILE_NAME
    files.replace(path, path.read_bytes() + b'{"kind": "tr')
    log = RunLog(RUN, tensorboard=False)
    log.write("event", event="resume")
    log.close()
    assert len(run_log.read(RUN)) == 6
    assert any("tfevents" in path.name for path in files.path(RUN).iterdir())


def descriptions():
    provenance.write(RUN, {"flags": 1})
    text = (files.path(RUN) / provenance.FILE_NAME).read_text("utf-8")
    assert json.loads(text) == {"flags": 1}
    told = refused(ValueError, trained.load, "ram://bucket/none")
    assert "which is no folder" in told and "ram://bucket/none/checkpoints" in told


def training():
    """A whole run: what was refused before, trained, logged and saved."""
    run = "ram://bucket/trained"
    settings = ["--dataset=digits", "--model=resnet20", f"--model_dir={run}"]
    settings += ["--global_batch=32", "--worker_batch=16", "--base_batch=16"]
    settings += ["--image_size=16", "--lr_boundaries=", "--steps=3"]
    os.environ.pop("TF_CONFIG", None)
    try:
        flags.run(train.main, ["train", *settings])
    except SystemExit as ended:
        assert ended.code == 0
    found = trained.load(run)
    assert found.step == 3
    assert found.settings.model_dir == run
    (evaluation,) = [line for line in run_log.read(run) if line["kind"] == "eval"]
    sha256 = checkpoint.weights_sha256(
        {name: a for name, a in found.arrays.items() if name.startswith("model/")}
    )
    assert evaluation["weights_sha256"] == sha256
    names = {path.name for path in files.path(run).iterdir()}
    assert {"config.json", "log.jsonl", "checkpoints"} <= names


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    checks = paths, refusals, checkpoints, killed_saves, logs, descriptions, training
    for check in checks:
        check()
        print(check.__name__, file=sys.stderr)
