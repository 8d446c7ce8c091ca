r"""Seconds of an all-reduce: our algorithms against TensorFlow's ring.

python tools/bench_allreduce.py [--processes=2,4,8 --sizes=256,16384 --rounds=5
    --network="5 ms" --prefix="ssh {host}" --addresses=a:2222,b:2222,...]

Without --prefix and --addresses all processes run here and speak over loopback. With
them, rank i runs behind the prefix; {host} there is the host of its address and
{number} is i + 1. On emulated hosts, with the latency and the rate of --network:

bash netlab.sh up 8 5000 0
python tools/bench_allreduce.py --processes=8 --network="5 ms, no limit" \
    --prefix="bash netlab.sh exec {number}" --addresses=10.77.0.{number}:2222

All algorithms run in one start of the processes and take turns of a few calls, so that
whatever else the machine does hits all of them; a number is the median over the rounds
of a turn's seconds per call, by the clock of rank 0. Before, each start measures the
network as --allreduce=auto does; for each size the result tells what auto would take of
the algorithms, and the time of that one over the time of the quickest. Measured too:
what a message between two ranks costs, and adding and copying inside one.

Writes tools/results/bench_allreduce.json, one entry for each network and number of
processes (an entry of the same name is replaced), and a picture beside it.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import network_results
import rank_processes
from absl import flags as absl_flags

from tf_goyal import flags
from tf_goyal.cluster import Cluster, ranks_by_host

# doubling: halving_doubling without any halving.
ALGORITHMS = ("ring", "halving_doubling", "doubling", "hierarchical")
SIZES = (256, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
MESSAGE_SIZES = (1, 1024, 65536, 1048576)
RESULT = "bench_allreduce"
_COLUMNS = 4  # panels in a row of the picture, at most
# Bytes that the picture names.
_TICKS = {
    2**10: "1 KiB",
    2**14: "16 KiB",
    2**18: "256 KiB",
    2**22: "4 MiB",
    2**26: "64 MiB",
}


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    rank_processes.define(values)

    def numbers(name: str, default: tuple[int, ...], text: str) -> None:
        absl_flags.DEFINE_list(
            name, [str(d) for d in default], text, flag_values=values
        )

    numbers("processes", (2, 4, 8), "Numbers of processes, from 2 on; each one start.")
    numbers("sizes", SIZES, "Elements of the buffer, float32.")
    absl_flags.DEFINE_list(
        "algorithms",
        list(ALGORITHMS[:3]),
        f"Of {', '.join(ALGORITHMS)}; hierarchical takes its hosts from --addresses.",
        flag_values=values,
    )
    absl_flags.DEFINE_integer(
        "rounds",
        5,
        "Turns of each algorithm for each size.",
        lower_bound=1,
        flag_values=values,
    )


def rank_main(told: dict[str, Any]) -> None:
    """One rank: takes part in everything; rank 0's clock counts."""
    from tf_goyal import cluster

    rank, workers = told["rank"], told["workers"]
    strategy = cluster.strategy(Cluster(tuple(workers), rank), devices=1)
    measured = measure_as_auto(strategy, told["algorithms"], rank, workers)
    result: dict[str, Any] = {"probe": measured.seconds}
    result["messages"] = measure_messages(rank)
    result["seconds_per_byte"] = measure_memory()
    calls = {
        (size, algorithm): reduction(strategy, algorithm, size, rank, workers)
        for size in told["sizes"]
        for algorithm in told["algorithms"]
    }
    result["sizes"] = []
    for size in told["sizes"]:
        seconds: dict[str, list[float]] = {a: [] for a in told["algorithms"]}
        for algorithm in told["algorithms"]:
            calls[size, algorithm]()
        for number in range(told["rounds"]):
            order = told["algorithms"][:: 1 if number % 2 == 0 else -1]
            for algorithm in order:
                call = calls[size, algorithm]
                repeats = 10 if size <= 2**17 else 3 if size <= 2**20 else 1
                call()
                before = time.perf_counter()
                for _ in range(repeats):
                    call()
                each = (time.perf_counter() - before) / repeats
                seconds[algorithm].append(each)
        medians = {a: statistics.median(s) for a, s in seconds.items()}
        auto = measured.best(4 * size)
        result["sizes"].append(
            {
                "elements": size,
                "seconds": medians,
                "auto": auto,
                "auto_over_best": medians[auto] / min(medians.values()),
                "rounds_of_seconds": seconds,
            }
        )
        if rank == 0:
            line = ", ".join(f"{a} {1e3 * s:.2f}" for a, s in medians.items())
            print(
                f"p = {len(workers)}, {size} floats, ms: {line}; auto: {auto}",
                flush=True,
            )
    rank_processes.report(result)


def measure_as_auto(
    strategy: Any, algorithms: list[str], rank: int, workers: list[str]
) -> Any:
    """`network_probe.Measured` of these algorithms."""
    from tf_goyal import network_probe, step
    from tf_goyal.placement import Placement

    placement = Placement(strategy, rank, len(workers))
    return network_probe.measure(
        algorithms,
        strategy=strategy,
        placement=placement,
        device_sum=step.device_sum(strategy, placement),
        rank=rank,
        hosts=ranks_by_host(workers),
        watched=network_probe.unwatched,
    )


def reduction(
    strategy: Any, algorithm: str, size: int, rank: int, workers: list[str]
) -> Callable[[], None]:
    """One all-reduce of `size` ones, as the trainer's; it checks the sum."""
    import tensorflow as tf

    from tf_goyal.allreduce import AllReduce
    from tf_goyal.reduction_plan import Bucket

    bucket = Bucket([0], 4 * size, algorithm)
    hosts = ranks_by_host(workers)
    all_reduce = AllReduce(lambda sizes: [bucket], rank=rank, hosts=hosts)

    @tf.function(autograph=False)
    def reduce(tensor):
        return strategy.run(lambda mine: all_reduce([mine])[0], args=(tensor,))

    ones = tf.ones([size])

    def call():
        total = reduce(ones)
        ends = float(total[0]), float(total[-1])
        if ends != (len(workers), len(workers)):
            raise RuntimeError(
                f"{algorithm} of {size} ones on {len(workers)} gave {ends}"
            )

    return call


def measure_messages(rank: int) -> list[dict[str, float]]:
    """Messages between ranks 0 and 1, by the clock of rank 0; the others skip it.

    Returns:
      For each size: seconds of one message whose receive was posted before (half of
      there and back), and of one among four that are under way at once.
    """
    import tensorflow as tf

    from tf_goyal import pair_messages

    if rank > 1:
        return []
    names = [{"sender": 0, "receiver": 1}, {"sender": 1, "receiver": 0}]
    results = []
    for number, size in enumerate(MESSAGE_SIZES):
        first = 2**24 + 8 * number  # behind every bucket's

        @tf.function(autograph=False)
        def there_and_back(x, first=first):
            ties = []
            for i in range(4):
                if rank == 0:
                    kept = {"message": first + i, "name": "ball"}
                    ties.append(pair_messages.send(x, **names[0], **kept))
                    x = pair_messages.receive(x.shape, x.dtype, **names[1], **kept)
                else:
                    kept = {"message": first + i, "name": "ball"}
                    x = pair_messages.receive(x.shape, x.dtype, **names[0], **kept)
                    ties.append(pair_messages.send(x, **names[1], **kept))
            with tf.control_dependencies(ties):
                return x[-1] + 0.0

        @tf.function(autograph=False)
        def stream(x, first=first):
            kept = [{"message": first + 4 + i, "name": "stream"} for i in range(4)]
            if rank == 0:
                sent = [pair_messages.send(x, **names[0], **k) for k in kept]
                with tf.control_dependencies(sent):
                    return tf.zeros([])
            return tf.add_n(
                [
                    pair_messages.receive(x.shape, x.dtype, **names[0], **k)[-1]
                    for k in kept
                ]
            )

        x = tf.ones([size])
        seconds = []
        for step, messages in ((there_and_back, 8), (stream, 4)):
            step(x)
            turns = []
            for _ in range(9):
                before = time.perf_counter()
                float(step(x))
                turns.append((time.perf_counter() - before) / messages)
            seconds.append(statistics.median(turns))
        results.append(
            {"bytes": 4 * size, "seconds": seconds[0], "seconds_of_four": seconds[1]}
        )
    return results


def measure_memory() -> dict[str, float]:
    """Seconds per byte of adding two buffers and of copying one, one thread or more."""
    import tensorflow as tf

    size = 2**22
    x, y = tf.ones([size]), tf.ones([size])
    results = {}
    for name, work in (("add", lambda: x + y), ("copy", lambda: tf.concat([x, y], 0))):
        turns = []
        for _ in range(7):
            before = time.perf_counter()
            work()
            turns.append(time.perf_counter() - before)
        copied = 4 * size * (2 if name == "copy" else 1)
        results[name] = statistics.median(turns) / copied
    return results


def table(entry: dict[str, Any]) -> str:
    """Milliseconds by algorithm and size, in Markdown; the quickest of each in bold."""
    sizes = entry["sizes"]
    names = list(sizes[0]["seconds"])
    rows = [["", *(_shown_bytes(4 * size["elements"]) for size in sizes)]]
    rows.append(["---"] * len(rows[0]))
    for name in names:
        row = [f"`{name}`"]
        for size in sizes:
            text = f"{1e3 * size['seconds'][name]:.3g}"
            quickest = size["seconds"][name] == min(size["seconds"].values())
            row.append(f"**{text}**" if quickest else text)
        rows.append(row)
    rows.append(["`auto` takes", *(f"`{size['auto']}`" for size in sizes)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _shown_bytes(size: int) -> str:
    power = min(2, max(0, size.bit_length() - 1) // 10)
    return f"{size / 1024**power:g} {('B', 'KiB', 'MiB')[power]}"


def draw(entries: list[dict[str, Any]], output: Path) -> None:
    """Seconds against size: a panel for each entry, one after another.

    An entry without sizes has none. Without any panel there is no picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    entries = [entry for entry in entries if entry.get("sizes")]
    if not entries:
        return
    columns = min(_COLUMNS, len(entries))
    rows = -(-len(entries) // columns)
    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(1.2 + 3.0 * columns, 0.6 + 2.7 * rows),
        squeeze=False,
        layout="constrained",
    )
    looks = {
        "ring": ("black", "o"),
        "halving_doubling": ("tab:red", "s"),
        "doubling": ("tab:orange", "v"),
        "hierarchical": ("tab:blue", "^"),
    }
    panels = list(axes.flat)
    for axis in panels[len(entries) :]:
        axis.set_axis_off()
    for axis, entry in zip(panels, entries):
        sizes = entry["sizes"]
        for name, (color, marker) in looks.items():
            measured = [s for s in sizes if name in s["seconds"]]
            if not measured:
                continue
            axis.plot(
                [4 * s["elements"] for s in measured],
                [1e3 * s["seconds"][name] for s in measured],
                color=color,
                marker=marker,
                markersize=4,
                label=name.replace("_", "-"),
            )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        largest = max(4 * s["elements"] for s in sizes)
        ticks = {at: text for at, text in _TICKS.items() if at <= largest}
        axis.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
        axis.tick_params(axis="y", which="both", labelsize=8)
        axis.yaxis.set_minor_formatter(pyplot.LogFormatter(minor_thresholds=(2, 1)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
        axis.set_title(
            f"{entry['network']}, {entry['processes']} processes", fontsize=9
        )
        axis.legend(frameon=False, fontsize=7)
    figure.supylabel("ms per all-reduce")
    figure.supxlabel("bytes of the buffer")
    figure.savefig(output, dpi=120)
    pyplot.close(figure)


def validate(values: Any) -> tuple[list[int], dict[str, Any]]:
    """Numbers of processes, and what the ranks are told.

    Raises:
      ValueError: the flags ask for what cannot be measured.
    """
    counts = _numbers("processes", values.processes, 2)
    sizes = _numbers("sizes", values.sizes, 1)
    if not values.algorithms or not set(values.algorithms) <= {*ALGORITHMS}:
        raise ValueError(
            f"--algorithms must be of {', '.join(ALGORITHMS)}, got "
            f"{','.join(values.algorithms) or 'none'}"
        )
    rank_processes.addresses(values.addresses, max(counts))
    told = {"algorithms": values.algorithms, "sizes": sizes, "rounds": values.rounds}
    return counts, told


def _numbers(name: str, texts: list[str], least: int) -> list[int]:
    try:
        numbers = [int(text) for text in texts]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        raise ValueError(
            f"--{name} must be whole numbers from {least} on, separated by commas, got "
            f"{','.join(texts) or 'none'}"
        )
    return numbers


def main(_: list[str]) -> int:
    """Measures and writes. Returns the exit code."""
    values = flags.FLAGS
    if values.started_rank:
        rank_main(rank_processes.begin())
        return 0
    counts, settings = validate(values)
    network_results.kept(RESULT)  # refused now or after the measurement
    for processes in counts:
        measured = rank_processes.run(processes, settings)[0]
        entry = {"network": values.network, "processes": processes, **measured}
        print(table(entry))
        path = network_results.keep(RESULT, entry, draw)
    print(f"in {path}")
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
