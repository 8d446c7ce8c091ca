"""Whether all processes of a run say the same."""

import hashlib
from collections.abc import Callable

import numpy as np

from tf_goyal.placement import Placement


def all_agree(
    text: str, device_sum: Callable[[np.ndarray], np.ndarray], placement: Placement
) -> bool:
    """Compares a text over all processes, which all call this; also a barrier.

    Args:
      text: what this process says.
      device_sum: `step.device_sum`'s.
      placement: the devices of the run.

    Returns:
      The same on every process: whether the sum of all digests is R times this one.
      It would be by accident with a chance of 2^-224.
    """
    digest = hashlib.sha256(text.encode()).digest()[:28]
    mine = np.frombuffer(digest, "<u4").astype(np.int64)
    total = device_sum(np.stack([mine] * len(placement.local)))
    return bool((total == mine * placement.devices).all())
