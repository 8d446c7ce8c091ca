"""Which process has been silent for too long.

Time counts only while this process runs: one that was stopped itself, with all its
clocks going on, must read what came meanwhile before it judges others.
"""

from collections.abc import Iterable


class Silence:
    """Counts how long each process has said nothing.

    Args:
      names: of the processes that are listened to.
      seconds: of silence that are too many.
      interval: seconds from one `tick` to the next, when nothing holds it up.
    """

    def __init__(self, names: Iterable[int], seconds: float, interval: float):
        self._silent = dict.fromkeys(names, 0.0)
        self._seconds, self._interval = seconds, interval

    def heard(self, name: int) -> None:
        """That process said something."""
        if name in self._silent:
            self._silent[name] = 0.0

    def forget(self, name: int) -> None:
        """That process need not say anything more."""
        self._silent.pop(name, None)

    def tick(self, elapsed: float) -> list[int]:
        """Some time has gone by; more than two intervals count as two.

        Args:
          elapsed: seconds since the last tick.

        Returns:
          Who has been silent for too long.
        """
        for name in self._silent:
            self._silent[name] += min(elapsed, 2 * self._interval)
        return [name for name, s in self._silent.items() if s > self._seconds]
