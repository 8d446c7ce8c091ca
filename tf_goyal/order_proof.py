"""The proof that an epoch over the virtual workers is the data set, by counting (§3).

It asks the order which records each virtual worker reads, and reads none.
"""

from typing import Any

import numpy as np

from tf_goyal.image_order import ImageOrder


def prove(
    assigned: list[range],
    order: ImageOrder,
    *,
    global_batch: int,
    worker_batch: int,
) -> dict[str, Any]:
    """Counts how often each record comes in the first and in the second epoch.

    The second one, because it may begin inside of a step.

    Args:
        assigned: the virtual workers of each device.
        order: of the training records.
        global_batch: kn.
        worker_batch: n.

    Returns:
        JSON values; "holds" is whether the union of the devices' records is the data
        set and none of them comes twice.
    """
    epochs = [
        count_epoch(epoch, assigned, order, global_batch, worker_batch)
        for epoch in (0, 1)
    ]
    train_images = order.train_images
    return {
        "holds": all(
            each["union"] == train_images and each["overlap"] == 0 for each in epochs
        ),
        "records": train_images,
        "epochs": epochs,
    }


def count_epoch(
    epoch: int,
    assigned: list[range],
    order: ImageOrder,
    global_batch: int,
    worker_batch: int,
) -> dict[str, Any]:
    """Counts one epoch's records; arguments as of `prove`.

    Returns:
        "epoch": its number; "read": how many records are read in all; "union": how
        many different ones; "overlap": how many of them more than once; "per_device":
        the fewest and the most that one device reads.
    """
    train_images = order.train_images
    first = epoch * train_images // global_batch
    stop = -(-(epoch + 1) * train_images // global_batch)
    steps = np.arange(first, stop)[:, np.newaxis, np.newaxis]
    seen = np.zeros(train_images, np.int64)
    per_device = []
    for workers in assigned:
        positions = (
            steps * global_batch
            + np.array(workers)[:, np.newaxis] * worker_batch
            + np.arange(worker_batch)
        )  # [steps, workers, n]
        inside = positions[positions // train_images == epoch]
        records = order.records_at(inside)
        np.add.at(seen, records, 1)
        per_device.append(len(records))
    return {
        "epoch": epoch,
        "read": sum(per_device),
        "union": int(np.count_nonzero(seen)),
        "overlap": int(np.count_nonzero(seen > 1)),
        "per_device": [min(per_device), max(per_device)],
    }
