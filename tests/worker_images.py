"""Prints what some virtual workers are given: `step worker sha256`, a line each.

    python worker_images.py '{"data_dir": ..., "processes": 3, "rank": 1}'

As one process of a run of k = 6 virtual workers of n = 4. Not a test itself.
"""

import hashlib
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tf_goyal import build, cluster, input_pipeline, preflight
from tf_goyal.config import Config


def main(layout: dict) -> None:
    """Reads 1.25 epochs."""
    settings = Config(
        dataset="tfrecord",
        data_dir=layout["data_dir"],
        model_dir="unused",
        model="resnet20",
        image_size=32,
        global_batch=24,
        worker_batch=4,
        epochs=1.25,
        shuffle=layout.get("shuffle", "global"),
    )
    data = preflight.check(settings, layout["processes"])
    workers = cluster.assign(6, layout["processes"])[layout["rank"]]
    batches = input_pipeline.TrainBatches(
        build.sampler(settings, data),
        global_batch=24,
        worker_batch=4,
        workers=workers,
        first_step=0,
        last_step=settings.total_steps(len(data.train)),
        image_size=32,
    )
    for step, (images, labels, _) in enumerate(batches):
        for worker, image, label in zip(
            workers, images.numpy(), labels.numpy(), strict=True
        ):
            digest = hashlib.sha256(image.tobytes() + label.tobytes()).hexdigest()
            print(step, worker, digest)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
