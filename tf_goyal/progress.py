"""What a person sees while something goes on: a bar on a terminal, lines elsewhere."""

import contextlib
import datetime
import os
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_SECONDS = 10.0


def say(text: str, stream: TextIO | None = None) -> None:
    """Prints a line; one that a full disk or a closed pipe does not take is lost.

    Args:
      text: the line.
      stream: to write to; None: stdout.
    """
    stream = stream or sys.stdout
    with _lossy(stream):
        print(text, file=stream, flush=True)


@contextlib.contextmanager
def _lossy(stream: TextIO | None) -> Iterator[None]:
    """What is written to the stream may fail: no reason to stop what goes on."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            _drop(stream)


def _drop(stream: TextIO) -> None:
    """Empties a stream's buffer into nothing.

    What could not be written stays there: it would fail once more at the next line,
    and at the end of the process, as exit code 120.
    """
    descriptor = stream.fileno()
    kept, nothing = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, descriptor)
        stream.flush()
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(nothing)


class _Progress:
    """Shows how much is done, some numbers, and the time that the rest takes.

    Args:
      doing: what is counted, as in "step 5/10".
      total: of them.
      done: of them before this process started.
      stream: to write to; None: stdout.
      shows: False shows nothing.
    """

    def __init__(
        self,
        doing: str,
        total: int,
        done: int = 0,
        stream: TextIO | None = None,
        shows: bool = True,
    ):
        self._doing, self._total, self._stream = doing, total, stream or sys.stdout
        self._shows = shows
        # Python has no stdout where it was closed before the start.
        self._terminal = shows and bool(self._stream) and self._stream.isatty()
        self._last_line = time.monotonic()
        self._count_from(done, self._last_line)
        self._bar = Progress(
            TextColumn(doing + " {task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            disable=not self._terminal,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("", total=total, completed=done, numbers="")

    def __enter__(self):
        with _lossy(self._stream):
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        with _lossy(self._stream):
            self._bar.stop()

    def _count_from(self, done: int, now: float) -> None:
        """Speed and remaining time are those of what is done from now on."""
        self._first, self._started = done, now

    def _speed(self, done: int, now: float) -> float:
        """Of them a second."""
        return (done - self._first) / max(now - self._started, 1e-9)

    def _show(self, done: int, now: float, numbers: str) -> None:
        """Shows so many done, with `numbers` as they are."""
        self._bar.update(self._task, completed=done, numbers=numbers)
        due = self._shows and not self._terminal
        if due and done > self._first and now - self._last_line > LINE_SECONDS:
            self._last_line = now
            seconds = int((self._total - done) / self._speed(done, now))
            self.say(
                f"{self._doing} {done:,}/{self._total:,}  {numbers}  "
                f"ETA {datetime.timedelta(seconds=seconds)}"
            )

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._terminal:
            with _lossy(self._stream):
                self._bar.console.print(text, markup=False, highlight=False)
        elif self._shows:
            say(text, self._stream)


class TrainingProgress(_Progress):
    """Shows step, epoch, loss, error, images per second, learning rate and ETA.

    Args:
      total_steps: of the whole run.
      first_step: steps done before this process started.
      epochs: of the whole run, for the eye.
      shows: False shows nothing: for every rank but 0.
    """

    def __init__(self, total_steps: int, first_step: int, epochs: float, shows: bool):
        super().__init__("step", total_steps, first_step, shows=shows)
        self._epochs, self._compiled = epochs, False

    def update(self, step: int, epoch: float, numbers: str) -> None:
        """Shows `step` steps done, with `numbers` (loss, rate …) as they are."""
        now = time.monotonic()
        if not self._compiled:  # which the first step does: it says nothing of others
            self._compiled = True
            self._count_from(step, now)
        self._show(step, now, f"epoch {epoch:.2f}/{self._epochs:g}  {numbers}")


class ImageProgress(_Progress):
    """Shows images done, images per second, broken ones and ETA."""

    def __init__(
        self, doing: str, total: int, done: int = 0, stream: TextIO | None = None
    ):
        super().__init__(doing, total, done, stream)
        self._done, self._broken = done, 0

    def add(self, done: int, broken: int) -> None:
        """Counts some more images as done, some of them broken."""
        self._done += done
        self._broken += broken
        now = time.monotonic()
        speed = self._speed(self._done, now)
        numbers = f"{speed:,.0f} images/s  {self._broken:,} broken"
        self._show(self._done, now, numbers)
