"""One process of some all-reduces, for tests; its settings come as JSON on stdin.

Runs each of `cases` once, all in one `tf.function` and so under way at once, then
`rounds` of the 50 tensors of C1 and a model's worth of gradients in `buckets` of some
sizes, and writes what came out as .npz. Not a test itself.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import reductions
import tensorflow as tf

from tf_goyal import cluster, halving_doubling, hierarchical, reduction_plan
from tf_goyal.allreduce import IN_FLIGHT, AllReduce
from tf_goyal.reduction_plan import Bucket

FIRST_BUCKET = 10_000  # below are those that `AllReduce` counts itself


def all_reduce(case: dict, tensor: tf.Tensor, rank: int, bucket: int) -> tf.Tensor:
    """By the algorithm of a case, on the ranks or the hosts that it names.

    TensorFlow's ring is of all ranks.
    """
    if case.get("ring"):
        buckets = [Bucket([0], tensor.shape[0] * tensor.dtype.size, "ring")]
        hosts = [[rank] for rank in case["ranks"]]
        return AllReduce(lambda sizes: buckets, rank=rank, hosts=hosts)([tensor])[0]
    wire = tf.as_dtype(case["wire"]) if case.get("wire") else None
    common = {"rank": rank, "bucket": FIRST_BUCKET + bucket, "wire_dtype": wire}
    if "hosts" in case:
        return hierarchical.all_reduce(tensor, hosts=case["hosts"], **common)
    return halving_doubling.all_reduce(
        tensor, ranks=case["ranks"], halvings=case.get("halvings"), **common
    )


def main(layout: dict) -> None:
    """Writes each case's result, and how the rounds of C1 went, to its output."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    rank, ports = layout["rank"], layout["ports"]
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    strategy = cluster.strategy(cluster.Cluster(addresses, rank))
    results = run_cases(strategy, layout["cases"], rank)
    for i, (name, case) in enumerate(layout["rounds"].items()):
        if rank in reductions.ranks_of(case):
            results[name] = run_rounds(strategy, case, rank, 1000 * (i + 1))
    for size in layout.get("buckets", ()):
        results[f"buckets of {size}"] = run_buckets(strategy, size, rank, len(ports))
    np.savez(layout["outputs"][rank], **results)


def run_cases(strategy, cases: dict[str, dict], rank: int) -> dict[str, np.ndarray]:
    """Each case's result on this rank, as float64 or int64."""
    inputs = {
        name: tf.cast(reductions.values(case, rank), case["dtype"])
        for name, case in cases.items()
        if rank in reductions.ranks_of(case)
    }

    @tf.function(autograph=False)
    def reduce_all():
        def on_device():
            return {
                name: all_reduce(case, inputs[name], rank, bucket)
                for bucket, (name, case) in enumerate(cases.items())
                if name in inputs
            }

        return strategy.run(on_device)

    sums = reduce_all()
    wide = {
        name: tf.int64 if t.dtype == tf.int64 else tf.float64
        for name, t in sums.items()
    }
    return {name: tf.cast(t, wide[name]).numpy() for name, t in sums.items()}


def run_rounds(strategy, case: dict, rank: int, bucket: int) -> np.ndarray:
    """Rounds of 50 tensors of distinct constants, ranks late at random.

    Returns:
      [wrong values, threads, KiB of memory, open files after a fifth of the rounds, the
      same three at the end].
    """
    lengths = [1 + t % 7 for t in range(50)]
    edges = np.cumsum([0, *lengths])
    constants = np.repeat(np.arange(50) + 1.0, lengths)
    pieces = np.array_split(np.arange(50), case["buckets"])
    ranks = reductions.ranks_of(case)
    factor = sum(r + 1 for r in ranks)

    @tf.function(autograph=False)
    def one_round(number):
        wrong = []
        for b, piece in enumerate(pieces):
            here = constants[edges[piece[0]] : edges[piece[-1] + 1]]
            mine = tf.constant(here * (rank + 1), tf.float32) + number
            total = strategy.run(
                lambda t, b=b: all_reduce(case, t, rank, bucket + b), (mine,)
            )
            expected = tf.constant(here * factor, tf.float32) + len(ranks) * number
            wrong.append(tf.math.count_nonzero(total != expected, dtype=tf.int32))
        return tf.add_n(wrong)

    late = random.Random(rank)
    wrong, early = 0, None
    for number in range(case["rounds"]):
        if late.random() < 0.05:
            time.sleep(late.random() * 0.01)
        wrong += int(one_round(tf.constant(float(number))))
        if number == case["rounds"] // 5:
            early = held()
    return np.array([wrong, *early, *held()])


def run_buckets(strategy, size: int, rank: int, processes: int) -> np.ndarray:
    """Five steps of 25 gradients of 4 MiB, in buckets of at most `size` bytes.

    Returns:
      [wrong values, KiB that the peak of memory is above what was held before: that of
      the middle one of five steps, since gRPC copies as its threads have time].
    """
    ready = list(range(25))
    reduce = AllReduce(
        lambda sizes: reduction_plan.plan(
            sizes,
            ready,
            bucket_bytes=size,
            algorithm=lambda _: "halving_doubling",
            cost=None,
            in_flight=IN_FLIGHT,
            gradients_from=0,
        ),
        rank=rank,
        hosts=[[other] for other in range(processes)],
    )

    @tf.function(autograph=False)
    def step(scale):
        def on_device():
            sums = reduce([tf.fill([2**20], scale * (i + 1)) for i in ready])
            return [tf.math.count_nonzero(t != t[0]) for t in sums], [
                t[0] for t in sums
            ]

        return strategy.run(on_device)

    step(tf.constant(1.0))
    wrong, peaks = 0, []
    for _ in range(5):
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now's
        other, sums = step(tf.constant(rank + 1.0))
        factor = processes * (processes + 1) / 2
        wrong += sum(int(o) for o in other)
        wrong += sum(float(t) != factor * (i + 1) for i, t in enumerate(sums))
        peaks.append(status("VmHWM") - before)
    return np.array([wrong, sorted(peaks)[2]])


def held() -> list[int]:
    """Threads, KiB of memory and open files of this process."""
    files = len(os.listdir("/proc/self/fd"))
    return [status("Threads"), status("VmRSS"), files]


def status(name: str) -> int:
    """A number that the kernel knows of this process; memory in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[name].split()[0])


if __name__ == "__main__":
    main(json.load(sys.stdin))
