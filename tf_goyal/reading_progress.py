"""What a person sees while all records are read: a bar on a terminal, lines elsewhere.

Both go to stderr: stdout is for what the command finds.
"""

import sys
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_SECONDS = 10.0


class ReadingProgress:
    """Shows images read, images per second, broken ones and ETA.

    Args:
      total: records to read.
    """

    def __init__(self, total: int):
        self._total = total
        self._done = self._broken = 0
        self._terminal = sys.stderr.isatty()
        self._started = self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("reading"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._terminal,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("read", total=total, numbers="")

    def __enter__(self) -> "ReadingProgress":
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def add(self, done: int, broken: int) -> None:
        """Counts some more records read, some of them broken."""
        self._done += done
        self._broken += broken
        now = time.monotonic()
        rate = self._done / max(now - self._started, 1e-9)
        numbers = f"{rate:,.0f} images/s  {self._broken:,} broken"
        self._bar.update(self._task, completed=self._done, numbers=numbers)
        if not self._terminal and now - self._last_line > LINE_SECONDS:
            self._last_line = now
            eta = int((self._total - self._done) / rate)
            print(
                f"read {self._done:,} of {self._total:,}  {numbers}  "
                f"ETA {eta // 60}:{eta % 60:02d}",
                file=sys.stderr,
                flush=True,
            )
