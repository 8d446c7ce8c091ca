"""Which records of a run turned out broken: the same account on every process.

A process sees only its own images. That a step or an evaluation met a broken record is
in the sums that all processes have anyway; only then they tell each other which.
"""

from collections.abc import Callable, Mapping

import numpy as np

from tf_goyal.placement import Placement


class BrokenRecords:
    """The account of a run.

    Args:
      most: the number of records that may be broken.
      device_sum: `step.device_sum`'s.
      placement: the devices of the run.
      known: split -> records, of the checkpoint that the run goes on from.
    """

    def __init__(
        self,
        most: int,
        device_sum: Callable[[np.ndarray], np.ndarray],
        placement: Placement,
        known: Mapping[str, list[int]] | None = None,
    ):
        self._most = most
        self._device_sum, self._placement = device_sum, placement
        self._known = {split: set(records) for split, records in (known or {}).items()}

    @property
    def too_many(self) -> bool:
        """Whether there are more than are allowed."""
        return sum(map(len, self._known.values())) > self._most

    def as_json(self) -> dict[str, list[int]]:
        """What `known` takes."""
        return {split: sorted(records) for split, records in self._known.items()}

    def add(
        self, split: str, found: np.ndarray, places: np.ndarray, size: int
    ) -> list[int]:
        """Adds what all processes found; called by every process of the run.

        Args:
          split: "train" or "validation".
          found: int64, records found here.
          places: int64, where each stands among `size` places, no two at the same one
            on any process.
          size: of what was looked at by all together.

        Returns:
          The records that were not known before, sorted: the same on every process.
        """
        rows = np.zeros([len(self._placement.local), size], np.int64)
        rows[0, places] = found + 1
        everywhere = self._device_sum(rows)
        records = set((everywhere[everywhere > 0] - 1).tolist())
        known = self._known.setdefault(split, set())
        new = sorted(records - known)
        known |= records
        return new
