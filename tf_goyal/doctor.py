"""python -m tf_goyal.doctor: checks a run without training.

It takes the flags of train and refuses what train refuses, with the same sentence.
Then it shows the recipe as it will run, every deviation from the paper, the layout
of the virtual workers over the devices, steps and learning rates, memory and
messages, the cluster, the data and the storage.

Exit codes: 0 all right (deviations are no failure), 2 refused.
"""

import collections
import dataclasses
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags as absl_flags
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tf_goyal import checkpoint, cluster, deviations, flags, preflight, resume, start
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset

if TYPE_CHECKING:
    import keras

    from tf_goyal.sgd import SGD

MB = 2**20  # bytes, as in --bucket_mb

_LISTED_DEVICES = 16  # more of them are counted instead
_POSITIONS_AT_ONCE = 2**20  # bounds the memory of the proof

Facts = dict[str, Any]  # JSON values


def define(values: absl_flags.FlagValues) -> None:
    """The flags of doctor."""
    absl_flags.DEFINE_bool(
        "json", False, "Print one JSON object and nothing else.", flag_values=values
    )
    absl_flags.DEFINE_bool(
        "data",
        False,
        "Prove that one epoch over the virtual workers gives every record exactly "
        "once.",
        flag_values=values,
    )
    absl_flags.DEFINE_bool(
        "list_variables",
        False,
        "Print the name of every variable that weight decay acts on.",
        flag_values=values,
    )
    absl_flags.DEFINE_integer(
        "processes",
        None,
        "Number of processes to lay the run out for, each with --devices devices, "
        "whatever is here; default: the cluster of TF_CONFIG, else 1.",
        lower_bound=1,
        flag_values=values,
    )


def main(_: list[str]) -> int:
    """Gathers the facts and prints them. Returns the exit code.

    Raises:
        ValueError: train would refuse the input, or the storage will not do.
    """
    settings = flags.config_from_flags()
    members = cluster.from_environment(os.environ)
    asked = flags.FLAGS.processes
    processes = asked or members.processes
    data = preflight.check(settings, processes)
    train_images = len(data.train)
    _, manifest = resume.last_checkpoint(settings)
    storage = storage_facts(settings, manifest["step"], train_images, members.is_chief)

    # From here on TensorFlow runs.
    start.tensorflow()
    from tf_goyal import build

    build.prepare_tensorflow(settings)
    # Another number of processes may mean other machines: nothing is looked for here.
    there = asked and settings.devices
    layout = layout_facts(settings, processes, there or devices_here(settings))
    facts = gather(settings, members, data, storage, layout)
    if flags.FLAGS.data:
        facts["proof"] = order_proof(settings, train_images, layout)

    if flags.FLAGS.json:
        print(json.dumps(facts))
    else:
        show(facts, list_variables=flags.FLAGS.list_variables)
    refuse_failures(facts)
    return 0


def gather(
    settings: Config, members: Cluster, data: Dataset, storage: Facts, layout: Facts
) -> Facts:
    """All facts but the proof; `storage` and `layout` as their functions give them."""
    from tf_goyal import build

    train_images = len(data.train)
    schedule = build.learning_rate(settings, train_images)
    network, optimizer = on_cpu(settings, data)
    return {
        "recipe": recipe_facts(settings, data),
        "deviations": deviation_facts(settings, data),
        "layout": layout,
        "learning_rate": rate_facts(settings, train_images, schedule.value),
        "model": model_facts(network, optimizer),
        "memory": memory_facts(settings, network, optimizer, layout),
        "messages": message_facts(settings, network),
        "cluster": cluster_facts(members),
        "data": data_facts(data),
        "storage": storage | room_facts(settings, storage, network, optimizer),
    }


def recipe_facts(settings: Config, data: Dataset) -> Facts:
    """Every setting that changes what is computed, and the sizes that follow."""
    train_images = len(data.train)
    names = (*settings.recipe_fields, "epochs", "steps")
    error = deviations.paper_error(settings)
    return {
        "flags": {
            field.name: getattr(settings, field.name)
            for field in dataclasses.fields(settings)
            if field.name in names
        },
        "worker_batch": settings.worker_batch,
        "virtual_workers": settings.virtual_workers,
        "global_batch": settings.global_batch,
        "scaled_lr": settings.scaled_lr,
        "warms_up": settings.warms_up,
        "eval_shorter_side": settings.eval_shorter_side,
        "steps_per_epoch": settings.steps_per_epoch(train_images),
        "total_steps": settings.total_steps(train_images),
        "paper_top1_error": error and {"mean": error[0], "std": error[1]},
    }


def deviation_facts(settings: Config, data: Dataset) -> list[Facts]:
    """What the run does otherwise than the paper."""
    found = deviations.deviations(
        settings,
        train_images=len(data.train),
        eval_images=len(data.validation),
        classes=data.num_classes,
    )
    return [dataclasses.asdict(each) for each in found]


def layout_facts(settings: Config, processes: int, devices: int) -> Facts:
    """Which virtual workers lie where, for `processes` of `devices` devices each.

    Raises:
        ValueError: a device would have no virtual worker.
    """
    ranges = cluster.assign(settings.virtual_workers, processes * devices)
    counts = collections.Counter(len(workers) for workers in ranges)
    return {
        "processes": processes,
        "devices_per_process": devices,
        "devices": len(ranges),
        "devices_by_workers": [
            {"workers": workers, "devices": counts[workers]}
            for workers in sorted(counts, reverse=True)
        ],
        # [first, one past the last] of each device
        "workers": [[workers.start, workers.stop] for workers in ranges],
    }


def rate_facts(
    settings: Config, train_images: int, rate: Callable[[int], float]
) -> list[Facts]:
    """The learning rate at the steps where it changes its course (§2.2, §5.1).

    Args:
        settings: of the run.
        train_images: N.
        rate: step -> learning rate of the update that this step makes.
    """
    total = settings.total_steps(train_images)
    points = [("first step", 0)]
    if settings.warms_up:
        after = settings.first_step_of(settings.warmup_epochs, train_images)
        points += [("last step of warmup", after - 1), ("first after warmup", after)]
    for boundary in settings.lr_boundaries:
        first = settings.first_step_of(boundary, train_images)
        points += [
            (f"last before epoch {boundary:g}", first - 1),
            (f"first from epoch {boundary:g}", first),
        ]
    points.append(("last step", total - 1))
    return [
        {
            "at": at,
            "step": step,
            "epoch": settings.epoch_of(step, train_images),
            "rate": rate(step) if step < total else None,  # None: not reached
        }
        for at, step in points
        if step >= 0  # nothing is before a boundary at epoch 0
    ]


def cluster_facts(members: Cluster) -> Facts:
    """Who trains together, from TF_CONFIG."""
    return {
        "processes": members.processes,
        "addresses": list(members.workers),
        "rank": members.rank,
        "notes": list(members.notes),
    }


def data_facts(data: Dataset) -> Facts:
    """Files, images and classes."""
    return {
        "name": data.name,
        "classes": data.num_classes,
        "splits": {
            split.name: {
                "folder": os.path.dirname(split.files[0]),
                "files": len(split.files),
                "images": len(split),
                "bytes": int(split.index.length.sum()),
            }
            for split in (data.train, data.validation)
        },
    }


def storage_facts(
    settings: Config, start_step: int, train_images: int, is_chief: bool
) -> Facts:
    """The run's folder: can it be written, what is there, where does a run start?

    Args:
        settings: of the run.
        start_step: steps done in the checkpoint that train would go on from.
        train_images: N.
        is_chief: whether this process is the one that writes.

    Raises:
        ValueError: the folder cannot be written.
    """
    model_dir = Path(settings.model_dir).absolute()
    tried = trial_write(model_dir) if is_chief else None
    found = checkpoint.steps(settings.model_dir)
    return {
        "model_dir": str(model_dir),
        "will_be_created": not model_dir.exists(),
        "trial_write": tried and str(tried),
        "checkpoints": found,
        "resume": settings.resume,
        "resumes": bool(found),
        "start_step": start_step,
        "already_done": start_step >= settings.total_steps(train_images),
    }


def trial_write(folder: Path) -> Path:
    """Writes, flushes and removes a file in a folder, or in the nearest above it.

    Returns:
        The folder that was tried.

    Raises:
        ValueError: it cannot be written.
    """
    tried = _nearest(folder)
    try:
        with tempfile.TemporaryFile(dir=tried) as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ValueError(
            f"--model_dir must be a folder that can be written, but a trial write "
            f"for {folder} failed in {tried}: {error.strerror}; free it or name "
            "another"
        ) from error
    return tried


def _nearest(folder: Path) -> Path:
    """An absolute path itself, or the nearest one above it that is there."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def devices_here(settings: Config) -> int:
    """The devices of this machine that train would use in one process.

    Raises:
        ValueError: the devices or the all-reduce asked for are not there.
    """
    alone = cluster.strategy(
        Cluster(), allreduce=settings.allreduce, devices=settings.devices
    )
    return alone.num_replicas_in_sync


def on_cpu(settings: Config, data: Dataset) -> tuple["keras.Model", "SGD"]:
    """The run's network and its built optimizer, in the memory of the host."""
    import tensorflow as tf

    from tf_goyal import build

    with tf.device("CPU:0"):
        network = build.model(settings, data.num_classes)
        optimizer = build.optimizer(settings, len(data.train))
        optimizer.build(network.trainable_variables)
    return network, optimizer


def model_facts(network: "keras.Model", optimizer: "SGD") -> Facts:
    """Numbers of parameters, and what weight decay acts on (§3, remark 1)."""
    return {
        "parameters": _elements(network.trainable_variables),
        "running_statistics": _elements(network.non_trainable_variables),
        "trainable_variables": len(network.trainable_variables),
        "decayed_variables": [v.path for v in optimizer.decayed_variables],
        "decayed_parameters": _elements(optimizer.decayed_variables),
    }


def memory_facts(
    settings: Config, network: "keras.Model", optimizer: "SGD", layout: Facts
) -> Facts:
    """Bytes on each device, and of one step's images in a process.

    Activations, which depend on n and on the kernels, come on top.
    """
    sent = sum(message_sizes(settings, network))
    ends = np.array(layout["workers"])[:: layout["devices_per_process"], 0]
    carried = np.diff([*ends, settings.virtual_workers])  # workers of each process
    image = settings.image_size**2 * 3  # bytes: uint8, 3 channels
    label = 4  # bytes: int32
    return {
        "weights": _bytes(network.variables),
        "optimizer_state": _bytes(optimizer.variables),
        "gradients": _elements(network.trainable_variables) * _sum_bytes(settings),
        "buckets": sent if layout["devices"] > 1 else 0,
        "input_per_step": int(carried.max()) * settings.worker_batch * (image + label),
    }


def message_sizes(settings: Config, network: "keras.Model") -> list[int]:
    """Bytes of everything that a step sums over the devices, in the order it leaves.

    As `step.train_step` sends it: loss, error, faults and stop, the running
    statistics, and the gradients from the last layer's to the first's.
    """
    variables = [
        *network.non_trainable_variables,
        *reversed(network.trainable_variables),
    ]
    elements = [1, 1, 1, 1, *(math.prod(v.shape) for v in variables)]
    return [count * _sum_bytes(settings) for count in elements]


def message_facts(settings: Config, network: "keras.Model") -> Facts:
    """The buckets in which a step's sums travel between devices (§4)."""
    from tf_goyal import allreduce

    sizes = message_sizes(settings, network)
    groups = allreduce.buckets(sizes, int(settings.bucket_mb * MB))
    return {
        "dtype": "int64" if settings.reduction == "exact" else "float32",
        "bytes": sum(sizes),
        "buckets": [sum(sizes[i] for i in group) for group in groups],
    }


def room_facts(
    settings: Config, storage: Facts, network: "keras.Model", optimizer: "SGD"
) -> Facts:
    """Free disk against what the checkpoints will take.

    One more than --keep_checkpoints is there while the newest is being written.
    """
    size = _bytes(network.variables) + _bytes(optimizer.variables)
    more = max(0, settings.keep_checkpoints + 1 - len(storage["checkpoints"]))
    return {
        "checkpoint_bytes": size,
        "needed_bytes": size * more if storage["trial_write"] else 0,
        "free_bytes": shutil.disk_usage(_nearest(Path(storage["model_dir"]))).free,
    }


def order_proof(settings: Config, train_images: int, layout: Facts) -> Facts:
    """Counts how often each record comes in an epoch over the virtual workers (§3).

    Computes the records that every virtual worker of every device reads in the
    steps of the first and of the second epoch (which may begin inside of a step),
    and counts. It reads no record.

    Returns:
        Counts; "holds" is whether the union of the devices' records is the data set
        and no two of them overlap.
    """
    workers = np.concatenate([np.arange(*ends) for ends in layout["workers"]])
    device = np.repeat(
        np.arange(layout["devices"]), [b - a for a, b in layout["workers"]]
    )
    epochs = [
        {"epoch": epoch}
        | count_epoch(
            epoch,
            workers,
            device,
            train_images=train_images,
            seed=settings.seed,
            global_batch=settings.global_batch,
            worker_batch=settings.worker_batch,
        )
        for epoch in (0, 1)
    ]
    return {
        "holds": all(
            each["union"] == train_images
            and each["overlap"] == 0
            and each["read"] == train_images
            for each in epochs
        ),
        "records": train_images,
        "epochs": epochs,
    }


def count_epoch(
    epoch: int,
    workers: np.ndarray,
    device: np.ndarray,
    *,
    train_images: int,
    seed: int,
    global_batch: int,
    worker_batch: int,
) -> Facts:
    """Counts one epoch's records.

    Args:
        epoch: its number.
        workers: int [w], virtual workers.
        device: int [w], which device carries each.
        train_images: N.
        seed: of the run.
        global_batch: kn.
        worker_batch: n.

    Returns:
        "read": how many records are read in all; "union": how many different ones;
        "overlap": how many of them more than once; "per_device": the fewest and the
        most that one device reads.
    """
    from tf_goyal import input_pipeline

    first = epoch * train_images // global_batch
    stop = -(-(epoch + 1) * train_images // global_batch)
    seen = np.zeros(train_images, np.int64)
    of_device = np.zeros(device.max() + 1, np.int64)
    chunk = max(1, _POSITIONS_AT_ONCE // global_batch)  # steps
    for step in range(first, stop, chunk):
        steps = np.arange(step, min(stop, step + chunk))
        positions = (
            steps[:, None, None] * global_batch
            + workers[:, None] * worker_batch
            + np.arange(worker_batch)
        )  # [steps, w, n]
        inside = positions // train_images == epoch
        records = input_pipeline.records_at(positions[inside], train_images, seed)
        seen += np.bincount(records, minlength=train_images)
        of_device += np.bincount(
            device, weights=inside.sum((0, 2)), minlength=len(of_device)
        ).astype(np.int64)
    return {
        "read": int(seen.sum()),
        "union": int(np.count_nonzero(seen)),
        "overlap": int(np.count_nonzero(seen > 1)),
        "per_device": [int(of_device.min()), int(of_device.max())],
    }


def refuse_failures(facts: Facts) -> None:
    """What the facts, once shown, say about the storage and the order.

    Raises:
        ValueError: something will not do.
    """
    if not facts.get("proof", {"holds": True})["holds"]:
        raise ValueError(
            "every record must come exactly once an epoch, but this order's counts "
            f"are {facts['proof']['epochs']}: this is a bug, report it with the flags"
        )
    storage = facts["storage"]
    if storage["free_bytes"] < storage["needed_bytes"]:
        raise ValueError(
            f"the disk of {storage['model_dir']} must have "
            f"{_mb(storage['needed_bytes'])} free for the checkpoints, but has "
            f"{_mb(storage['free_bytes'])}: free some or lower --keep_checkpoints"
        )


def _elements(variables: Sequence[Any]) -> int:
    return sum(math.prod(v.shape) for v in variables)


def _bytes(variables: Sequence[Any]) -> int:
    return sum(math.prod(v.shape) * np.dtype(v.dtype).itemsize for v in variables)


def _sum_bytes(settings: Config) -> int:
    """Bytes of one number of a step's sums: int64 fixed point, or float32."""
    return 8 if settings.reduction == "exact" else 4


def show(facts: Facts, *, list_variables: bool = False) -> None:
    """Prints the facts: framed tables on a terminal, aligned lines elsewhere."""
    console = Console(highlight=False)
    framed = console.is_terminal
    if not framed:
        console = Console(highlight=False, width=1000)  # nothing is wrapped
    with console.capture() as captured:
        for title, columns, rows in tables(facts, list_variables=list_variables):
            table = Table(
                *columns,
                show_header=any(columns),
                box=box.SIMPLE if framed else None,
                pad_edge=framed,
            )
            for row in rows:
                table.add_row(*(Text(cell) for cell in row))
            console.print(Text(title, style="bold"))
            console.print(table)
            console.print()
    for line in captured.get().splitlines():
        print(line.rstrip())


def tables(
    facts: Facts, *, list_variables: bool = False
) -> list[tuple[str, list[str], list[tuple]]]:
    """The facts as tables: title, column heads ("" for none), rows of texts."""
    found = facts["deviations"]
    count = len(found) or "none"
    return [
        ("Recipe as it will run", ["flag", "default"], _recipe_rows(facts)),
        (
            f"Deviations from the paper: {count}",
            ["what", "section", "paper", "this run", "known price"],
            [
                (d["name"], d["section"], d["paper"], d["run"], d["price"] or "-")
                for d in found
            ],
        ),
        ("Sizes", ["", ""], _size_rows(facts)),
        ("Layout", ["", ""], _layout_rows(facts["layout"])),
        (
            "Learning rate",
            ["at", "step", "epoch", "rate"],
            [_rate_row(point) for point in facts["learning_rate"]],
        ),
        ("Model", ["", ""], _model_rows(facts["model"], list_variables)),
        ("Memory and messages", ["", ""], _memory_rows(facts)),
        ("Cluster", ["", ""], _cluster_rows(facts["cluster"])),
        ("Data", ["", ""], _data_rows(facts)),
        ("Storage", ["", ""], _storage_rows(facts["storage"])),
    ]


def _recipe_rows(facts: Facts) -> list[tuple]:
    rows = []
    for name, value in facts["recipe"]["flags"].items():
        default = getattr(Config, name)
        changed = deviations.written(name, default) if value != default else ""
        rows.append((deviations.written(name, value), changed))
    return rows


def _size_rows(facts: Facts) -> list[tuple]:
    recipe = facts["recipe"]
    error = recipe["paper_top1_error"]
    rows = [
        ("n, images per virtual worker", f"{recipe['worker_batch']:,}"),
        ("k, virtual workers", f"{recipe['virtual_workers']:,}"),
        ("kn, images per step", f"{recipe['global_batch']:,}"),
        ("η̂, rate after warmup", f"{recipe['scaled_lr']:.6g}"),
        ("steps per epoch", f"{recipe['steps_per_epoch']:.2f}"),
        ("steps", f"{recipe['total_steps']:,}"),
    ]
    if error:
        text = f"{error['mean']:.2f} ± {error['std']:.2f} % without deviations"
        rows.append(("the paper's top-1 error", text))
    return rows


def _layout_rows(layout: Facts) -> list[tuple]:
    processes, each = layout["processes"], layout["devices_per_process"]
    shares = ", ".join(
        f"{_count(group['devices'], 'device')} with {group['workers']} each"
        for group in layout["devices_by_workers"]
    )
    rows = [
        ("devices", f"{_count(processes, 'process')} of {_count(each, 'device')}"),
        ("virtual workers", shares),
    ]
    if layout["devices"] <= _LISTED_DEVICES:
        for device, (first, stop) in enumerate(layout["workers"]):
            rows.append(
                (
                    f"process {device // each}, device {device % each}",
                    f"workers {first} to {stop - 1}",
                )
            )
    return rows


def _rate_row(point: Facts) -> tuple:
    rate = point["rate"]
    return (
        point["at"],
        f"{point['step']:,}",
        f"{point['epoch']:.3f}",
        "not reached" if rate is None else f"{rate:.6g}",
    )


def _model_rows(model: Facts, list_variables: bool) -> list[tuple]:
    names = model["decayed_variables"]
    rows = [
        ("parameters", f"{model['parameters']:,}"),
        ("BatchNorm running statistics", f"{model['running_statistics']:,}"),
        (
            "weight decay acts on",
            f"{len(names)} of {model['trainable_variables']} variables, "
            f"{model['decayed_parameters']:,} parameters",
        ),
    ]
    if list_variables:
        rows += [("decayed", name) for name in names]
    return rows


def _memory_rows(facts: Facts) -> list[tuple]:
    memory, messages = facts["memory"], facts["messages"]
    buckets = messages["buckets"]
    alone = "" if memory["buckets"] else " (one device: nothing is sent)"
    return [
        ("weights, per device", _mb(memory["weights"])),
        ("optimizer state, per device", _mb(memory["optimizer_state"])),
        ("gradients, per device", _mb(memory["gradients"])),
        ("buckets, per device", _mb(memory["buckets"])),
        (
            "all-reduce per step",
            f"{_mb(messages['bytes'])} of {messages['dtype']} in "
            f"{_count(len(buckets), 'bucket')}, the largest of {_mb(max(buckets))}"
            f"{alone}",
        ),
        ("images of one step, per process", _mb(memory["input_per_step"])),
    ]


def _cluster_rows(members: Facts) -> list[tuple]:
    rows = [
        (f"rank {rank}", address + (" (this process)" * (rank == members["rank"])))
        for rank, address in enumerate(members["addresses"])
    ]
    rows = rows or [("no TF_CONFIG", "this process trains alone")]
    return rows + [("note", note) for note in members["notes"]]


def _data_rows(facts: Facts) -> list[tuple]:
    data = facts["data"]
    rows = [("data set", f"{data['name']}, {data['classes']:,} classes")]
    for name, split in data["splits"].items():
        files = _count(split["files"], "file")
        rows.append(
            (
                name,
                f"{split['images']:,} images, {_mb(split['bytes'])} in {files} of "
                f"{split['folder']}",
            )
        )
    for each in facts.get("proof", {"epochs": []})["epochs"]:
        fewest, most = each["per_device"]
        rows.append(
            (
                f"order of epoch {each['epoch']}",
                f"union {each['union']:,} of {facts['proof']['records']:,} records, "
                f"overlap {each['overlap']}; {fewest:,} to {most:,} a device",
            )
        )
    return rows


def _storage_rows(storage: Facts) -> list[tuple]:
    folder = storage["model_dir"]
    created = " (will be created)" if storage["will_be_created"] else ""
    tried = storage["trial_write"]
    steps = ", ".join(f"step {step}" for step in storage["checkpoints"]) or "none"
    if storage["already_done"]:
        begin = f"nothing to do: step {storage['start_step']} is the last"
    elif storage["resumes"]:
        begin = f"goes on from step {storage['start_step']}"
    else:
        begin = "starts at step 0"
    return [
        ("folder", folder + created),
        ("trial write", f"done in {tried}" if tried else "left to rank 0"),
        ("free", _mb(storage["free_bytes"])),
        ("one checkpoint", _mb(storage["checkpoint_bytes"])),
        ("needed for checkpoints", _mb(storage["needed_bytes"])),
        ("checkpoints there", steps),
        (f"--resume={storage['resume']}", begin),
    ]


def _mb(count: int) -> str:
    return f"{count / MB:,.1f} MB"


def _count(number: int, noun: str) -> str:
    plural = {"process": "processes"}.get(noun, noun + "s")
    return f"{number:,} {noun if number == 1 else plural}"


if __name__ == "__main__":
    flags.run(main, define=define)
