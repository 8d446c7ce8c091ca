"""The input pipelines that bench_input.py compares, as turns that can be timed."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tf_goyal import datasets
from tf_goyal.config import Config

SHUFFLE_BUFFER = 10_000  # the usual pipeline's

# -> seconds per image: by the clock, of the processors (None: not in this process).
Turn = Callable[[], tuple[float, float | None]]


class Batch:
    """What a batch is: m virtual workers of n images of S x S pixels."""

    def __init__(self, m: int, n: int, image_size: int):
        self.m, self.n, self.image_size = m, n, image_size
        self.images = m * n


def config_for(batch: Batch, **fields: Any) -> Config:
    """A run that is long enough for everything here."""
    return Config(
        dataset="tfrecord",
        global_batch=batch.images,
        worker_batch=batch.n,
        image_size=batch.image_size,
        epochs=0.0,
        steps=1_000_000,
        **fields,
    )


def ours(config: Config, dataset: datasets.Dataset, workers: range, first: int = 0):
    """What `tf_goyal.train` iterates over, from step `first` on."""
    from tf_goyal import build, input_pipeline

    return input_pipeline.TrainBatches(
        build.sampler(config, dataset),
        global_batch=config.global_batch,
        worker_batch=config.worker_batch,
        workers=workers,
        first_step=first,
        last_step=config.steps,
        image_size=config.image_size,
        resize=config.resize,
        dct=config.dct,
        threads=build.threads(config),
    )


def usual(files: list[str], batch: Batch):
    """The pipeline that people write."""
    import tensorflow as tf

    from tf_goyal import resnet

    size = [batch.image_size, batch.image_size]

    def image_label(record):
        features = tf.io.parse_single_example(
            record,
            {
                "image/encoded": tf.io.FixedLenFeature([], tf.string),
                "image/class/label": tf.io.FixedLenFeature([], tf.int64),
            },
        )
        encoded = features["image/encoded"]
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(encoded),
            tf.constant([0.0, 0.0, 1.0, 1.0], shape=[1, 1, 4]),
            min_object_covered=0.1,
            aspect_ratio_range=[3 / 4, 4 / 3],
            area_range=[0.08, 1.0],
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], extent[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, size))
        image = (image - tf.constant(resnet.MEAN)) / tf.constant(resnet.STD)
        return image, tf.cast(features["image/class/label"], tf.int32)

    dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
    dataset = dataset.interleave(
        tf.data.TFRecordDataset,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    # Repeated first: with so few images, the buffer would else run empty and fill
    # again all the time, which ImageNet's does once in 1.28 million.
    dataset = dataset.repeat().shuffle(SHUFFLE_BUFFER)
    dataset = dataset.map(image_label, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(batch.images, drop_remainder=True)
    return dataset.prefetch(tf.data.AUTOTUNE)


def decode(config: Config, dataset: datasets.Dataset, steps: int):
    """Decoding alone: the crops of ours' first steps, over and over."""
    import numpy as np
    import tensorflow as tf

    from tf_goyal import augment, build

    sample = build.sampler(config, dataset).at(np.arange(steps * config.global_batch))

    def shape(encoded, window):
        image = tf.io.decode_and_crop_jpeg(
            encoded, window, channels=3, dct_method=augment.DCT[config.dct]
        )
        return tf.shape(image)

    threads = build.threads(config)
    # The cache hands strings out without copying them.
    crops = tf.data.Dataset.from_tensor_slices((sample.encoded, sample.window)).cache()
    crops = threads.map(crops.repeat(), shape).batch(config.global_batch)
    return threads.finish(crops, 1)


def turn_of(batches: Any, warm: int, steps: int, images: int) -> Turn:
    """The turns of something that can be iterated over anew.

    Args:
      batches: endless.
      warm: batches that do not count.
      steps: batches that do.
      images: in a batch.
    """

    def turn():
        iterator = iter(batches)
        for _ in range(warm):
            next(iterator)
        clock, processors = time.perf_counter(), _processor_seconds()
        for _ in range(steps):
            next(iterator)
        clock = time.perf_counter() - clock
        processors = _processor_seconds() - processors
        return clock / (steps * images), processors / (steps * images)

    return turn


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Rivals:
    """`input_rivals.py` in its environment: a turn per line written to it.

    Attributes:
      versions: rival -> package -> version, of those that are installed there.
    """

    def __init__(self, python: str, files: Path, batch: Batch, warm: int, steps: int):
        script = Path(__file__).with_name("input_rivals.py")
        self._process = subprocess.Popen(
            [
                python or sys.executable,
                str(script),
                f"--files={files}",
                f"--batch={batch.images}",
                f"--image_size={batch.image_size}",
                f"--warm_steps={warm}",
                f"--steps={steps}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # so that its workers end with it
        )
        try:
            self.versions: dict[str, dict[str, str]] = self._answer()
        except BaseException:
            self.close()
            raise

    def _answer(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(
                "--rivals_python must be a Python that runs tools/input_rivals.py, "
                f"which ended there with status {self._process.wait()}: run it by "
                "hand to see why"
            )
        return json.loads(line)

    def turn(self, name: str) -> Turn:
        """The turns of one rival."""

        def turn():
            print(name, file=self._process.stdin, flush=True)
            return self._answer(), None

        return turn

    def close(self) -> None:
        """Ends the process and those that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def contestants(
    folder: Path, batch: Batch, warm: int, steps: int, python: str
) -> Iterator[tuple[dict[str, Turn], dict[str, dict[str, str]]]]:
    """The turns of all that are there, and the rivals' versions."""
    shards = str(folder / "shards")
    dataset = datasets.load("tfrecord", shards)
    config = config_for(batch, data_dir=shards)
    ways = {
        "ours": ours(config, dataset, range(batch.m)),
        "usual": usual(list(dataset.train.files), batch),
        "decode": decode(config, dataset, warm + steps),
    }
    turns = {
        name: turn_of(batches, warm, steps, batch.images)
        for name, batches in ways.items()
    }
    rivals = Rivals(python, folder / "files", batch, warm, steps)
    try:
        yield (
            turns | {name: rivals.turn(name) for name in rivals.versions},
            rivals.versions,
        )
    finally:
        rivals.close()
