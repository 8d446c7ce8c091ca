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
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import make_imagenet_like
from absl import flags as absl_flags
from input_contestants import Batch, Turn, config_for, contestants, ours

from tf_goyal import datasets, examples, flags, records, start

CLASSES = 100
SHARDS = 8  # of the photographs
RECORDS_A_SHARD = 1251  # of the large set: ImageNet's


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


def memory(folder: str, batch: Batch, epochs: int) -> list[float]:
    """Resident MB after each epoch. For a process of its own."""
    start.tensorflow()
    dataset = datasets.load("tfrecord", folder)
    config = config_for(batch, data_dir=folder)
    batches = iter(ours(config, dataset, range(batch.m)))
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
            memory, str(folder / "shards"), batch, values.epochs
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
