"""What a person sees while a run trains: a bar on a terminal, lines elsewhere."""

import sys
import time

from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_SECONDS = 10.0


class TrainingProgress:
    """Shows step, epoch, loss, error, images per second, learning rate and ETA.

    Args:
      total_steps: of the whole run.
      first_step: steps done before this process started.
      epochs: of the whole run, for the eye.
      shows: False shows nothing: for every rank but 0.
    """

    def __init__(self, total_steps: int, first_step: int, epochs: float, shows: bool):
        self._total, self._first, self._epochs = total_steps, first_step, epochs
        self._shows = shows
        self._terminal = shows and sys.stdout.isatty()
        self._started = None  # when the first step, which compiles, was done
        self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]:.1f}/" + f"{epochs:g}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            disable=not self._terminal,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task(
            "train", total=total_steps, completed=first_step, epoch=0.0, numbers=""
        )

    def __enter__(self) -> "TrainingProgress":
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def update(self, step: int, epoch: float, numbers: str) -> None:
        """Shows `step` steps done, with `numbers` (loss, rate …) as they are."""
        self._bar.update(self._task, completed=step, epoch=epoch, numbers=numbers)
        now = time.monotonic()
        if self._started is None:
            self._started, self._first = now, step
        elif (
            self._shows and not self._terminal and now - self._last_line > LINE_SECONDS
        ):
            self._last_line = now
            done = step - self._first
            eta = (now - self._started) / done * (self._total - step)
            self.say(
                f"step {step}/{self._total}  epoch {epoch:.2f}/{self._epochs:g}  "
                f"{numbers}  ETA {int(eta) // 60}:{int(eta) % 60:02d}"
            )

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._terminal:
            self._bar.console.print(text, markup=False, highlight=False)
        elif self._shows:
            print(text, flush=True)
