import concurrent.futures

import numpy as np
import pytest
from pictures import bmp, write_numbered

from tf_goyal import records, shards


@pytest.fixture
def files(tmp_path):
    return [str(path) for path in write_numbered(tmp_path, "train", 3, 10)]


def test_a_split_of_an_index(files):
    split = shards.ShardSplit("train", records.index_files(files[::-1]))
    assert split.files == tuple(files) and len(split) == 10
    assert split.part_sizes.tolist() == [4, 3, 3]
    assert split.part_sizes.dtype == np.int64
    assert split.bytes == split.index.length.sum()
    assert split.read(9) == (bmp(9), 1)
    for record in (-1, 10):
        with pytest.raises(IndexError):
            split.read(record)


def test_empty_shards_are_parts_without_records(files, tmp_path):
    (tmp_path / "train-00000-of-00003").write_bytes(b"")
    split = shards.ShardSplit("train", records.index_files(files))
    assert split.part_sizes.tolist() == [0, 3, 3]


def test_broken_headers_do_not_count_as_bytes(files, tmp_path):
    path = tmp_path / "train-00000-of-00003"
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    split = shards.ShardSplit("train", records.index_files(files))
    assert split.index.length[0] == records.BROKEN
    assert split.bytes == split.index.length[1:].sum()


def test_many_threads(files):
    split = shards.ShardSplit("train", records.index_files(files))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        images = [image for image, _ in pool.map(split.read, list(range(10)) * 50)]
    assert images == [bmp(number) for number in range(10)] * 50


def test_features_that_are_given_hold_against_stored_ones(tmp_path):
    """The first start found other names, as where a JSON file was corrected."""
    both = ("image/encoded", "image/class/label")
    files = [str(path) for path in write_numbered(tmp_path, "train", 1, 4)]
    split, sample = shards.load("train", str(tmp_path), files)
    assert split.features == sample.features == both
    with pytest.raises(ValueError, match="all 4 .*because the feature image is not in"):
        shards.load("train", str(tmp_path), files, features=("image", "label"))


def test_other_counts_are_refused(files, tmp_path):
    split = shards.ShardSplit("train", records.index_files(files))
    counts = dict(zip(files, (4, 3, 3)))
    shards.require_counts(split, counts, "INFO")
    for change in (-1, 1):
        with pytest.raises(
            ValueError, match="00001-of-00003: expected .* as INFO says"
        ):
            shards.require_counts(split, counts | {files[1]: 3 + change}, "INFO")
