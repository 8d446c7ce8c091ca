"""D4: an epoch over the virtual workers is the data set, on any layout."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import cluster, datasets, input_pipeline, order_proof, records


def proof(n: int, k: int, devices: int, images: int) -> dict:
    return order_proof.prove(
        cluster.assign(k, devices),
        train_images=images,
        seed=0,
        global_batch=k * n,
        worker_batch=n,
    )


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
        (1, 1, 1, 1),
    ],
)
def test_d4_union_is_the_data_set_and_nothing_overlaps(n, k, devices, images):
    """D4, on 3 virtual workers laid out over 1, 2 and 3 devices, and on others."""
    found = proof(n, k, devices, images)
    assert found["holds"]
    assert [each["epoch"] for each in found["epochs"]] == [0, 1]
    for each in found["epochs"]:
        assert (each["read"], each["union"], each["overlap"]) == (images, images, 0)


def test_d4_records_of_each_device():
    """7 records, steps of 6: device 0 has positions 0, 1 and 6, the others two."""
    assert proof(2, 3, 3, 7)["epochs"][0]["per_device"] == [2, 3]


def test_d4_finds_what_is_missing_and_what_comes_twice():
    sizes = {"train_images": 24, "seed": 0, "global_batch": 12, "worker_batch": 4}
    missing = order_proof.prove([range(1), range(2, 3)], **sizes)
    assert not missing["holds"]
    assert missing["epochs"][0] == {
        "epoch": 0,
        "read": 16,
        "union": 16,
        "overlap": 0,
        "per_device": [8, 8],
    }
    twice = order_proof.prove([range(2), range(1, 3)], **sizes)
    assert not twice["holds"]
    assert twice["epochs"][1] == {
        "epoch": 1,
        "read": 32,
        "union": 24,
        "overlap": 8,
        "per_device": [16, 16],
    }


def test_d4_for_imagenet():
    """256 workers over 100 devices: of 156.39 steps each 12,500 to 15,000 records."""
    found = proof(32, 256, 100, images=1_281_167)
    assert found["holds"]
    fewest, most = found["epochs"][0]["per_device"]
    assert 156 * 2 * 32 <= fewest < most <= 157 * 3 * 32


def test_d4_is_what_the_input_pipeline_reads(tmp_path):
    """The counts of the proof are those of images really read: label = record."""
    images, n, k = 50, 4, 3
    jpeg = tf.io.encode_jpeg(tf.zeros([8, 8, 3], tf.uint8)).numpy()
    path = str(tmp_path / "train-00000-of-00001")
    with tf.io.TFRecordWriter(path) as writer:
        for label in range(images):
            features = {
                "image/encoded": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[jpeg])
                ),
                "image/class/label": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[label])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    data = datasets.Split("train", records.index_files([path]))
    seen = []  # records of each device
    for workers in cluster.assign(k, 2):
        batches = input_pipeline.train_batches(
            data,
            seed=0,
            global_batch=n * k,
            worker_batch=n,
            workers=workers,
            first_step=0,
            last_step=math.ceil(images / (n * k)),
            total_images=images,  # what fills the last step up has label -1
            image_size=8,
            classes=images,
        )
        labels = np.concatenate([labels.numpy().ravel() for _, labels in batches])
        seen.append(labels[labels >= 0])
    assert sorted(itertools.chain(*seen)) == list(range(images))
    found = proof(n, k, 2, images)["epochs"][0]
    assert found["per_device"] == sorted(map(len, seen))
