import importlib.metadata
import importlib.util
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import datasets, records

ROOT = pathlib.Path(datasets.__file__).parents[1]
DIGITS = ROOT / "tf_goyal" / "data" / "digits"
RECORD = struct.pack("<QI", 0, 0) + bytes(4)  # one without data


def folder(path, train=2, validation=1, labels="cat\ndog\n", records_each=3):
    """A folder of shards named as the Model Garden names them."""
    path.mkdir(exist_ok=True)
    for split, shards in (("train", train), ("validation", validation)):
        for shard in range(shards):
            name = f"{split}-{shard:05d}-of-{shards:05d}"
            (path / name).write_bytes(RECORD * records_each)
    if labels is not None:
        (path / "labels.txt").write_text(labels)
    return path


def refused(name, data_dir="") -> str:
    with pytest.raises(ValueError) as error:
        datasets.load(name, str(data_dir))
    assert str(error.value).endswith(".")
    return str(error.value)


def read_labels(split: datasets.Split) -> np.ndarray:
    examples = records.Reader(split.index).read(range(len(split)))
    features = {"image/class/label": tf.io.FixedLenFeature([], tf.int64)}
    return tf.io.parse_example(examples, features)["image/class/label"].numpy()


def test_needs_no_tensorflow():
    code = (
        "import sys, tf_goyal.datasets as d; d.load('digits');"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_digits():
    digits = datasets.load("digits")
    assert digits.name == "digits"
    assert digits.labels == tuple("0123456789")
    assert digits.num_classes == 10
    assert (len(digits.train), len(digits.validation)) == (1500, 297)
    assert [pathlib.Path(file).name for file in digits.train.files] == [
        f"train-{shard:05d}-of-00004" for shard in range(4)
    ]


def test_digits_are_split_by_class():
    digits = datasets.load("digits")
    train = np.bincount(read_labels(digits.train))
    validation = np.bincount(read_labels(digits.validation))
    # The classes of the whole set, as scikit-learn describes it.
    assert (train + validation).tolist() == [
        *(178, 182, 177, 183, 181),
        *(182, 181, 179, 174, 180),
    ]
    assert set(validation) == {29, 30}


@pytest.fixture(scope="module")
def tool():
    """tools/make_digits.py as a module."""
    pytest.importorskip("sklearn", reason="the tool takes the digits from scikit-learn")
    pytest.importorskip("PIL", reason="the tool encodes with pillow")
    path = ROOT / "tools" / "make_digits.py"
    spec = importlib.util.spec_from_file_location("make_digits", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits_are_what_the_tool_writes(tool, tmp_path):
    """The embedded files come byte for byte from tools/make_digits.py."""
    tool.main(tmp_path)
    written = sorted(file.name for file in tmp_path.iterdir())
    assert len(written) == 6
    if importlib.metadata.version("pillow") != tool.PILLOW:
        pytest.skip(f"bytes are promised for pillow {tool.PILLOW} only")
    for name in written:
        assert (tmp_path / name).read_bytes() == (DIGITS / name).read_bytes(), name


def test_digits_are_small_and_clear(tool):
    """Under 1 MB; each decoded image is nearest to its own original, of all 1,797."""
    assert sum(file.stat().st_size for file in DIGITS.iterdir()) < 700_000
    digits = tool.load_digits()
    split = datasets.load("digits").validation
    examples = records.Reader(split.index).read(range(len(split)))
    features = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
    encoded = tf.io.parse_example(examples, features)["image/encoded"]
    originals = np.flatnonzero(tool.is_validation(digits.target))
    for image, original in zip(encoded, originals, strict=True):
        pixels = tf.cast(tf.io.decode_jpeg(image), tf.float32)  # [16, 16, 1]
        small = tf.nn.avg_pool2d(pixels[None], 2, 2, "VALID")[0, :, :, 0].numpy()
        distances = np.abs(digits.images * 255 / 16 - small).mean(axis=(1, 2))
        assert np.argmin(distances) == original


def test_digits_take_no_folder(tmp_path):
    assert "--data_dir" in refused("digits", tmp_path)


def test_unknown_name():
    message = refused("cifar")
    assert "digits, imagenet, tfrecord" in message and "'cifar'" in message


def test_tfrecord_folder(tmp_path):
    data = datasets.load("tfrecord", str(folder(tmp_path)))
    assert (len(data.train), len(data.validation)) == (6, 3)
    assert data.labels == ("cat", "dog")
    assert data.num_classes == 2
    assert data.train.name == "train"
    assert data.validation.files == (str(tmp_path / "validation-00000-of-00001"),)


def test_other_files_are_left_alone(tmp_path):
    folder(tmp_path)
    (tmp_path / "train-00000-of-00002.idx").write_bytes(b"other")
    (tmp_path / "train-list.txt").write_bytes(b"other")
    assert len(datasets.load("tfrecord", str(tmp_path)).train) == 6


@pytest.mark.parametrize("name", ["tfrecord", "imagenet"])
def test_no_folder_given(name):
    message = refused(name)
    assert "--data_dir" in message and f"--dataset={name}" in message


def test_folder_that_is_not_there(tmp_path):
    """D9: the wrong folder."""
    message = refused("tfrecord", tmp_path / "nowhere")
    assert "nowhere" in message and "train-00000-of-....." in message
    assert "No such file" in message
    (tmp_path / "file").touch()
    assert "Not a directory" in refused("tfrecord", tmp_path / "file")


def test_folder_with_something_else(tmp_path):
    """D9: the wrong folder."""
    assert "the folder is empty" in refused("tfrecord", tmp_path)
    for i in range(7):
        (tmp_path / f"n{i}.JPEG").touch()
    message = refused("tfrecord", tmp_path)
    assert "train-00000-of-" in message
    assert "found n0.JPEG, n1.JPEG, n2.JPEG, n3.JPEG, n4.JPEG and 2 more" in message


@pytest.mark.parametrize("split", ["train", "validation"])
def test_missing_split(tmp_path, split):
    """D9: only one of the two archives was prepared."""
    folder(tmp_path, **{split: 0})
    assert f"expected the {split} shards {split}-00000-of-" in refused(
        "tfrecord", tmp_path
    )


def test_missing_shards(tmp_path):
    """D9: 3 of 5 shards."""
    folder(tmp_path, train=5)
    for shard in (1, 4):
        (tmp_path / f"train-{shard:05d}-of-00005").unlink()
    message = refused("tfrecord", tmp_path)
    assert "expected 5 train shards; found 3" in message
    assert "train-00001-of-00005, train-00004-of-00005 missing" in message


def test_many_missing_shards_are_not_all_listed(tmp_path):
    folder(tmp_path, validation=9)
    for shard in range(1, 9):
        (tmp_path / f"validation-{shard:05d}-of-00009").unlink()
    message = refused("tfrecord", tmp_path)
    assert "expected 9 validation shards; found 1" in message
    assert "validation-00005-of-00009 and 3 more missing" in message


def test_two_sets_of_shards(tmp_path):
    folder(tmp_path, train=2)
    folder(tmp_path, train=4)
    assert "(-of-00002, -of-00004)" in refused("tfrecord", tmp_path)


def test_shard_beyond_the_total(tmp_path):
    folder(tmp_path)
    (tmp_path / "train-00002-of-00002").write_bytes(RECORD)
    assert "found train-00002-of-00002" in refused("tfrecord", tmp_path)


def test_no_records(tmp_path):
    folder(tmp_path, records_each=0)
    assert "the train shards hold no record" in refused("tfrecord", tmp_path)


def test_broken_shard_is_named(tmp_path):
    folder(tmp_path)
    (tmp_path / "train-00001-of-00002").write_bytes(RECORD[:-1])
    assert "train-00001-of-00002: the header at byte 0" in refused("tfrecord", tmp_path)


def test_labels_are_required(tmp_path):
    message = refused("tfrecord", folder(tmp_path, labels=None))
    assert "labels.txt" in message and "add it" in message


@pytest.mark.parametrize(
    "labels, said", [("", "empty"), ("cat\n\ndog\n", "line 2 is empty")]
)
def test_odd_labels(tmp_path, labels, said):
    assert said in refused("tfrecord", folder(tmp_path, labels=labels))


def test_labels_that_are_no_text(tmp_path):
    folder(tmp_path)
    (tmp_path / "labels.txt").write_bytes(b"\xff\xfe\xff")
    assert "UTF-8" in refused("tfrecord", tmp_path)


def test_imagenet_counts_are_checked(tmp_path):
    message = refused("imagenet", folder(tmp_path, labels=None))
    assert "1,281,167 train and 50,000 validation" in message
    assert "6 train and 3 validation" in message
    assert "--dataset=tfrecord" in message


@pytest.mark.parametrize("change", [-1, 0, 1])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_imagenet_has_exactly_its_records(tmp_path, monkeypatch, split, change):
    """§5.1: 1,281,167 and 50,000 images of 1000 classes."""
    counts = {"train": 1_281_167, "validation": 50_000}
    counts[split] += change

    def index_files(files):
        offset = np.zeros(counts[pathlib.Path(files[0]).name.split("-")[0]], np.int64)
        return records.Index(tuple(files), np.zeros_like(offset), offset, offset)

    monkeypatch.setattr(records, "index_files", index_files)
    folder(tmp_path, labels=None)
    if change:
        assert f"{counts[split]:,} {split}" in refused("imagenet", tmp_path)
        return
    imagenet = datasets.load("imagenet", str(tmp_path))
    assert (len(imagenet.train), len(imagenet.validation)) == (1_281_167, 50_000)
    assert imagenet.num_classes == 1000
    assert imagenet.labels[0] == "0" and imagenet.labels[999] == "999"


@pytest.mark.parametrize("lines", [999, 1001])
def test_imagenet_with_other_labels(tmp_path, lines):
    folder(tmp_path, labels="name\n" * lines)
    assert f"1000 lines; found {lines}" in refused("imagenet", tmp_path)
