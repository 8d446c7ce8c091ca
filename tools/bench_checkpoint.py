"""How long a checkpoint holds training up, and how soon a run resumes.

python tools/bench_checkpoint.py [--model=resnet50 --rounds=5 --batch=8]

In each round these follow one another in one process, so that whatever else the
machine does hits all of them:

  without     some steps
  background  a checkpoint as training writes it: the copy, the steps meanwhile
  foreground  the same checkpoint written before training goes on
  tensorflow  `tf.train.Checkpoint(model, optimizer).save`, the usual way

Then `tf_goyal.train` trains two steps in a process of its own and, in another, goes on
from there: seconds from the start of the process to the end of its first step, and what
of them was compilation. Writes tools/results/bench_checkpoint.json.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
import one_device_step
from absl import flags as absl_flags
from one_device_step import CLASSES

from tf_goyal import flags, run_log, start
from tf_goyal.config import MODELS, Config

STEPS_WITHOUT = 3  # in a round
DEADLINE = 240.0  # seconds, for each training in a process of its own


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    for name, default, text in (
        ("rounds", 5, "Rounds of all four."),
        ("batch", 8, "Images per step."),
        ("image_size", 224, "Height and width of the images, pixels."),
    ):
        absl_flags.DEFINE_integer(
            name, default, text, lower_bound=1, flag_values=values
        )
    absl_flags.DEFINE_enum(
        "model", "resnet50", MODELS, "The network.", flag_values=values
    )


def objects(config: Config) -> tuple[Callable[[], float], Any, Any]:
    """The step that `tf_goyal.train` runs, on one device; model and optimizer."""
    import tensorflow as tf

    train_step, model, optimizer = one_device_step.make(config)
    generator = np.random.default_rng(0)
    size = config.image_size
    shape = (1, config.worker_batch, size, size, 3)  # [m, n, H, W, 3] uint8
    images = tf.constant(generator.integers(0, 256, shape, np.uint8))
    labels = tf.constant(generator.integers(0, CLASSES, shape[:2], np.int32))
    signals = tf.zeros([2])
    return lambda: float(train_step(images, labels, signals).loss), model, optimizer


def seconds(call: Callable[[], Any]) -> float:
    """That a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(config: Config, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of steps and of saves, see the head of this file."""
    import tensorflow as tf

    from tf_goyal import checkpoint
    from tf_goyal.checkpoint_writer import CheckpointWriter

    step, model, optimizer = objects(config)

    def state():
        return {
            **checkpoint.arrays_of("model", model.variables),
            **checkpoint.arrays_of("optimizer", optimizer.variables),
        }

    failures = []
    writer = CheckpointWriter(
        str(folder / "background"),
        keep=1,
        keeps=lambda _: False,
        failed=lambda *what: failures.append(what),
    )
    front, theirs = folder / "foreground", folder / "tensorflow"
    usual = tf.train.Checkpoint(model=model, optimizer=optimizer)
    compilation = seconds(step) - seconds(step)
    found = []
    for number in range(1, rounds + 1):
        times = {"without": [seconds(step) for _ in range(STEPS_WITHOUT)]}
        # What the training loop does, and the steps until the file is on the disk.
        times["held_up"] = [seconds(lambda n=number: writer.save(n, state(), {}))]
        times["meanwhile"] = [seconds(step)]
        while writer.wait(0.0) and not failures:
            times["meanwhile"].append(seconds(step))
        if failures:
            raise RuntimeError(f"a checkpoint was not written: {failures}")
        times["foreground"] = [
            seconds(lambda n=number: checkpoint.save(front, n, state(), {}, keep=1))
        ]
        times["tensorflow"] = [seconds(lambda: usual.save(str(theirs / "saved")))]
        shutil.rmtree(theirs)
        found.append(times)
        line = ", ".join(f"{n} {statistics.median(t):.3f}" for n, t in times.items())
        print(f"round {number}, seconds: {line}", flush=True)
    loading = seconds(lambda: checkpoint.load_latest(str(folder / "background")))
    return {
        "checkpoint_bytes": sum(array.nbytes for array in state().values()),
        "first_step_compiles_seconds": compilation,
        "loading_seconds": loading,
        "rounds": found,
        "summary": summary(found),
    }


def summary(rounds: list[dict[str, list[float]]]) -> dict[str, float]:
    """Medians over the rounds; what a step costs more is taken within a round first."""
    without = [statistics.median(times["without"]) for times in rounds]
    began = [times["held_up"][0] + times["meanwhile"][0] for times in rounds]
    slower = [
        sum(times["meanwhile"]) - len(times["meanwhile"]) * step
        for times, step in zip(rounds, without, strict=True)
    ]
    held_up = [times["held_up"][0] for times in rounds]
    return {
        "step_seconds": statistics.median(without),
        "background_held_up_seconds": statistics.median(held_up),
        "background_held_up_most_seconds": max(held_up),
        "step_in_which_a_save_begins_seconds": statistics.median(began),
        "steps_while_written": statistics.median(len(r["meanwhile"]) for r in rounds),
        "those_steps_slowed_down_seconds": statistics.median(slower),
        "foreground_seconds": statistics.median(r["foreground"][0] for r in rounds),
        "tensorflow_seconds": statistics.median(r["tensorflow"][0] for r in rounds),
    }


def resumed(config: Config, folder: Path) -> dict[str, float]:
    """Seconds from the start of a process that resumes to the end of its first step.

    Raises:
      RuntimeError: the training failed.
    """
    model_dir, batch = folder / "run", config.global_batch
    command = [
        *(sys.executable, "-m", "tf_goyal.train", "--dataset=digits"),
        *(f"--model={config.model}", f"--image_size={config.image_size}"),
        *(f"--global_batch={batch}", f"--worker_batch={batch}"),
        *(f"--base_batch={batch}", "--lr_boundaries=", "--log_every=1"),
        *("--eval_every=0", f"--model_dir={model_dir}"),
    ]
    _train([*command, "--steps=2"], model_dir, 2)
    until = _train([*command, "--steps=4"], model_dir, 3)
    lines = run_log.read(str(model_dir))
    computing = {
        line["step"]: line["seconds"]["compute"]
        for line in lines
        if line["kind"] == "train"
    }
    compilation = computing[3] - computing[4]
    return {
        "first_step_done_after_seconds": until,
        "of_these_compilation_seconds": compilation,
        "beside_compilation_seconds": until - compilation,
    }


def _train(command: list[str], model_dir: Path, step: int) -> float:
    """Trains to the end. Returns the seconds until `step` was in the log."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    environment.pop("TF_CONFIG", None)
    started, until = time.perf_counter(), None
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    log = model_dir / run_log.FILE_NAME
    try:
        while process.poll() is None and time.perf_counter() - started < DEADLINE:
            if until is None and log.exists() and _has(str(model_dir), step):
                until = time.perf_counter() - started
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    if process.returncode or until is None:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return until


def _has(model_dir: str, step: int) -> bool:
    """Whether the log has a line of that step."""
    return any(
        line["kind"] == "train" and line["step"] == step
        for line in run_log.read(model_dir)
    )


def main(_: list[str]) -> int:
    """Measures and writes the result. Returns the exit code."""
    values = flags.FLAGS
    config = Config(
        model=values.model,
        image_size=values.image_size,
        global_batch=values.batch,
        worker_batch=values.batch,
    )
    start.tensorflow()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        result = {
            "model": config.model,
            "batch": config.global_batch,
            "image_size": config.image_size,
            "checkpoint": measure(config, values.rounds, folder),
            "resume": resumed(config, folder),
        }
    print(json.dumps([result["checkpoint"]["summary"], result["resume"]], indent=1))
    print(machine.write("bench_checkpoint", result))
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
