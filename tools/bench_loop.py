"""What the loop costs over the bare compiled step: input, logging, progress, clocks.

python tools/bench_loop.py [--rounds=5 --steps=3]

Trains a ResNet-50 on JPEGs of 500x375 that the tool makes, and alternates: some steps
of the real loop (Trainer.train with every step logged), then as many calls of its
compiled step on one batch that stays in memory. The first step of each turn is left
out. Writes tools/results/bench_loop.json.
"""

import dataclasses
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import machine
import numpy as np
from absl import flags as absl_flags

from tf_goyal import cluster, flags, preflight, run_log, start
from tf_goyal.asked import Asked
from tf_goyal.config import Config


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    for name, default, text in (
        ("rounds", 5, "Turns of each of the two."),
        ("steps", 3, "Steps counted in a turn."),
        ("batch", 32, "Images per step."),
    ):
        absl_flags.DEFINE_integer(name, default, text, flag_values=values)


def make_images(folder: Path, count: int) -> None:
    """A tfrecord data set of `count` photograph-like JPEGs of 500x375."""
    import tensorflow as tf

    random = np.random.default_rng(0)
    (folder / "labels.txt").write_text("".join(f"{i}\n" for i in range(1000)))
    for split in ("train", "validation"):
        with tf.io.TFRecordWriter(str(folder / f"{split}-00000-of-00001")) as writer:
            for label in range(count):
                coarse = random.integers(0, 256, [24, 32, 3], np.uint8)
                image = tf.image.resize(coarse, [375, 500], "bicubic")
                image += tf.random.stateless_normal([375, 500, 3], [label, 0]) * 8
                pixels = tf.saturate_cast(image, tf.uint8)
                features = {
                    "image/encoded": tf.train.Feature(
                        bytes_list=tf.train.BytesList(
                            value=[tf.io.encode_jpeg(pixels).numpy()]
                        )
                    ),
                    "image/class/label": tf.train.Feature(
                        int64_list=tf.train.Int64List(value=[label])
                    ),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


def main(_: list[str]) -> int:
    """Measures and writes. Returns the exit code."""
    rounds, steps = flags.FLAGS.rounds, flags.FLAGS.steps
    batch = flags.FLAGS.batch
    start.tensorflow()
    from tf_goyal import build

    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "data").mkdir()
        make_images(folder / "data", 4 * batch)
        config = Config(
            model_dir=str(folder / "run"),
            data_dir=str(folder / "data"),
            dataset="tfrecord",
            global_batch=batch,
            worker_batch=batch,
            epochs=0.0,
            steps=10**6,
            log_every=1,
            checkpoint_every=10.0**6,
            eval_every=10.0**6,
        )
        data = preflight.check(config, 1)
        trainer = build.trainer(
            config,
            cluster.Cluster(),
            data,
            metadata={},
            asked=Asked(),
            lost=sys.exit,
        )
        trainer.choose_all_reduce()
        # One step more than is counted, and never the last: that would evaluate.
        images, labels, _ = next(trainer.batches(0))
        images = trainer.placement.split_workers(images)
        labels = trainer.placement.split_workers(labels)
        signals = trainer.placement.split_signals(False, 0)
        float(trainer.train_step(images, labels, signals).loss)
        loop, bare = [], []
        for turn in range(rounds):
            done = turn * (steps + 1)
            loop += _loop_seconds(trainer, done, steps)
            for _ in range(steps + 1):
                begun = time.perf_counter()
                float(trainer.train_step(images, labels, signals).loss)
                bare.append(time.perf_counter() - begun)
            bare[-steps - 1 :] = bare[-steps:]
            print(f"turn {turn + 1}: {loop[-1]:.3f} s, bare {bare[-1]:.3f} s")
    finally:
        shutil.rmtree(folder)
    turns = [slice(i * steps, (i + 1) * steps) for i in range(rounds)]
    ratios = [statistics.median(loop[t]) / statistics.median(bare[t]) for t in turns]
    path = machine.write(
        "bench_loop",
        {
            "model": config.model,
            "batch": batch,
            "loop_seconds": loop,
            "bare_seconds": bare,
            "median_loop_seconds": statistics.median(loop),
            "median_bare_seconds": statistics.median(bare),
            "ratio_of_medians": statistics.median(loop) / statistics.median(bare),
            "median_of_turn_ratios": statistics.median(ratios),
        },
    )
    print(f"loop / bare step: {statistics.median(ratios):.4f}, in {path}")
    return 0


class _Stop(Exception):
    """Ends a turn of the loop."""


def _loop_seconds(trainer, done: int, steps: int) -> list[float]:
    """Runs the real loop for a turn; the seconds of all its steps but the first."""
    marks: list[float] = []

    class Log(run_log.RunLog):
        def write(self, kind, **fields):
            super().write(kind, **fields)
            if kind == "train":
                marks.append(time.perf_counter())
            if len(marks) == steps + 1:
                raise _Stop

    log = Log(trainer.model_dir)
    try:
        dataclasses.replace(trainer, log=log).train(done)
    except _Stop:
        pass
    log.close()
    return [b - a for a, b in itertools.pairwise(marks)]


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
