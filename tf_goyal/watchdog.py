"""Ends a process whose all-reduce hangs, and says what it waits for.

The thread that trains cannot: it waits inside TensorFlow, where Python's signals do not
reach it either. So another one looks on.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping

READY = "own gradients"  # the name of this process' own part of a step
_LOOKS = 1.0  # seconds between two looks


class Watchdog:
    """Looks on while steps run.

    Args:
      seconds: without a message after which a process that waits for one counts as
        hung; 0: never.
      counts: () -> name -> how often it has come, once a step: `READY`, and each
        message of another process.
      bark: is given a sentence, and ends the process.
    """

    def __init__(
        self,
        seconds: float,
        counts: Callable[[], Mapping[str, int]],
        bark: Callable[[str], None],
    ):
        self._seconds, self._counts, self._bark = seconds, counts, bark
        self._step: int | None = None
        self._begun = 0
        self._calls: tuple[str, int] | None = None  # of `watched`
        self._stopped = threading.Event()

    def __enter__(self) -> "Watchdog":
        if self._seconds:
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._stopped.set()

    def begins(self, step: int) -> None:
        """The computation of a step begins."""
        self._begun += 1
        self._step = step

    def ends(self) -> None:
        """It is done."""
        self._step = None

    def watched(self, what: str, function: Callable) -> Callable:
        """A function that waits for all processes, and is looked at meanwhile.

        Args:
          what: it does, for people.
          function: that is called outside of the steps.
        """
        numbers = itertools.count()

        def called(*arguments):
            self._calls = what, next(numbers)
            try:
                return function(*arguments)
            finally:
                self._calls = None

        return called

    def _look(self) -> None:
        before: object = None
        waited, looked = 0.0, time.monotonic()
        interval = min(_LOOKS, self._seconds / 4)
        while not self._stopped.wait(interval):
            # A process that was stopped itself must not blame others for the time.
            now = time.monotonic()
            passed, looked = min(now - looked, 2 * interval), now
            calls, step, begun = self._calls, self._step, self._begun
            counts = dict(self._counts())
            # Until its own part is done a process computes, however long that takes.
            waits = calls or (step is not None and counts.get(READY, 0) >= begun)
            if not waits or (calls, step, counts) != before:
                before, waited = (calls, step, counts), 0.0
                continue
            waited += passed
            if waited > self._seconds:
                where = f"{calls[0]}:" if calls else f"step {step}: its all-reduce"
                missing = "" if calls else f" ({_missing(counts, begun)})"
                self._bark(
                    f"{where} got nothing for {self._seconds:g} s{missing}; see "
                    "--collective_timeout"
                )
                return


def _missing(counts: Mapping[str, int], begun: int) -> str:
    """What has not come, the first of it by name."""
    late = [name for name, count in counts.items() if count < begun]
    if not late and set(counts) - {READY}:
        return "all has come, but a peer does not take what was sent to it"
    if not late:
        return "TensorFlow's algorithms do not say from whom"
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    return f"missing: {late[0]}{more}"
