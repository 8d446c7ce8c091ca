"""The loop: train, log, evaluate, save, until the last step."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_goyal import agreement, checkpoint, not_finite
from tf_goyal.asked import ASKED_TO_STOP, Asked
from tf_goyal.broken_records import BrokenRecords
from tf_goyal.cadence import Cadence
from tf_goyal.checkpoint_writer import CheckpointWriter
from tf_goyal.evaluation import Evaluation
from tf_goyal.meter import Meter
from tf_goyal.placement import Placement
from tf_goyal.progress import TrainingProgress
from tf_goyal.run_log import RunLog
from tf_goyal.step import StepResult
from tf_goyal.watchdog import Watchdog

# Exit codes; asked to stop is another.
DONE, NOT_SAVED, NOT_FINITE, TOO_MANY_BROKEN = 0, 2, 3, 3


@dataclasses.dataclass
class Trainer:
    """A run's objects, as `build.trainer` makes them, and the loop over them.

    Attributes:
      cadence: when to log, evaluate and save.
      rank: this process'; rank 0 writes the files.
      model, optimizer: Keras objects under the run's strategy.
      placement: which virtual workers are here.
      train_step: `step.train_step`'s.
      batches: first step -> iterator of this process' images, labels and replaced
        records (`input_pipeline.TrainBatches`).
      evaluate: whether to leave off -> `evaluation.evaluate`'s, by all processes
        together.
      broken: the account of broken records.
      describe_broken: split, record -> where a broken record is, and why it is.
      validation_images: records of the validation split, good or broken.
      device_sum: `step.device_sum`'s.
      meet: waits for all processes, however long one of them takes.
      choose_all_reduce: to be called once by all processes before they train; returns
        what was measured and chosen, for the log.
      watchdog: looks on; entered by whoever calls.
      asked: whether this process was asked to stop.
      writer: of checkpoints; rank 0 has one.
      log: `RunLog`; drops everything on other ranks.
      metadata: stored with every checkpoint.
    """

    cadence: Cadence
    rank: int
    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    placement: Placement
    train_step: Callable[[Any, Any, Any], StepResult]
    batches: Callable[[int], Iterator[Any]]
    evaluate: Callable[[Callable[[], bool]], tuple[Evaluation, list[int]] | None]
    broken: BrokenRecords
    describe_broken: Callable[[str, int], tuple[str, str]]
    validation_images: int
    device_sum: Callable[[np.ndarray], np.ndarray]
    meet: Callable[[], None]
    choose_all_reduce: Callable[[], dict[str, Any]]
    watchdog: Watchdog
    asked: Asked
    writer: CheckpointWriter | None
    log: RunLog
    model_dir: str
    metadata: dict[str, Any]

    def train(self, first_step: int, owes_evaluation: bool = False) -> int:
        """Trains from `first_step` steps done to the end of the run.

        SIGTERM or Ctrl-C, at any process, ends the run behind a checkpoint at a step
        that all agree on, since the wish travels in the step's own all-reduce.

        Args:
          first_step: steps done.
          owes_evaluation: whether the run was stopped before an evaluation that was
            due after them.

        Returns:
          The exit code: 0 done, 2 the last checkpoint could not be written, 3 the loss
          was not finite or too many records were broken, 143 asked to stop.
        """
        with self.asked.finishing():
            code = self._train(first_step, owes_evaluation)
            not_saved = self.writer.wait() if self.writer else ""
            self.meet()  # slow storage is no lost peer
        if not_saved and code != NOT_FINITE:
            self.log.write("event", event="not_saved", why=not_saved)
            return NOT_SAVED
        if code == DONE:
            self.log.write("event", event="done", step=self.cadence.total_steps)
        return code

    def _train(self, first_step: int, owes_evaluation: bool) -> int:
        cadence = self.cadence
        epochs = cadence.epoch(cadence.total_steps)
        batches = self.batches(first_step)
        meter = Meter(cadence.global_batch)
        with TrainingProgress(
            cadence.total_steps, first_step, epochs, shows=self.rank == 0
        ) as progress:
            if owes_evaluation and not self._evaluate(first_step, progress):
                return self._asked_to_stop(first_step, progress)
            if self.broken.too_many:
                return self._too_many_broken(first_step, progress)
            for step in range(first_step + 1, cadence.total_steps + 1):
                # Data: this process' virtual workers' images, onto its devices.
                started = time.perf_counter()
                images, labels, replaced = next(batches)
                images = self.placement.split_workers(images)
                labels = self.placement.split_workers(labels)
                replaced = replaced.numpy()
                signals = self.placement.split_signals(
                    self.asked.to_stop, np.count_nonzero(replaced >= 0)
                )
                fetched = time.perf_counter()

                # Forward, backward, reduce, update.
                self.watchdog.begins(step)
                result = self.train_step(images, labels, signals)
                loss = float(result.loss)
                self.watchdog.ends()
                meter.add(started, fetched, float(result.exposed_communication))

                # Log, evaluate, save.
                numbers = self._numbers(step, loss, result)
                progress.update(step, cadence.epoch(step), meter.describe(numbers))
                if cadence.logs(step) or loss - loss != 0:
                    self.log.write("train", **numbers, **meter.take())
                if loss - loss != 0:  # NaN or infinite
                    return self._loss_not_finite(step, loss, result, progress)
                if float(result.replaced) > 0:
                    first = self.placement.workers.start * replaced.shape[1]
                    (here,) = np.nonzero(replaced.ravel() >= 0)
                    self._add_broken(
                        step,
                        "train",
                        replaced.ravel()[here],
                        first + here,
                        cadence.global_batch,
                        progress,
                    )
                stopping = float(result.stop) > 0 and step < cadence.total_steps
                evaluation_due = cadence.evaluates(step)
                if evaluation_due and not stopping and not self.broken.too_many:
                    stopping = not self._evaluate(step, progress)
                    evaluation_due = stopping
                if self.broken.too_many:
                    return self._too_many_broken(step, progress)
                if cadence.saves(step) or stopping:
                    if not self.finite():
                        return self._not_finite(step, progress, what="the weights")
                    last = stopping or step == cadence.total_steps
                    self._save(step, evaluation_due, last, progress)
                if stopping:
                    return self._asked_to_stop(step, progress)
                meter.restart()
        return DONE

    def _numbers(self, step: int, loss: float, result: StepResult) -> dict[str, Any]:
        return {
            "step": step,
            "epoch": self.cadence.epoch(step),
            "images": self.cadence.images(step),
            "lr": float(result.learning_rate),
            "loss": loss,
            "top1_error": float(result.top1_error),
        }

    def _evaluate(self, step: int, progress: TrainingProgress) -> bool:
        """Whether it came to its end, and nobody was asked to stop meanwhile."""
        epoch = self.cadence.epoch(step)
        evaluated = self.evaluate(lambda: self.asked.to_stop)
        if evaluated is None:
            return False
        evaluation, left_out = evaluated
        if evaluation.images < self.validation_images:
            found = np.array(left_out, np.int64)
            self._add_broken(
                step, "validation", found, found, self.validation_images, progress
            )
        self.log.write(
            "eval",
            step=step,
            epoch=epoch,
            **evaluation._asdict(),
            weights_sha256=self.weights_sha256(),
        )
        progress.say(
            f"epoch {epoch:6.2f}  top-1 error {evaluation.top1_error:6.2f} %  "
            f"loss {evaluation.loss:.4f}  ({evaluation.images} images)"
        )
        return True

    def _save(
        self, step: int, owes_evaluation: bool, last: bool, progress: TrainingProgress
    ) -> None:
        """Copies the state; it is written while training goes on.

        The other processes are in their next step's all-reduce by then: only the last
        checkpoint waits for the one before it, where storage is slower than training.
        """
        if self.writer is None:
            return
        if self.writer.busy and not last:
            self.log.write("event", event="checkpoint_skipped", step=step)
            progress.say(
                f"not saved at step {step}: the checkpoint before is still being "
                "written; raise --checkpoint_every, or use faster storage"
            )
            return
        metadata = {
            **self.metadata,
            "owes_evaluation": owes_evaluation,
            "broken_records": self.broken.as_json(),
        }
        self.writer.save(step, self.state(), metadata)

    def finite(self) -> bool:
        """Whether the state is, and so can be gone on from."""
        variables = [*self.model.variables, *self.optimizer.variables]
        sums = [tf.reduce_sum(v.value) for v in variables if v.dtype == "float32"]
        return bool(np.isfinite(tf.add_n(sums).numpy()))

    def _asked_to_stop(self, step: int, progress: TrainingProgress) -> int:
        if self.writer and not self.writer.wait():
            progress.say(f"asked to stop: saved at step {step}")
        self.log.write("event", event="stop", step=step)
        return ASKED_TO_STOP

    def state(self) -> dict[str, Any]:
        """Everything that a step depends on, by name; the step is the optimizer's."""
        return {
            **checkpoint.arrays_of("model", self.model.variables),
            **checkpoint.arrays_of("optimizer", self.optimizer.variables),
        }

    def restore(self, arrays: dict[str, Any]) -> None:
        """The inverse of `state`.

        Raises:
          ValueError: a variable is missing or has another shape.
        """
        checkpoint.assign("model", self.model.variables, arrays)
        checkpoint.assign("optimizer", self.optimizer.variables, arrays)

    def weights_sha256(self) -> str:
        """The hash of the model's present variables."""
        return checkpoint.weights_sha256(
            checkpoint.arrays_of("model", self.model.variables)
        )

    def differences(self, said: dict[str, str]) -> list[str]:
        """What not all processes say alike, see `agreement`. Also a barrier."""
        return agreement.differences(said, self.device_sum, self.placement)

    def _add_broken(
        self,
        step: int,
        split: str,
        found: np.ndarray,
        places: np.ndarray,
        size: int,
        progress: TrainingProgress,
    ) -> None:
        """Tells of the broken records that all processes met in this step."""
        for record in self.broken.add(split, found, places, size):
            if self.rank == 0:
                place, why = self.describe_broken(split, record)
                self.log.write(
                    "event",
                    event="broken_record",
                    step=step,
                    split=split,
                    record=record,
                    place=place,
                    why=why,
                )
                instead = "replaced" if split == "train" else "not counted"
                progress.say(f"{place} is {instead}: {why}")

    def _too_many_broken(self, step: int, progress: TrainingProgress) -> int:
        records = self.broken.as_json()
        count = sum(map(len, records.values()))
        self.log.write(
            "event", event="too_many_broken_records", step=step, records=records
        )
        progress.say(
            f"stopped at step {step}: {count} records are broken, more than "
            f"--max_bad_records allows; they are named above and in log.jsonl: repair "
            "the data, or allow more"
        )
        return TOO_MANY_BROKEN

    def _loss_not_finite(
        self, step: int, loss: float, result: StepResult, progress: TrainingProgress
    ) -> int:
        found = not_finite.report(
            [evidence.numpy() for evidence in result.evidence],
            [variable.path for variable in self.model.trainable_variables],
            self.device_sum,
            self.placement,
        )
        return self._not_finite(step, progress, what=f"the loss ({loss})", **found)

    def _not_finite(self, step: int, progress: TrainingProgress, **found: Any) -> int:
        if self.writer:
            self.writer.wait()
        self.log.write("event", event="not_finite", step=step, **found)
        good = checkpoint.newest_whole(self.model_dir, step)
        left = (
            f"the checkpoint of step {good} is good"
            if good is not None
            else "nothing saved"
        )
        ranks = ", ".join(map(str, found.get("ranks", ())))
        norms = ", ".join(
            f"{name} {norm if isinstance(norm, str) else format(norm, '.3g')}"
            for name, norm in found.get("gradient_norms", {}).items()
        )
        progress.say(
            f"stopped at step {step}: not finite: {found['what']}"
            + (f", from rank {ranks}" if ranks else "")
            + (f"; largest gradient norms: {norms}" if norms else "")
            + f"; {left}. Lower --base_lr or lengthen --warmup_epochs"
        )
        return NOT_FINITE
