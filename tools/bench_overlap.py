r"""How much of the all-reduce backward hides: seconds of one training step.

python tools/bench_overlap.py [--processes=2 --rounds=5 --steps=2
    --network="1 Gbit/s" --prefix="ssh {host}" --addresses=a:2222,b:2222,...]

Without --prefix and --addresses all processes run here and speak over loopback. On
emulated hosts:

bash netlab.sh up 2 0 1000
python tools/bench_overlap.py --network="0 ms, 1 Gbit/s" \
    --prefix="bash netlab.sh exec {number}" --addresses=10.77.0.{number}:2222

Every contestant is the step of `tf_goyal.train` with another reduction:

  compute             none: what the step takes without a network
  ours                --allreduce=auto, with the buckets that it chooses
  ours_bfloat16       the same with --gradient_dtype=bfloat16
  barrier             ours, but nothing leaves before all gradients are there
  tensorflow          TensorFlow's ring as MultiWorkerMirroredStrategy calls it by
                      default: all gradients in one pack
  tensorflow_8mb      TensorFlow's ring in packs of 8 MB

and, but for compute and barrier, its reduction alone: the same buckets of tensors that
are there already. All take turns of a few steps in one start of the processes, so that
whatever else the machine does hits all of them; every turn begins and ends with all
processes together, by the clock of rank 0. A number is the median over the rounds;
a ratio or a part is taken within each round first:

  over_larger   step / max(compute, its own reduction alone); 1 would be perfect
  over_float32  step / max(compute, the reduction alone of "ours")
  hidden        (compute + its own reduction - step) / its own reduction

Writes tools/results/bench_overlap.json, one entry for each network and number of
processes (an entry of the same name is replaced), and a picture beside it.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import network_results
import rank_processes
import training_ranks
from absl import flags as absl_flags

from tf_goyal import flags

LABELS = {
    "compute": "no reduction",
    "ours": "ours (auto)",
    "ours_bfloat16": "ours, bfloat16",
    "barrier": "ours, behind a barrier",
    "tensorflow": "TensorFlow's default",
    "tensorflow_8mb": "TensorFlow, 8 MB packs",
}
RESULT = "bench_overlap"
# Whose reduction alone is which step's.
_REDUCTION = {name: name for name in LABELS if name != "compute"} | {"barrier": "ours"}


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    training_ranks.define(values)
    for name, default, text in (
        ("rounds", 5, "Turns of each contestant."),
        ("steps", 2, "Steps in a turn."),
    ):
        absl_flags.DEFINE_integer(
            name, default, text, lower_bound=1, flag_values=values
        )
    absl_flags.DEFINE_list(
        "contestants",
        list(_REDUCTION),
        "Beside compute; ours must be there.",
        flag_values=values,
    )


def rank_main(told: dict[str, Any]) -> None:
    """One rank: takes part in everything; rank 0's clock counts."""
    rank = training_ranks.Rank(told)
    reductions, chosen = make_reductions(rank)
    names = told["contestants"]
    turns = {name: rank.step(reductions[name]) for name in ["compute", *names]}
    for name in dict.fromkeys(_REDUCTION[name] for name in names):
        turns[f"{name} alone"] = alone(rank, reductions[name])
    for turn in turns.values():  # the same order everywhere: it numbers the messages
        turn()
        turn()
    rounds = []
    for number in range(told["rounds"]):
        seconds = {}
        for name in list(turns)[:: 1 if number % 2 == 0 else -1]:
            rank.wait_for_all()
            before = time.perf_counter()
            for _ in range(told["steps"]):
                turns[name]()
            rank.wait_for_all()
            seconds[name] = (time.perf_counter() - before) / told["steps"]
        rounds.append({name: seconds[name] for name in turns})
        if rank.rank == 0:
            line = ", ".join(f"{n} {s:.3f}" for n, s in rounds[-1].items())
            print(f"round {number + 1}, seconds per step: {line}", flush=True)
    rank_processes.report({"chosen": chosen, "rounds_of_seconds_per_step": rounds})


def make_reductions(
    rank: training_ranks.Rank,
) -> tuple[dict[str, Callable[[Any], Any]], dict[str, Any]]:
    """The reduction of each contestant, and what ours chose by which measurement."""
    import tensorflow as tf

    ours, chosen = rank.choice()
    bfloat16, bfloat16_chosen = rank.choice(gradient_dtype="bfloat16")

    def barrier(tensors):
        with tf.control_dependencies(tensors):
            return ours([tf.identity(tensor) for tensor in tensors])

    def tensorflows(bytes_per_pack):
        experimental = tf.distribute.experimental
        options = experimental.CommunicationOptions(
            bytes_per_pack=bytes_per_pack,
            implementation=experimental.CommunicationImplementation.RING,
        )

        def reduce(tensors):
            # It begins with the last one, for gradients in the order of the variables.
            tensors = [tf.identity(tensor) for tensor in tensors[::-1]]
            context = tf.distribute.get_replica_context()
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, tensors, options)
            return sums[::-1]

        return reduce

    reductions = {
        "compute": list,
        "ours": ours,
        "ours_bfloat16": bfloat16,
        "barrier": barrier,
        "tensorflow": tensorflows(0),
        "tensorflow_8mb": tensorflows(8 * 2**20),
    }
    return reductions, {"ours": chosen, "ours_bfloat16": bfloat16_chosen}


def alone(
    rank: training_ranks.Rank, all_reduce: Callable[[Any], Any]
) -> Callable[[], float]:
    """The reduction of a step's tensors, made once; it checks the sum."""
    import tensorflow as tf

    from tf_goyal import reduction_choice

    sizes = reduction_choice.message_sizes(rank.config(), rank.model)
    tensors = [tf.ones([size // 4]) for size in sizes]  # float32

    @tf.function(jit_compile=False, autograph=False)
    def reduce():
        def on_device():
            sums = all_reduce([tf.identity(tensor) for tensor in tensors])
            with tf.control_dependencies(sums):
                return sums[-1][-1] + 0.0

        return rank.strategy.run(on_device)

    def turn():
        total = float(rank.placement.local_results(reduce())[0])
        if total != len(rank.told["workers"]):
            raise RuntimeError(f"a sum of ones over all processes is {total}")
        return total

    return turn


def summary(rounds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Medians over the rounds of seconds, ratios and hidden parts, see above."""

    def median(of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(map(of, rounds))

    def reduction(r: dict[str, float], name: str) -> float:
        return r[f"{_REDUCTION[name]} alone"]

    names = [name for name in _REDUCTION if name in rounds[0]]
    return {
        "seconds": {n: median(lambda r, n=n: r[n]) for n in rounds[0]},
        "over_larger": {
            n: median(lambda r, n=n: r[n] / max(r["compute"], reduction(r, n)))
            for n in names
        },
        "over_float32": {
            n: median(lambda r, n=n: r[n] / max(r["compute"], reduction(r, "ours")))
            for n in names
        },
        "hidden": {
            n: median(
                lambda r, n=n: (r["compute"] + reduction(r, n) - r[n]) / reduction(r, n)
            )
            for n in names
        },
    }


def draw(entries: list[dict[str, Any]], output: Path) -> None:
    """A bar for each contestant's step, beside compute and reduction alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(entries),
        figsize=(7.5, 0.5 + 2.9 * len(entries)),
        squeeze=False,
        layout="constrained",
    )
    for axis, entry in zip(axes[:, 0], entries, strict=True):
        seconds = entry["seconds"]
        compute = seconds["compute"]
        names = list(entry["over_larger"])[::-1]
        for row, name in enumerate(names):
            reduction = seconds[f"{_REDUCTION[name]} alone"]
            axis.barh(row + 0.27, compute, 0.2, color="tab:gray")
            axis.barh(row + 0.05, reduction, 0.2, color="tab:orange")
            axis.barh(row - 0.22, seconds[name], 0.3, color="tab:blue")
            told = f"{entry['over_larger'][name]:.2f}x, "
            told += f"{100 * entry['hidden'][name]:.0f} % hidden"
            axis.text(seconds[name], row - 0.22, f" {told}", va="center", fontsize=8)
        axis.set_yticks(range(len(names)), [LABELS[name] for name in names])
        axis.set_xlim(0, 1.3 * max(seconds.values()))
        axis.grid(axis="x", alpha=0.3)
        axis.set_title(
            f"{entry['model']}, {entry['batch']} images of {entry['image_size']} px "
            f"each on {entry['processes']} processes; {entry['network']}",
            fontsize=9,
        )
    axis.set_xlabel("seconds")
    bars = [pyplot.Rectangle((0, 0), 1, 1, color=f"tab:{c}") for c in _COLORS]
    figure.legend(
        bars, _COLORS.values(), loc="outside lower center", ncols=3, frameon=False
    )
    figure.savefig(output, dpi=120)
    pyplot.close(figure)


_COLORS = {
    "gray": "compute alone",
    "orange": "its reduction alone",
    "blue": "the step (x the larger of the two)",
}


def main(_: list[str]) -> int:
    """Measures and writes. Returns the exit code."""
    values = flags.FLAGS
    if values.started_rank:
        rank_main(rank_processes.begin())
        return 0
    if values.processes < 2:
        raise ValueError(
            f"--processes must be at least 2, got {values.processes}: one has nothing "
            "to reduce"
        )
    known = ", ".join(_REDUCTION)
    if "ours" not in values.contestants or not set(values.contestants) <= {*_REDUCTION}:
        raise ValueError(
            f"--contestants must name ours, and be of {known}, got "
            f"{','.join(values.contestants)}"
        )
    network_results.kept(RESULT)  # refused now or after the measurement
    told = {name: values[name].value for name in ("rounds", "steps", "contestants")}
    measured = training_ranks.run(told)[0]
    names = ("network", "processes", "model", "batch", "image_size", "steps")
    entry = {
        **{name: values[name].value for name in names},
        **summary(measured["rounds_of_seconds_per_step"]),
        **measured,
    }
    path = network_results.keep(RESULT, entry, draw)
    for name in entry["over_larger"]:
        print(
            f"{LABELS[name]}: {entry['seconds'][name]:.3f} s, "
            f"{entry['over_larger'][name]:.2f} times the larger of compute and its "
            f"reduction, {100 * entry['hidden'][name]:.0f} % of the reduction hidden"
        )
    print(f"in {path}")
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
