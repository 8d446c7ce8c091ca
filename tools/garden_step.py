"""The Model Garden's ResNet-50 step, for bench_step.py.

python tools/garden_step.py BATCH IMAGE_SIZE

Runs in an environment with tf-models-official 2.20. Prints a line of JSON with its
versions; then, for each line "PRECISION STEPS" that it reads, runs so many steps and
prints the seconds they took: by the clock, of the processors.

It is the experiment resnet_imagenet with its own model, loss, L2 decay, learning rate
and optimizer, on images that are normalised and cast already. Its metrics, which cost
extra, are left out.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

CLASSES = 1000


def training_step(precision: str, batch: int, image_size: int) -> Callable[[], float]:
    """Builds the step under its precision and warms it up. Returns the loss."""
    import numpy as np
    import tensorflow as tf
    from official.core import exp_factory
    from official.modeling import performance
    from official.vision.tasks import image_classification

    performance.set_mixed_precision_policy(tf.as_dtype(precision))
    config = exp_factory.get_exp_config("resnet_imagenet")
    config.task.model.num_classes = CLASSES
    config.task.model.input_size = [image_size, image_size, 3]
    task = image_classification.ImageClassificationTask(config.task)
    model = task.build_model()
    optimizer = task.create_optimizer(config.trainer.optimizer_config)
    random = np.random.default_rng(0)
    images = tf.cast(random.normal(size=(batch, image_size, image_size, 3)), precision)
    labels = tf.constant(random.integers(0, CLASSES, batch), tf.int32)

    @tf.function
    def step(images, labels):
        return task.train_step((images, labels), model, optimizer)[task.loss]

    for _ in range(2):
        step(images, labels).numpy()
    return lambda: float(step(images, labels))


def processor_seconds() -> float:
    """The seconds that this process' threads have computed."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Answers until stdin ends."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Nothing but answers goes to the real stdout, whatever the libraries print.
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        print(json.dumps(value), file=stdout, flush=True)

    batch, image_size = map(int, sys.argv[1:])
    steps = {p: training_step(p, batch, image_size) for p in ("float32", "bfloat16")}
    packages = ("tf-models-official", "tensorflow", "tf_keras")
    answer({package: metadata.version(package) for package in packages})
    for line in sys.stdin:
        precision, count = line.split()
        clock, processors = time.perf_counter(), processor_seconds()
        for _ in range(int(count)):
            steps[precision]()
        answer([time.perf_counter() - clock, processor_seconds() - processors])


if __name__ == "__main__":
    main()
