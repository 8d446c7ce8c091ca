"""Images per second, and where the seconds of a step go."""

import time
from typing import Any


class Meter:
    """Measures the steps since the last line of the log."""

    def __init__(self, global_batch: int):
        self._global_batch = global_batch
        self._mark = time.perf_counter()
        self._clear()

    def _clear(self) -> None:
        self._steps, self._input, self._compute, self._exposed = 0, 0.0, 0.0, 0.0
        self._elapsed = 0.0

    def add(self, started: float, fetched: float, exposed: float) -> None:
        """One step: `perf_counter` at its start and once the input was there."""
        now = time.perf_counter()
        self._steps += 1
        self._input += fetched - started
        self._compute += now - fetched - exposed
        self._exposed += exposed
        self._elapsed += now - self._mark
        self._mark = now

    def restart(self) -> None:
        """Leaves the time since the last step out: evaluation, saving."""
        self._mark = time.perf_counter()

    def describe(self, numbers: dict[str, Any]) -> str:
        """One line for a person."""
        rate = self._steps * self._global_batch / self._elapsed
        return (
            f"loss {numbers['loss']:.3f}  lr {numbers['lr']:.4g}  {rate:,.0f} images/s"
        )

    def take(self) -> dict[str, Any]:
        """Images per second and mean seconds per step since the last call."""
        taken = {
            "images_per_second": self._steps * self._global_batch / self._elapsed,
            "seconds": {
                "input": self._input / self._steps,
                "compute": self._compute / self._steps,
                "exposed_communication": self._exposed / self._steps,
            },
        }
        self._clear()
        return taken
