"""Images per second of the training input: ours, the usual one, decoding alone, rivals.

python tools/bench_input.py [--rivals_python=PYTHON --rounds=7 --steps=24]

The contestants read the same JPEGs of 500x375 and about 110 KB, which the tool makes
and the page cache holds:

  ours         tf_goyal.input_pipeline as training uses it: uint8 out
  usual        interleaved shards, shuffle buffer of 10,000, parse_single_example,
               sample_distorted_bounding_box, decode_and_crop_jpeg as it is by default,
               resize, flip, float32 normalised, batch; AUTOTUNE everywhere
  decode       decode_and_crop_jpeg alone: ours' very crops with ours' DCT and threads,
               the files in memory, nothing done with the pixels
  torchvision, grain workers, grain threads
               see input_rivals.py; where they are installed

They take turns. In a turn each starts anew, makes some batches that do not count (a
shuffle buffer fills, threads find their number), then those that do. Ratios are taken
within a round, then their median, so that whatever else the machine does hits both
sides; the seconds of the processors stand beside those of the clock.

Measured as well: how fast shards are indexed, how long the first batch takes at the
start of an epoch and in the middle of one with as many records as ImageNet, and the
memory after each of some epochs. Writes tools/results/bench_input.json.
"""

import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machine
import make_imagenet_like
from absl import flags as absl_flags

from tf_goyal import datasets, examples, flags, records, start
from tf_goyal.config import Config

CLASSES = 100
SHARDS = 8  # of the photographs
RECORDS_A_SHARD = 1251  # of the large set: ImageNet's
SHUFFLE_BUFFER = 10_000  # the usual pipeline's

# -> seconds per image: by the clock, of the processors (None: not in this process).
Turn = Callable[[], tuple[float, float | None]]


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    for name, default, text in (
        ("rounds", 7, "Turns of each contestant."),
        ("steps", 24, "Batches that count in a turn."),
        ("warm_steps", 8, "Batches before them that do not."),
        ("workers", 1, "Virtual workers (m) whose images make up a batch."),
        ("worker_batch", 32, "Images per virtual worker (n)."),
        ("image_size", 224, "Height and width of what comes out, pixels."),
        ("images", 1024, "JPEGs to make."),
        ("records", 1_281_167, "Records of the set that is indexed and started in."),
        ("epochs", 5, "Epochs after which memory is read."),
    ):
        absl_flags.DEFINE_integer(
            name, default, text, lower_bound=1, flag_values=values
        )
    absl_flags.DEFINE_string(
        "rivals_python",
        "",
        "Python of an environment with torchvision, or Grain and OpenCV, or both; "
        "empty: this one.",
        flag_values=values,
    )


# The images.


def make_photographs(folder: Path, images: int) -> float:
    """The same JPEGs as TFRecord shards and as files, a folder per class.

    Returns:
      Mean bytes of a JPEG.
    """
    processes = len(os.sched_getaffinity(0))
    with concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn")
    ) as pool:
        encoded = list(pool.map(_photograph, range(images), chunksize=16))
    for i, data in enumerate(encoded):
        file = folder / "files" / f"{i % CLASSES:03}" / f"{i:06}.jpeg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    shards = [encoded[shard::SHARDS] for shard in range(SHARDS)]
    labels = [range(images)[shard::SHARDS] for shard in range(SHARDS)]
    write_shards(
        folder / "shards",
        [
            b"".join(framed(data, i % CLASSES) for data, i in zip(*shard))
            for shard in zip(shards, labels)
        ],
    )
    return statistics.mean(map(len, encoded))


def _photograph(index: int) -> bytes:
    return make_imagenet_like.photograph(index, label=index % CLASSES)


def framed(encoded: bytes, label: int) -> bytes:
    """A record as it stands in a shard."""
    features = {"image/encoded": encoded, "image/class/label": label}
    return records.framed(examples.encode(features))


def write_shards(folder: Path, contents: list[bytes]) -> None:
    """A tfrecord data set; validated on what the first shard holds."""
    folder.mkdir()
    for i, content in enumerate(contents):
        (folder / f"train-{i:05}-of-{len(contents):05}").write_bytes(content)
    (folder / "validation-00000-of-00001").write_bytes(contents[0])
    (folder / "labels.txt").write_text("".join(f"{i}\n" for i in range(CLASSES)))


def make_small_records(folder: Path, count: int) -> None:
    """A data set of `count` records of one tiny image."""
    record = framed(make_imagenet_like.photograph(0, 16, 16, quality=50), 0)
    full, rest = divmod(count, RECORDS_A_SHARD)
    sizes = [RECORDS_A_SHARD] * full + [rest] * (rest > 0)
    write_shards(folder, [record * size for size in sizes])


# The contestants.


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


# The numbers.


def measure(turns: dict[str, Turn], rounds: int) -> list[dict[str, list]]:
    """Each round: contestant -> [seconds, processor seconds] per image."""
    results = []
    for r in range(rounds):
        # There and back again, so that nobody always follows the same one.
        names = list(turns) if r % 2 == 0 else list(turns)[::-1]
        seconds = {name: turns[name]() for name in names}
        results.append({name: list(seconds[name]) for name in turns})
        line = ", ".join(f"{n} {1 / s[0]:,.0f}" for n, s in results[-1].items())
        print(f"round {r + 1}, images per second: {line}", flush=True)
    return results


def summary(rounds: list[dict[str, list]], cores: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds; ratios are taken within a round first."""
    names = list(rounds[0])

    seconds = {n: statistics.median(r[n][0] for r in rounds) for n in names}

    def ratio(index):
        return {
            n: statistics.median(r[n][index] / r["ours"][index] for r in rounds)
            for n in names
            if n != "ours" and rounds[0][n][index] is not None
        }

    return {
        "images_per_second": {n: 1 / seconds[n] for n in names},
        "images_per_second_and_core": {n: 1 / seconds[n] / cores for n in names},
        # Of "decode" it is the part of decoding alone that is reached.
        "ours_is_times_as_fast_as": ratio(0),
        "ours_is_times_as_fast_as_by_processor_seconds": ratio(1),
    }


def index_speed(folder: Path, repeats: int = 3) -> dict[str, float]:
    """Records a minute, of the index of a data set's training shards."""
    files = [str(file) for file in folder.glob("train-*")]

    def records_a_minute():
        clock = time.perf_counter()
        count = len(records.index_files(files))
        return 60 * count / (time.perf_counter() - clock)

    for file in files:  # out of the page cache, as far as the system listens
        with open(file, "rb+") as opened:
            os.fsync(opened)
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {
        "shards": len(files),
        "records_a_minute_from_disk": records_a_minute(),
        "records_a_minute_from_page_cache": statistics.median(
            records_a_minute() for _ in range(repeats)
        ),
    }


def starts(folder: Path, batch: Batch, repeats: int = 3) -> dict[str, float]:
    """Seconds up to the data set, and from there to a first batch, in this process."""

    def load():
        clock = time.perf_counter()
        dataset = datasets.load("tfrecord", str(folder))
        return time.perf_counter() - clock, dataset

    def first_batch(epochs, seed):
        config = config_for(batch, data_dir=str(folder), seed=seed)
        first = int(epochs * len(dataset.train) / config.global_batch) + 1
        clock = time.perf_counter()
        iterator = iter(ours(config, dataset, range(batch.m), first))
        next(iterator)
        return time.perf_counter() - clock

    first_load, dataset = load()
    again, dataset = load()
    first_batch(0, 0)  # TensorFlow's own first time
    # Another seed each time, so that no order is at hand.
    return {
        "records": len(dataset.train),
        "load_and_index_seconds": first_load,
        "load_seconds_with_stored_index": again,
        "first_batch_of_an_epoch_seconds": statistics.median(
            first_batch(1, seed) for seed in range(1, 1 + repeats)
        ),
        "first_batch_in_mid_epoch_seconds": statistics.median(
            first_batch(1.5, seed) for seed in range(101, 101 + repeats)
        ),
    }


def memory(folder: str, m: int, n: int, image_size: int, epochs: int) -> list[float]:
    """Resident MB after each epoch. For a process of its own."""
    start.tensorflow()
    batch = Batch(m, n, image_size)
    dataset = datasets.load("tfrecord", folder)
    config = config_for(batch, data_dir=folder)
    batches = iter(ours(config, dataset, range(m)))
    found = []
    for _ in range(epochs):
        for _ in range(-(-len(dataset.train) // batch.images)):
            next(batches)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        found.append(pages * resource.getpagesize() / 2**20)
    return found


def in_a_new_process(function: Callable, *arguments: Any) -> Any:
    """The result of a function of this module."""
    with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn")
    ) as pool:
        return pool.submit(function, *arguments).result()


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
            (rivals.versions),
        )
    finally:
        rivals.close()


def main(_: list[str]) -> int:
    """Measures and writes. Returns the exit code."""
    values = flags.FLAGS
    batch = Batch(values.workers, values.worker_batch, values.image_size)
    python = values.rivals_python
    # Where somebody keeps the rivals is no part of the result.
    if python:
        sys.argv = [argument.replace(python, "PYTHON") for argument in sys.argv]
    start.tensorflow()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        mean_bytes = make_photographs(folder, values.images)
        with contestants(folder, batch, values.warm_steps, values.steps, python) as (
            turns,
            rivals,
        ):
            rounds = measure(turns, values.rounds)
        medians = summary(rounds, len(os.sched_getaffinity(0)))
        after_epochs = in_a_new_process(
            memory,
            str(folder / "shards"),
            batch.m,
            batch.n,
            batch.image_size,
            values.epochs,
        )
        photographs = index_speed(folder / "shards")
        make_small_records(folder / "small", values.records)
        small = index_speed(folder / "small")
        first = starts(folder / "small", batch)
    path = machine.write(
        "bench_input",
        {
            "jpegs": {
                "images": values.images,
                "width": 500,
                "height": 375,
                "mean_bytes": mean_bytes,
            },
            "virtual_workers": batch.m,
            "worker_batch": batch.n,
            "image_size": batch.image_size,
            "batches_in_a_turn": {"warm": values.warm_steps, "count": values.steps},
            "rivals_versions": rivals,
            **medians,
            "index": {"photographs": photographs, "small_records": small},
            "starts": first,
            "memory_mb_after_epochs": after_epochs,
            "rounds_of_seconds_and_processor_seconds_per_image": rounds,
        },
    )
    for key in ("images_per_second", "ours_is_times_as_fast_as"):
        for name, value in medians[key].items():
            print(f"{key.replace('_', ' ')}, {name}: {value:,.2f}")
    for name, value in {**small, **first}.items():
        print(f"{name.replace('_', ' ')}: {value:,.2f}")
    print("MB after each epoch:", ", ".join(f"{mb:,.0f}" for mb in after_epochs))
    print(f"in {path}")
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
