"""D4: an epoch over the virtual workers is the data set, on any layout."""

import itertools
import math

import numpy as np
import pytest
from pictures import jpeg, split

from tf_goyal import build, cluster, input_pipeline, order_proof
from tf_goyal.config import Config
from tf_goyal.image_order import ImageOrder
from tf_goyal.samples import Labels, Sampler


def order(n: int, k: int, images: int, shuffle: str, parts: int = 3) -> ImageOrder:
    """The order of a run over shards of nearly the same size."""
    settings = Config(shuffle=shuffle, global_batch=k * n, worker_batch=n)
    return build.order(
        settings, np.bincount(np.arange(images) % parts, minlength=parts)
    )


def proof(n: int, k: int, devices: int, images: int, shuffle="global", parts=3):
    return order_proof.prove(
        cluster.assign(k, devices),
        order(n, k, images, shuffle, parts),
        global_batch=k * n,
        worker_batch=n,
    )


@pytest.mark.parametrize("shuffle", ["global", "streaming"])
@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize(
    ("n", "k", "devices", "images"),
    [
        (2, 3, 1, 7),  # an epoch ends inside of a step
        (2, 3, 2, 7),
        (2, 3, 3, 7),
        (4, 3, 3, 12),  # an epoch is one step
        (4, 3, 3, 13),
        (4, 3, 2, 11),  # an epoch is less than a step
        (5, 8, 3, 1000),
        (32, 8, 8, 9000),  # more than a stream's window for each worker
        (1, 1, 1, 1),
    ],
)
def test_d4_union_is_the_data_set_and_nothing_overlaps(
    n, k, devices, images, parts, shuffle
):
    """D4, on 3 virtual workers laid out over 1, 2 and 3 devices, and on others."""
    found = proof(n, k, devices, images, shuffle, parts)
    assert found["holds"]
    assert [each["epoch"] for each in found["epochs"]] == [0, 1]
    for each in found["epochs"]:
        assert (each["read"], each["union"], each["overlap"]) == (images, images, 0)


def test_d4_records_of_each_device():
    """7 records, steps of 6: device 0 has positions 0, 1 and 6, the others two."""
    assert proof(2, 3, 3, 7)["epochs"][0]["per_device"] == [2, 3]


@pytest.mark.parametrize("shuffle", ["global", "streaming"])
def test_d4_finds_what_is_missing_and_what_comes_twice(shuffle):
    sizes = {"global_batch": 12, "worker_batch": 4}
    records = order(4, 3, 24, shuffle)
    missing = order_proof.prove([range(1), range(2, 3)], records, **sizes)
    assert not missing["holds"]
    assert missing["epochs"][0] == {
        "epoch": 0,
        "read": 16,
        "union": 16,
        "overlap": 0,
        "per_device": [8, 8],
    }
    twice = order_proof.prove([range(2), range(1, 3)], records, **sizes)
    assert not twice["holds"]
    assert twice["epochs"][1] == {
        "epoch": 1,
        "read": 32,
        "union": 24,
        "overlap": 8,
        "per_device": [16, 16],
    }


@pytest.mark.parametrize("shuffle", ["global", "streaming"])
def test_d4_for_imagenet(shuffle):
    """256 workers over 100 devices: of 156.39 steps each 12,500 to 15,000 records."""
    found = proof(32, 256, 100, 1_281_167, shuffle, parts=1024)
    assert found["holds"]
    fewest, most = found["epochs"][0]["per_device"]
    assert 156 * 2 * 32 <= fewest < most <= 157 * 3 * 32


@pytest.mark.parametrize("shuffle", ["global", "streaming"])
def test_d4_is_what_the_input_pipeline_reads(tmp_path, shuffle):
    """The counts of the proof are those of images really read: label = record."""
    images, n, k = 50, 4, 3
    data = split(tmp_path, [jpeg(8, 8)] * images, shards=3)
    settings = Config(shuffle=shuffle, global_batch=n * k, worker_batch=n)
    sampler = Sampler(
        data,
        build.order(settings, data.part_sizes),
        Labels(images, 0),
        seed=0,
        total_images=images,  # what fills the last step up has label -1
        min_crop_area=1.0,
        horizontal_flip=False,
    )
    seen = []  # records of each device
    for workers in cluster.assign(k, 2):
        batches = input_pipeline.TrainBatches(
            sampler,
            global_batch=n * k,
            worker_batch=n,
            workers=workers,
            first_step=0,
            last_step=math.ceil(images / (n * k)),
            image_size=8,
        )
        labels = np.concatenate([labels.numpy().ravel() for _, labels, _ in batches])
        seen.append(labels[labels >= 0])
    assert sorted(itertools.chain(*seen)) == list(range(images))
    found = order_proof.prove(
        cluster.assign(k, 2),
        build.order(settings, data.part_sizes),
        global_batch=n * k,
        worker_batch=n,
    )
    assert found["epochs"][0]["per_device"] == sorted(map(len, seen))
