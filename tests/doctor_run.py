"""A run for the tests of doctor: goyal_8k on 32 servers of 8 devices (§5.1)."""

import functools
from pathlib import Path

import numpy as np

from tf_goyal import cluster, datasets, doctor, records
from tf_goyal.config import Config
from tf_goyal.shards import ShardSplit

IMAGENET = 1_281_167


def split(name: str, images: int, files: int) -> ShardSplit:
    """A split of records of 1000 bytes that are nowhere."""
    names = tuple(f"/images/{name}-{i:05d}-of-{files:05d}" for i in range(files))
    index = records.Index(
        files=names,
        file=np.sort(np.arange(images, dtype=np.int32) % files),
        offset=np.zeros(images, np.int64),
        length=np.full(images, 1000, np.int64),
    )
    return ShardSplit(name, index)


def imagenet() -> datasets.Dataset:
    labels = tuple(map(str, range(1000)))
    train_split = split("train", IMAGENET, 1024)
    validation = split("validation", 50_000, 128)
    return datasets.Dataset("imagenet", train_split, validation, labels)


def goyal_8k(**changes) -> Config:
    return Config(**{"model_dir": "run", "data_dir": "/images"} | changes)


@functools.cache
def facts() -> dict:
    """All facts of the run, whose folder is not there."""
    here = Path(__file__).parent
    settings = goyal_8k(model_dir=str(here / "run"))
    return doctor.gather(
        settings,
        cluster.Cluster(),
        imagenet(),
        processes=32,
        assigned=cluster.assign(settings.virtual_workers, 32 * 8),
        tried=here,
        start_step=0,
    )
