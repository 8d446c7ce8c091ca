"""Whether all processes of a run say the same."""

import hashlib
from collections.abc import Callable, Mapping

import numpy as np

from tf_goyal.placement import Placement

_WORDS = 7  # 32-bit words of a digest: by accident two are equal once in 2^224


def differences(
    said: Mapping[str, str],
    device_sum: Callable[[np.ndarray], np.ndarray],
    placement: Placement,
) -> list[str]:
    """Compares texts over all processes, which all call this; also a barrier.

    Args:
      said: what this process says, by name: the same names everywhere.
      device_sum: `step.device_sum`'s.
      placement: the devices of the run.

    Returns:
      The names about which not all say the same: those for which the sum of all digests
      is not R times this one. Every process of a run that differs finds some.
    """
    mine = np.stack([_digest(said[name]) for name in sorted(said)])
    total = device_sum(np.stack([mine.ravel()] * len(placement.local)))
    same = (total.reshape(mine.shape) == mine * placement.devices).all(1)
    return [name for name, agreed in zip(sorted(said), same, strict=True) if not agreed]


def _digest(text: str) -> np.ndarray:
    """int64 [_WORDS]."""
    digest = hashlib.sha256(text.encode()).digest()[: 4 * _WORDS]
    return np.frombuffer(digest, "<u4").astype(np.int64)
