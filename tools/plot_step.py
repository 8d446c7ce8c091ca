r"""Draws one recorded training step: backward, and the buckets that travel meanwhile.

python tools/plot_step.py [--processes=2 --gradient_dtype=bfloat16
    --network="1 Gbit/s" --prefix="ssh {host}" --addresses=a:2222,b:2222,...]
python tools/plot_step.py --recording=tools/results/step.json [--output=step.png]

Starts the processes as tools/bench_overlap.py does, records some steps, and keeps the
one of median length on rank 0. Times are of each rank's own clock, from its call of the
step on; all ranks call it together.

Writes tools/results/step.json and a picture beside it. With --recording it draws a
recording again.
"""

import json
from pathlib import Path
from typing import Any

import machine
import rank_processes
import training_ranks
from absl import flags as absl_flags

from tf_goyal import flags
from tf_goyal.config import ALLREDUCE

_NUMBER = (int, float)
_TENSOR = {"name": str, "ready": _NUMBER, "applied": (*_NUMBER, type(None))}
_BUCKET = {
    "bytes": int,
    "algorithm": str,
    "sent": _NUMBER,
    "reduced": _NUMBER,
    "tensors": [_TENSOR],
}
# What `draw` takes of a recording: objects' fields, lists that are not empty, types.
RECORDING = {
    "ranks": [{"end": _NUMBER, "buckets": [_BUCKET]}],
    **{name: int for name in ("processes", "batch", "image_size")},
    **{name: str for name in ("network", "model", "gradient_dtype")},
}
# A bucket's phases, each to the next one's begin: (key, colour, label).
PHASES = (
    ("first", "lightgray", "bucket fills"),
    ("ready", "tab:orange", "ready, not yet sent"),
    ("sent", "tab:blue", "sent (first message), on its way"),
    ("reduced", "tab:green", "reduced, until all of it is applied"),
)


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    training_ranks.define(values)
    absl_flags.DEFINE_integer(
        "steps", 5, "Steps to record.", lower_bound=1, flag_values=values
    )
    absl_flags.DEFINE_enum(
        "allreduce", "auto", ALLREDUCE, "As of training.", flag_values=values
    )
    absl_flags.DEFINE_float("bucket_mb", -1.0, "As of training.", flag_values=values)
    absl_flags.DEFINE_enum(
        "gradient_dtype",
        "float32",
        ("float32", "bfloat16", "float16"),
        "As of training.",
        flag_values=values,
    )
    for name, text in (
        ("recording", "JSON of a recording to draw; empty: record."),
        ("output", "PNG to write; by default beside the JSON."),
    ):
        absl_flags.DEFINE_string(name, "", text, flag_values=values)


def phases(bucket: dict[str, Any]) -> dict[str, float]:
    """When a bucket's phases begin, and when the last one ends ("applied").

    What holds no gradient is not applied; its last phase has no length.
    """
    ready = [tensor["ready"] for tensor in bucket["tensors"]]
    applied = [t["applied"] for t in bucket["tensors"] if t["applied"] is not None]
    return {
        "first": min(ready),
        "ready": max(ready),
        "sent": bucket["sent"],
        "reduced": bucket["reduced"],
        "applied": max(applied, default=bucket["reduced"]),
    }


def stage(name: str) -> str:
    """The part of the network that a variable belongs to.

    >>> stage("stage3_block2_conv1/kernel"), stage("head/bias")
    ('stage3', 'head')
    """
    return name.split("/")[0].split("_")[0]


def exposed(step: dict[str, Any]) -> tuple[float, float]:
    """(the last gradient is ready, everything is reduced), seconds."""
    buckets = [phases(bucket) for bucket in step["buckets"]]
    return max(b["ready"] for b in buckets), max(b["reduced"] for b in buckets)


def draw(recording: dict[str, Any], output: Path) -> None:
    """A time axis for each rank: gradients by stage, and a bar for each bucket."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ranks = recording["ranks"]
    gradients = [
        [t for b in step["buckets"] for t in b["tensors"] if t["applied"] is not None]
        for step in ranks
    ]
    stages = list(dict.fromkeys(stage(t["name"]) for t in gradients[0]))
    buckets = len(ranks[0]["buckets"])
    rows = 1 + len(stages) + buckets
    figure, axes = pyplot.subplots(
        len(ranks),
        sharex=True,
        squeeze=False,
        figsize=(10, 1.2 + len(ranks) * (0.6 + 0.19 * rows)),
        layout="constrained",
    )
    colors = {name: f"C{i % 10}" for i, name in enumerate(stages)}
    for number, (axis, step) in enumerate(zip(axes[:, 0], ranks, strict=True)):
        # The loss is there when forward ends.
        forward = step["buckets"][0]["tensors"][0]["ready"]
        axis.barh(0, forward, 0.6, color="dimgray")
        axis.text(forward / 2, 0, "forward", color="white", ha="center", va="center")
        for tensor in gradients[number]:
            name = stage(tensor["name"])
            row = 1 + stages.index(name)
            look = {"color": colors[name], "linewidth": 1.2}
            ready = tensor["ready"]
            axis.plot([ready, ready], [row - 0.35, row + 0.35], **look)
        labels = ["", *[f"gradients, {name}" for name in stages]]
        for index, bucket in enumerate(step["buckets"]):
            row = 1 + len(stages) + index
            times = [*phases(bucket).values()]
            for begin, after, (_, color, _) in zip(times, times[1:], PHASES):
                axis.barh(row, after - begin, 0.75, begin, color=color)
            labels.append(f"{index}: {_size(bucket['bytes'])}, {bucket['algorithm']}")
        last, reduced = exposed(step)
        axis.axvspan(last, reduced, color="tab:red", alpha=0.1, linewidth=0)
        axis.axvline(last, color="tab:red", linewidth=1, linestyle="--")
        axis.axhline(0.5 + len(stages), color="black", linewidth=0.6)
        axis.set_yticks(range(rows), labels, fontsize=7)
        axis.set_ylim(rows - 0.4, -0.6)
        axis.grid(axis="x", alpha=0.3)
        axis.set_title(
            f"rank {number}: step {step['end']:.2f} s, backward ends at {last:.2f} s, "
            f"reduction at {reduced:.2f} s",
            fontsize=9,
        )
    axes[0, 0].set_xlim(0, 1.02 * max(step["end"] for step in ranks))
    axes[-1, 0].set_xlabel("seconds since the step began")
    figure.suptitle(
        f"{recording['model']}, {recording['batch']} images of "
        f"{recording['image_size']} px on each of {recording['processes']} processes, "
        f"{recording['gradient_dtype']} gradients; {recording['network']}",
        fontsize=10,
    )
    boxes = [pyplot.Rectangle((0, 0), 1, 1, color=color) for _, color, _ in PHASES]
    boxes.append(pyplot.Rectangle((0, 0), 1, 1, color="tab:red", alpha=0.15))
    names = [label for _, _, label in PHASES] + ["not hidden by backward"]
    figure.legend(
        boxes, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8
    )
    figure.savefig(output, dpi=120)
    pyplot.close(figure)


def _size(count: int) -> str:
    if count < 2**20:
        return f"{count / 2**10:.1f} KiB"
    return f"{count / 2**20:.1f} MiB"


def lacking(value: Any, wanted: Any, place: str = "it") -> str:
    """The first place where a JSON value is not what is wanted; empty: nowhere.

    >>> lacking({"ranks": []}, RECORDING)
    "it['ranks']"
    """
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            return place
        inner = [(value.get(n), w, f"{place}[{n!r}]") for n, w in wanted.items()]
    elif isinstance(wanted, list):
        if not isinstance(value, list) or not value:
            return place
        inner = [(v, wanted[0], f"{place}[{i}]") for i, v in enumerate(value)]
    else:
        return "" if isinstance(value, wanted) else place
    return next(filter(None, (lacking(*each) for each in inner)), "")


def read(path: Path) -> dict[str, Any]:
    """A recording.

    Raises:
      ValueError: the file is none.
    """
    try:
        recording = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"--recording must be a JSON file of this tool, got {path}: {error}"
        ) from error
    if place := lacking(recording, RECORDING):
        raise ValueError(
            f"--recording must be a JSON file of this tool, got {path}, where {place} "
            "is missing or of another kind"
        )
    return recording


def check_output(output: Path, recording: Path) -> None:
    """Refuses an output that cannot be written, or that is the recording itself.

    Raises:
      ValueError: it is such.
    """
    if output.resolve() == recording.resolve() or (
        output.exists() and recording.exists() and output.samefile(recording)
    ):
        raise ValueError(
            f"--output must not be the recording itself, got {output} for both: give "
            "--output another name"
        )
    if output.suffix.lower() != ".png" or output.is_dir() or not output.parent.is_dir():
        raise ValueError(
            "--output must be a file that ends in .png, in a folder that is there, got "
            f"{output}"
        )


def rank_main(told: dict[str, Any]) -> None:
    """One rank: records."""
    rank = training_ranks.Rank(told)
    import step_recording  # it needs TensorFlow, which must not greet

    rank_processes.report(step_recording.record(rank, told["steps"], **told["changes"]))


def record() -> Path:
    """Records and writes. Returns the JSON file."""
    values = flags.FLAGS
    changes = {
        name: values[name].value
        for name in ("allreduce", "bucket_mb", "gradient_dtype")
    }
    recorded = training_ranks.run({"steps": values.steps, "changes": changes})
    lengths = [step["end"] for step in recorded[0]["steps"]]
    median = sorted(range(len(lengths)), key=lengths.__getitem__)[len(lengths) // 2]
    names = ("network", "processes", "model", "batch", "image_size")
    return machine.write(
        "step",
        {
            **{name: values[name].value for name in names},
            **changes,
            "seconds_of_all_steps": lengths,
            "ranks": [rank["steps"][median] for rank in recorded],
        },
    )


def main(_: list[str]) -> int:
    """Records or reads, and draws. Returns the exit code."""
    values = flags.FLAGS
    if values.started_rank:
        rank_main(rank_processes.begin())
        return 0
    if not values.recording and values.processes < 2:
        raise ValueError(
            f"--processes must be at least 2, got {values.processes}: one sends nothing"
        )
    path = Path(values.recording or machine.RESULTS / "step.json")
    recording = read(path) if values.recording else None
    machine.RESULTS.mkdir(exist_ok=True)
    output = Path(values.output or path.with_suffix(".png"))
    check_output(output, path)
    draw(recording or read(record()), output)
    print(output)
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
