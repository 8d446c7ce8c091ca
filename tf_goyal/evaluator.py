"""Evaluates a run's checkpoints as they come, beside the training.

An evaluator joins no collective: training does not know of it, and goes on without it.
It reads the run's folder, and writes in it to `evaluator/`: the log's "eval" lines,
with the checkpoint's checksum, and the same numbers for TensorBoard.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from tf_goyal import (
    checkpoint,
    files,
    preflight,
    provenance,
    run_log,
    start,
    storage,
    trained,
)
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset
from tf_goyal.progress import say
from tf_goyal.samples import InputError
from tf_goyal.trained import TrainedModel

POLL_SECONDS = 10.0
DONE, INPUT_FAILED = 0, 3  # exit codes
# What training logs last, if it does not come to its last step and must not go on.
_ENDINGS = ("not_finite", "too_many_broken_records", "input_failed", "not_saved")
_REMOVAL_SECONDS = 1.0  # in which a checkpoint that is being removed is gone


def folder(model_dir: str) -> files.AnyPath:
    """Where the evaluator of a run writes its log: a folder for `run_log.read`."""
    return files.path(model_dir) / "evaluator"


def lines(model_dir: str) -> list[dict[str, Any]]:
    """What the evaluator of a run has logged, by step; nothing where there is none."""
    try:
        logged = run_log.read(str(folder(model_dir)))
    except FileNotFoundError:
        return []
    ours = [x for x in logged if x["kind"] == "eval" and type(x["step"]) is int]
    return sorted(ours, key=lambda x: x["step"])


def describe(result: dict[str, Any]) -> str:
    """An "eval" line in words, in one line."""
    return (
        "step {step}  epoch {epoch:.2f}  top-1 error {top1_error:.2f} %  "
        "top-5 error {top5_error:.2f} %  loss {loss:.4f}  ({images} images)  "
        "weights_sha256 {weights_sha256}"
    ).format(**result)


def prepare(found: TrainedModel, data_dir: str | None) -> tuple[Config, Dataset]:
    """The settings and the data to evaluate a checkpoint with; before TensorFlow.

    Args:
      found: the checkpoint.
      data_dir: where the data set is, if not where it was in training.

    Raises:
      ValueError: the data is not there, or not that of the training.
    """
    # The devices of the evaluation need not be as many as those of the training.
    settings = dataclasses.replace(found.settings, devices=0, allreduce="auto")
    if data_dir is not None:
        settings = dataclasses.replace(settings, data_dir=data_dir)
    data = preflight.check(settings, processes=1)
    trained.check_labels(found, data)
    return settings, data


def run(
    model_dir: str,
    data_dir: str | None = None,
    *,
    total_steps: int = 0,
    poll_seconds: float = POLL_SECONDS,
    shown: Callable[[dict[str, Any]], str] = describe,
) -> int:
    """Evaluates each checkpoint once, until training has ended.

    Args:
      model_dir: the run's folder, which need not be there yet.
      data_dir: where the data set is, if not where it was in training.
      total_steps: the run's length; 0: what its config.json says.
      poll_seconds: between two looks at the folder.
      shown: what is printed of an "eval" line.

    Returns:
      The exit code: 0 training has ended, 3 no image of the data can be used.

    Raises:
      ValueError: the folder cannot be written, the data is not the training's, or
        training has ended with a checkpoint that is broken.
    """
    storage.trial_write(str(folder(model_dir)))
    # The log's lines outlive this process: nothing is evaluated twice.
    done = {x["step"]: x.get("checkpoint_sha256") for x in lines(model_dir)}
    broken: dict[int, str] = {}
    evaluation: _Evaluation | None = None
    had_ended = False
    if not checkpoint.steps(model_dir):
        say(
            f"waits for a checkpoint in {checkpoint.folder(model_dir)}, looks every "
            f"{poll_seconds:g} s"
        )
    while True:
        ended = has_ended(model_dir, total_steps)
        new = False
        for step in checkpoint.steps(model_dir):
            sha256 = _checksum(model_dir, step)
            if sha256 in (done.get(step), broken.get(step)):
                continue
            new = True
            try:
                found = trained.load(model_dir, step)
            except (OSError, ValueError) as error:
                time.sleep(_REMOVAL_SECONDS)
                if step in checkpoint.steps(model_dir):  # the run did not remove it
                    say(f"passed over: {error}", sys.stderr)
                    broken[step] = sha256
                continue
            evaluation = evaluation or _Evaluation(found, data_dir)
            try:
                result = evaluation(found)
            except InputError as error:
                say(f"evaluator: {error}", sys.stderr)
                return INPUT_FAILED
            evaluation.log.write("eval", **result, checkpoint_sha256=sha256)
            done[step] = sha256
            say(shown(result))
        if ended and had_ended:  # what was saved last came before this look
            if evaluation:
                evaluation.log.close()
            return _leave(model_dir, done, broken)
        had_ended = ended
        if not new:
            time.sleep(poll_seconds)


class _Evaluation:
    """What evaluates the checkpoints of a run, made of the first of them.

    Attributes:
      log: of the evaluator.
    """

    def __init__(self, found: TrainedModel, data_dir: str | None):
        settings, data = prepare(found, data_dir)

        # From here on TensorFlow runs.
        start.tensorflow()
        from tf_goyal.checkpoint_evaluation import CheckpointEvaluation

        self._first = found.settings
        self._evaluate = CheckpointEvaluation(settings, Cluster(), data)
        logs = folder(settings.model_dir)
        logs.mkdir(parents=True, exist_ok=True)
        self.log = run_log.RunLog(str(logs))

    def __call__(self, found: TrainedModel) -> dict[str, Any]:
        """Evaluates one checkpoint.

        Raises:
          ValueError: it is of another recipe than the first.
          InputError: there was no image to count.
        """
        for name in self._first.recipe_fields:
            was, now = getattr(self._first, name), getattr(found.settings, name)
            if was != now:
                raise ValueError(
                    f"an evaluator serves one recipe, but step {found.step} in "
                    f"{found.settings.model_dir} has --{name}={now}, an earlier one "
                    f"--{name}={was}: start the evaluator again"
                )
        return self._evaluate(found)


def _checksum(model_dir: str, step: int) -> str:
    """What tells a checkpoint from another one of that step; "" if it is broken."""
    try:
        path = checkpoint.folder(model_dir) / f"step-{step}"
        return checkpoint.manifest(path)["sha256"]
    except ValueError:
        return ""


def _leave(model_dir: str, done: dict[int, Any], broken: dict[int, str]) -> int:
    """Ends well, unless the last checkpoint could not be evaluated."""
    steps = checkpoint.steps(model_dir)
    if steps and steps[-1] in broken:
        raise ValueError(
            f"training has ended, but its last checkpoint, of step {steps[-1]} in "
            f"{checkpoint.folder(model_dir)}, is broken: train again from the one "
            "before it"
        )
    say(f"training has ended; checkpoints evaluated: {len(done)}")
    return DONE


def has_ended(model_dir: str, total_steps: int = 0) -> bool:
    """Whether training has ended for good, which a crash or a SIGTERM is not.

    Args:
      model_dir: the run's folder.
      total_steps: the run's length; 0: what its config.json says.
    """
    steps = checkpoint.steps(model_dir)
    length = total_steps or _length(model_dir)
    if steps and length and steps[-1] >= length:
        return True
    try:
        logged = run_log.read(model_dir)
    except FileNotFoundError:
        return False
    events = [line.get("event") for line in logged if line["kind"] == "event"]
    telling = [event for event in events if event in ("start", *_ENDINGS)]
    return telling[-1:] not in ([], ["start"])


def _length(model_dir: str) -> int:
    """The number of steps of a run by its config.json; 0 where that is not there."""
    try:
        text = (files.path(model_dir) / provenance.FILE_NAME).read_text("utf-8")
        return int(json.loads(text)["derived"]["total_steps"])
    except (OSError, ValueError, KeyError, TypeError):  # not there, or half of it
        return 0
