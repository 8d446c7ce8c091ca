"""What doctor finds out about a run: functions that return JSON values.

Nothing here changes anything, but that a network is built in the host's memory.
"""

import collections
import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_goyal import build, checkpoint, files, records, reduction_choice
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config
from tf_goyal.data_report import spread
from tf_goyal.datasets import Dataset, Split
from tf_goyal.deviations import deviations as deviations_of
from tf_goyal.deviations import paper_error
from tf_goyal.sgd import SGD
from tf_goyal.shards import ShardSplit
from tf_goyal.storage import free_bytes

Facts = dict[str, Any]  # JSON values


def on_cpu(settings: Config, data: Dataset) -> tuple[keras.Model, SGD]:
    """The run's network and its built optimizer, in the memory of the host."""
    with tf.device("CPU:0"):
        network = build.model(settings, data.num_classes)
        optimizer = build.optimizer(settings, len(data.train))
        optimizer.build(network.trainable_variables)
    return network, optimizer


def recipe(settings: Config, data: Dataset) -> Facts:
    """Every setting that changes what is computed, and the sizes that follow."""
    train_images = len(data.train)
    names = (*settings.recipe_fields, "epochs", "steps")
    error = paper_error(settings)
    return {
        "flags": {name: getattr(settings, name) for name in names},
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


def deviations(settings: Config, data: Dataset) -> list[Facts]:
    """What the run does otherwise than the paper."""
    found = deviations_of(
        settings,
        train_images=len(data.train),
        eval_images=len(data.validation),
        classes=data.num_classes,
    )
    return [dataclasses.asdict(each) for each in found]


def layout(processes: int, assigned: list[range]) -> Facts:
    """Which virtual workers lie where, given those of each device."""
    counts = collections.Counter(map(len, assigned))
    return {
        "processes": processes,
        "devices_per_process": len(assigned) // processes,
        "devices": len(assigned),
        "devices_by_workers": [
            {"workers": workers, "devices": counts[workers]}
            for workers in sorted(counts, reverse=True)
        ],
        # [first, one past the last] of each device
        "workers": [[workers.start, workers.stop] for workers in assigned],
    }


def learning_rate(settings: Config, train_images: int) -> list[Facts]:
    """The rate of the steps at which it changes its course (§2.2, §5.1).

    Returns:
        A row for each; its rate is None where the run ends before.
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
    schedule = build.learning_rate(settings, train_images)
    return [
        {
            "at": at,
            "step": step,
            "epoch": settings.epoch_of(step, train_images),
            "rate": schedule.value(step) if step < total else None,
        }
        for at, step in points
        if step >= 0  # nothing is before a boundary at epoch 0
    ]


def model(network: keras.Model, optimizer: SGD) -> Facts:
    """Numbers of parameters, and what weight decay acts on (§3, remark 1)."""
    return {
        "parameters": _elements(network.trainable_variables),
        "running_statistics": _elements(network.non_trainable_variables),
        "trainable_variables": len(network.trainable_variables),
        "decayed_variables": [v.path for v in optimizer.decayed_variables],
        "decayed_parameters": _elements(optimizer.decayed_variables),
    }


def memory(
    settings: Config, network: keras.Model, optimizer: SGD, processes: int, devices: int
) -> Facts:
    """Bytes on each device, and of one step's images in the fullest process.

    Activations, which depend on n and on the kernels, come on top.

    Args:
        settings: of the run.
        network: the run's.
        optimizer: the run's, built.
        processes: that train together.
        devices: of all processes.
    """
    workers = math.ceil(settings.virtual_workers / processes)
    image = settings.image_size**2 * 3  # bytes: uint8, 3 channels
    label = 4  # bytes: int32
    buckets = reduction_choice.message_sizes(settings, network)
    return {
        "weights": _bytes(network.variables),
        "optimizer_state": _bytes(optimizer.variables),
        "gradients": _elements(network.trainable_variables) * _sum_bytes(settings),
        "buckets": sum(buckets) if devices > 1 else 0,
        "input_per_step": workers * settings.worker_batch * (image + label),
    }


def messages(settings: Config, network: keras.Model) -> Facts:
    """The buckets in which a step's sums travel between devices (§4)."""
    buckets = reduction_choice.plan(settings, network)
    return {
        "dtype": "int64" if settings.reduction == "exact" else settings.gradient_dtype,
        "bytes": sum(bucket.bytes for bucket in buckets),
        "buckets": [bucket.bytes for bucket in buckets],
    }


def cluster(members: Cluster) -> Facts:
    """Who trains together, and what was noted when that was read."""
    return {
        "processes": members.processes,
        "addresses": list(members.workers),
        "rank": members.rank,
        "notes": list(members.notes),
    }


def data(dataset: Dataset) -> Facts:
    """Files, images and classes; sizes of the records where there is an index."""
    return {
        "name": dataset.name,
        "classes": dataset.num_classes,
        "splits": {
            split.name: {
                "folder": os.path.dirname(split.files[0]),
                "files": len(split.files),
                "images": len(split),
                "bytes": split.bytes,
                "images_per_file": spread(split.part_sizes),
                "record_bytes": _record_bytes(split),
            }
            for split in (dataset.train, dataset.validation)
        },
    }


def _record_bytes(split: Split) -> Facts | None:
    """Of the records whose headers are not broken."""
    if not isinstance(split, ShardSplit):
        return None
    length = split.index.length
    return spread(length[length != records.BROKEN])


def storage(
    settings: Config,
    train_images: int,
    network: keras.Model,
    optimizer: SGD,
    tried: Path | None,
    start_step: int,
) -> Facts:
    """The run's folder: what is there, where a run starts, what room it needs.

    Args:
        settings: of the run.
        train_images: N.
        network: the run's.
        optimizer: the run's, built.
        tried: where the trial write was done; None where this process writes nothing.
        start_step: steps done in the checkpoint that train would go on from.
    """
    model_dir = files.path(settings.model_dir)
    if files.is_local(model_dir):
        model_dir = model_dir.absolute()
    found = checkpoint.steps(settings.model_dir)
    size = _bytes(network.variables) + _bytes(optimizer.variables)
    # One more than --keep_checkpoints is there while the newest is being written.
    kept = settings.epochs // settings.keep_every if settings.keep_every else 0
    more = max(0, settings.keep_checkpoints + 1 + int(kept) - len(found))
    return {
        "model_dir": str(model_dir),
        "will_be_created": not model_dir.exists(),
        "trial_write": tried and str(tried),
        "checkpoints": found,
        "resume": settings.resume,
        "resumes": bool(found),
        "start_step": start_step,
        "already_done": start_step >= settings.total_steps(train_images),
        "checkpoint_bytes": size,
        "needed_bytes": size * more if tried else 0,
        "free_bytes": free_bytes(settings.model_dir),
    }


def _elements(variables: Sequence[Any]) -> int:
    return sum(math.prod(v.shape) for v in variables)


def _bytes(variables: Sequence[Any]) -> int:
    return sum(math.prod(v.shape) * np.dtype(v.dtype).itemsize for v in variables)


def _sum_bytes(settings: Config) -> int:
    """Bytes of one number of a step's sums: int64 fixed point, or float32."""
    return 8 if settings.reduction == "exact" else 4
