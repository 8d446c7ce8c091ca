"""Exact evaluation: every image counted once, and the same to the bit on any layout.

Images go in fixed batches, whoever runs them: batch b holds images b * n ... (b+1) * n,
device d of R runs batches d, d + R, d + 2R ... What is left of the last batch, and the
batches that only keep the devices in step, hold nothing that is counted. All sums are
integers.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_goyal.placement import Placement
from tf_goyal.samples import InputError


class Evaluation(NamedTuple):
    """images counted, mean cross-entropy, errors in per cent of the images."""

    images: int
    loss: float
    top1_error: float
    top5_error: float


def batches_of(images: int, batch: int, placement: Placement) -> list[list[int]]:
    """The batch numbers that this process runs: one list a round, one a device.

    >>> batches_of(50, 16, placement)  # 4 batches, 3 devices, the last two are here
    [[1, 2], [4, 5]]
    """
    count = -(-images // batch)
    rounds = -(-count // placement.devices)
    return [
        [r * placement.devices + device for device in placement.local]
        for r in range(rounds)
    ]


def evaluate(
    step: Callable[[Any, Any, Any], Any],
    sum_devices: Callable[[Any], Any],
    batches: Iterable[Sequence[Any]],
    placement: Placement,
    leave_off: Callable[[], bool] = lambda: False,
) -> tuple[Evaluation, list[int]] | None:
    """Runs the evaluation. Called by every process of the run.

    Args:
      step: `step.eval_step`'s.
      sum_devices: `step.device_sum`'s.
      batches: images, labels, valid, broken (`input_pipeline.EvalBatches`); device by
        device, round by round (`batches_of`).
      placement: the devices of the run, and those of this process.
      leave_off: whether this process shall not go on.

    Returns:
      The evaluation, and the broken records that this process left out. None, for all
      processes, where one of them left off.

    Raises:
      InputError: there was no image to count.
    """
    totals = np.zeros([len(placement.local), 5], np.int64)
    pending: list[Sequence[Any]] = []
    left_out: list[int] = []
    for *batch, broken in batches:
        if leave_off():
            totals[:, 4] = 1
            break
        pending.append(batch)
        left_out += [int(record) for record in broken if record >= 0]
        if len(pending) == len(placement.local):
            images, labels, valid = map(
                placement.per_device, zip(*pending, strict=True)
            )
            results = placement.local_results(step(images, labels, valid))
            totals[:, :4] += np.stack([result.numpy() for result in results])
            pending = []
    images, top1, top5, loss, left_off = sum_devices(totals)
    if left_off:
        return None
    if not images:
        raise InputError(
            "no image of the validation set can be used; read it with python -m "
            "tf_goyal.doctor --full, which names the reasons"
        )
    evaluation = Evaluation(
        images=int(images),
        loss=float(loss) * 2.0**-30 / int(images),
        top1_error=100.0 * (int(images) - int(top1)) / int(images),
        top5_error=100.0 * (int(images) - int(top5)) / int(images),
    )
    return evaluation, left_out
