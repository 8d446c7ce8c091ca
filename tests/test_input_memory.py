"""The memory of the input pipeline, added up by hand."""

import dataclasses

import pytest
from doctor_run import IMAGENET, goyal_8k, imagenet

from tf_goyal import doctor_tables, input_memory
from tf_goyal.image_folder import FolderSplit

IMAGE = 224 * 224 * 3


@pytest.fixture(scope="module")
def data():
    return imagenet()


def test_goyal_8k_on_one_server_of_8_devices(data):
    """32 processes: each has 8 workers of 32 images; 10 threads."""
    parts = input_memory.estimate(goyal_8k(input_threads=10), data, 32)
    step = 8 * 32 * IMAGE  # 36.75 MiB: two of them are made ahead
    assert (parts["threads"], parts["steps_ahead"]) == (10, 2)
    assert parts["pixels"] == 500 * 375
    assert parts["images"] == 4 * step
    assert parts["decoding"] == 10 * (15 * 500 * 375 + 11 * IMAGE)
    in_flight = 2 * 10 * 32 + 32 + 10
    assert parts["encoded"] == in_flight * 1000
    assert parts["evaluation"] == 4 * 32 * IMAGE + in_flight * 1000
    assert parts["order"] == 2 * 8 * IMAGENET
    assert parts["index"] == 20 * (IMAGENET + 50_000)
    assert parts["cache"] == 0
    names = ("images", "decoding", "encoded", "evaluation", "order", "index")
    assert parts["total"] == sum(parts[name] for name in names)


def test_one_process_alone(data):
    """256 workers make a step of 1,176 MiB: one ahead is enough."""
    parts = input_memory.estimate(goyal_8k(), data, 1)
    assert parts["steps_ahead"] == 1
    assert parts["images"] == 3 * 8192 * IMAGE
    assert input_memory.estimate(goyal_8k(prefetch=5), data, 1)["images"] == (
        7 * 8192 * IMAGE
    )


def test_the_fullest_process(data):
    """256 workers over 3 processes: 86 in the fullest."""
    parts = input_memory.estimate(goyal_8k(prefetch=1), data, 3)
    assert parts["images"] == 3 * 86 * 32 * IMAGE


def test_cache_and_largest_image(data):
    settings = goyal_8k(cache="memory", input_threads=1)
    parts = input_memory.estimate(settings, data, 32, most_pixels=1000)
    assert parts["cache"] == 1000 * (IMAGENET + 50_000)
    assert parts["decoding"] == 15 * 1000 + 11 * IMAGE
    rows = dict(doctor_tables._input_memory(parts).rows)
    assert rows["--cache=memory"] == "1,269.5 MB"
    assert rows["decoding: 1 thread, images of 1,000 pixels"] == "1.6 MB"
    assert rows["images: 2 steps ahead, one in use, one copied"] == "147.0 MB"


def test_a_folder_has_no_index(data, tmp_path):
    (tmp_path / "a.jpg").write_bytes(bytes(70))
    (tmp_path / "b.jpg").write_bytes(bytes(31))
    folder = FolderSplit("train", [str(tmp_path)], [0], [["a.jpg", "b.jpg"]])
    data = dataclasses.replace(data, train=folder)
    parts = input_memory.estimate(goyal_8k(input_threads=1), data, 256)
    assert parts["index"] == 20 * 50_000
    assert parts["order"] == 32
    assert parts["encoded"] == (2 * 32 + 32 + 1) * 51  # of 50.5 bytes
    assert "index of the records" in dict(doctor_tables._input_memory(parts).rows)
    parts = parts | {"index": 0}
    assert "index of the records" not in dict(doctor_tables._input_memory(parts).rows)
