"""Starts real processes of `train` on a small data set, for several test files."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pictures

from tf_goyal import datasets, run_log
from tf_goyal.launch import free_ports

DEADLINE = 600  # seconds; what is hung in a collective is killed then
ROOT = Path(__file__).resolve().parent.parent


def make_data(folder, train, validation, files=1, instead=None):
    """A `tfrecord` data set of the first digits, its training part in `files` files.

    Args:
      instead: (split, record) -> the bytes to store in place of the image.
    """
    folder.mkdir()
    digits = datasets.load("digits")
    for split, count, shards in (
        (digits.train, train, files),
        (digits.validation, validation, 1),
    ):
        images, labels = zip(*map(split.read, range(count)), strict=True)
        images = [
            (instead or {}).get((split.name, record), image)
            for record, image in enumerate(images)
        ]
        pictures.write_shards(folder, images, shards, split.name, labels)
    (folder / "labels.txt").write_text("\n".join(digits.labels) + "\n")
    return folder


def recipe(data, model_dir, **changes):
    """k = 4 workers of n = 8, exact, 10 steps; an evaluation every 3.75 steps."""
    flags = {
        "dataset": "tfrecord",
        "data_dir": data,
        "model_dir": model_dir,
        "model": "resnet20",
        "image_size": 16,
        "eval_resize": 16,
        "global_batch": 32,
        "worker_batch": 8,
        "base_batch": 16,
        "warmup_epochs": 0.5,
        "lr_boundaries": "1,2",
        "steps": 10,
        "reduction": "exact",
        "allreduce": "halving_doubling",
        "log_every": 1,
    }
    return [f"--{name}={value}" for name, value in {**flags, **changes}.items()]


@contextlib.contextmanager
def started(module, arguments, rank=0, ports=(0,), output=subprocess.PIPE):
    """One process; killed, children and all, when the test is done with it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_CONFIG", None)
    if len(ports) > 1:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        task = {"type": "worker", "index": rank}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def together(*ranks):
    """One process of train for each list of flags: the processes, and their ports."""
    ports = free_ports(len(ranks))
    with contextlib.ExitStack() as stack:
        yield (
            [
                stack.enter_context(started("tf_goyal.train", flags, rank, ports))
                for rank, flags in enumerate(ranks)
            ],
            ports,
        )


def wait_for(model_dir, text, process):
    """Returns when `text` is in the log of a run of which `process` is one."""
    log = Path(model_dir) / run_log.FILE_NAME
    deadline = time.monotonic() + DEADLINE
    while not (log.exists() and text in log.read_text()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)


def train(*ranks):
    """Trains with one process for each list of flags: [(exit code, output), …]."""
    with together(*ranks) as (processes, _):
        outputs = [process.communicate(timeout=DEADLINE)[0] for process in processes]
    return [(p.returncode, text) for p, text in zip(processes, outputs, strict=True)]


def final_hash(output):
    """weights_sha256 of a process' last line."""
    return output.strip().split("weights_sha256 ")[1][:64]


def evaluations(model_dir):
    lines = run_log.read(str(model_dir))
    return [line for line in lines if line["kind"] == "eval"]


def losses(model_dir):
    lines = run_log.read(str(model_dir))
    return {line["step"]: line["loss"] for line in lines if line["kind"] == "train"}
