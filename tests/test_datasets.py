import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from pictures import bmp, write_numbered
from PIL import Image

from tf_goyal import datasets, examples, label_sample, records, shards

ROOT = pathlib.Path(datasets.__file__).parents[1]
DIGITS = ROOT / "tf_goyal" / "data" / "digits"


def folder(path, train=2, validation=1, labels="cat\ndog\n", records_each=3, **options):
    """A folder of shards named as the Model Garden names them."""
    for split, count in (("train", train), ("validation", validation)):
        if count:
            write_numbered(path, split, count, count * records_each, **options)
    if labels is not None:
        (path / "labels.txt").write_text(labels)
    return path


def refused(name, data_dir="", **options) -> str:
    with pytest.raises(ValueError) as error:
        datasets.load(name, str(data_dir), **options)
    assert str(error.value).endswith(".")
    return str(error.value)


def read(split: datasets.Split) -> list[tuple[bytes, int]]:
    return [split.read(record) for record in range(len(split))]


def test_needs_no_tensorflow():
    code = (
        "import sys, tf_goyal.datasets as d; d.load('digits');"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=180)


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
    train = np.bincount([label for _, label in read(digits.train)])
    validation = np.bincount([label for _, label in read(digits.validation)])
    # The classes of the whole set, as scikit-learn describes it.
    assert (train + validation).tolist() == [
        *(178, 182, 177, 183, 181),
        *(182, 181, 179, 174, 180),
    ]
    assert set(validation) == {29, 30}


@pytest.fixture(scope="module")
def tool():
    """tools/make_digits.py as a module."""
    path = ROOT / "tools" / "make_digits.py"
    spec = importlib.util.spec_from_file_location("make_digits", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def differences(tool, folder):
    """What is other in a folder than in the embedded files: sentences, or none.

    Byte for byte if Pillow is the tool's. Another one may round otherwise: then the
    records and labels are the same, and the pixels of each image are off by at most 4
    levels of 255 on average and 20 in one place. That is little more than the JPEGs
    lose (2.8 and 16), and less than another way to resize costs any image (4.5).
    """
    names = sorted(file.name for file in folder.iterdir())
    if len(names) != 6 or {*names, "README.md"} != {*os.listdir(DIGITS)}:
        return [f"the files are {names}"]
    same_pillow = importlib.metadata.version("pillow") == tool.PILLOW
    to_the_byte = names if same_pillow else ["labels.txt"]
    found = [
        f"{name} has other bytes"
        for name in to_the_byte
        if (folder / name).read_bytes() != (DIGITS / name).read_bytes()
    ]
    for name in sorted({*names} - {*to_the_byte}):
        made, embedded = (
            read(shards.ShardSplit("train", records.index_files([str(path / name)])))
            for path in (folder, DIGITS)
        )
        if [label for _, label in made] != [label for _, label in embedded]:
            found.append(f"{name} has other labels")
            continue
        for (one, _), (other, _) in zip(made, embedded, strict=True):
            off = np.abs(grey(one) - grey(other))
            if not (off.mean() <= 4 and off.max() <= 20):
                found.append(f"{name}: pixels are off")
    return found


def grey(encoded):
    return tf.cast(tf.io.decode_jpeg(encoded), tf.float32).numpy()  # [16, 16, 1]


def test_digits_are_what_the_tool_writes(tool, tmp_path):
    tool.main(tmp_path)
    assert differences(tool, tmp_path) == []


@pytest.mark.parametrize("other", ["packs", "rounds", "resizes"])
def test_digits_as_another_pillow_writes_them(tool, tmp_path, monkeypatch, other):
    """Other bytes, or each pixel off by up to 1 level, will do; other pixels not."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0")
    random = np.random.default_rng(0)

    class Picture:
        def __init__(self, image):
            self.image = image

        def resize(self, size, resampling):
            if other == "resizes":
                resampling = Image.Resampling.BILINEAR
            pixels = np.asarray(self.image.resize(size, resampling), int)
            if other == "rounds":
                pixels = pixels + random.integers(-1, 2, pixels.shape)
            pixels = np.clip(pixels, 0, 255).astype(np.uint8)
            return Picture(Image.fromarray(pixels))

        def save(self, file, kind, **options):
            self.image.save(file, kind, **options | {"optimize": False})

    pillow = types.SimpleNamespace(
        fromarray=lambda pixels: Picture(Image.fromarray(pixels)),
        Resampling=Image.Resampling,
    )
    monkeypatch.setattr(tool, "Image", pillow)
    tool.main(tmp_path)
    shard = "validation-00000-of-00001"
    assert (tmp_path / shard).read_bytes() != (DIGITS / shard).read_bytes()
    found = differences(tool, tmp_path)
    if other == "resizes":  # 297 images of validation, 1,500 of training
        assert len(found) == 1797 and all("pixels are off" in why for why in found)
    else:
        assert found == []


def test_digits_are_small_and_clear(tool):
    """Under 1 MB; each decoded image is nearest to its own original, of all 1,797."""
    assert sum(file.stat().st_size for file in DIGITS.iterdir()) < 700_000
    digits = tool.load_digits()
    encoded = [image for image, _ in read(datasets.load("digits").validation)]
    originals = np.flatnonzero(tool.is_validation(digits.target))
    for image, original in zip(encoded, originals, strict=True):
        pixels = tf.cast(tf.io.decode_jpeg(image), tf.float32)  # [16, 16, 1]
        small = tf.nn.avg_pool2d(pixels[None], 2, 2, "VALID")[0, :, :, 0].numpy()
        distances = np.abs(digits.images * 255 / 16 - small).mean(axis=(1, 2))
        assert np.argmin(distances) == original


def test_digits_leave_the_package_alone(tmp_path, monkeypatch):
    """It may be read-only: nothing is stored, in no place."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    before = sorted(os.listdir(DIGITS))
    datasets.load("digits")
    assert sorted(os.listdir(DIGITS)) == before and len(before) == 7
    assert not (tmp_path / "home").exists()


def test_digits_take_no_folder(tmp_path):
    assert "--data_dir" in refused("digits", tmp_path)


def test_unknown_name():
    message = refused("cifar")
    assert "digits, imagenet, tfrecord, folder, tfds:NAME" in message
    assert "'cifar'" in message


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
    (tmp_path / "train-00002-of-00002").touch()
    assert "found train-00002-of-00002" in refused("tfrecord", tmp_path)


def test_no_records(tmp_path):
    folder(tmp_path, records_each=0)
    assert "the train shards hold no record" in refused("tfrecord", tmp_path)


def test_a_shard_that_is_something_else_is_named(tmp_path):
    folder(tmp_path)
    (tmp_path / "train-00001-of-00002").write_bytes(b"\xff\xd8\xff\xe0 a JPEG" * 9)
    message = refused("tfrecord", tmp_path)
    assert "train-00001-of-00002: must be an uncompressed TFRecord file" in message


@pytest.mark.parametrize("shards_of_train, validation", [(3, 1), (1, 2)])
def test_any_number_of_shards(tmp_path, shards_of_train, validation):
    """D1."""
    folder(tmp_path, train=shards_of_train, validation=validation, records_each=4)
    data = datasets.load("tfrecord", str(tmp_path))
    assert data.train.part_sizes.tolist() == [4] * shards_of_train
    assert data.train.part_sizes.dtype == np.int64
    expected = [(bmp(i), i % 2) for i in range(4 * shards_of_train)]
    assert read(data.train) == expected
    assert len(data.validation) == 4 * validation


@pytest.mark.parametrize("files", [4, 8, 16])
def test_the_same_records_in_other_files_are_the_same_sequence(tmp_path, files):
    """D3."""
    write_numbered(tmp_path, "train", files, 50)
    folder(tmp_path, train=0)
    train = datasets.load("tfrecord", str(tmp_path)).train
    assert read(train) == [(bmp(i), i % 2) for i in range(50)]
    assert len(train.files) == files and train.part_sizes.sum() == 50


def test_places_are_named(tmp_path):
    train = datasets.load("tfrecord", str(folder(tmp_path))).train
    path = tmp_path / "train-00001-of-00002"
    place = int(records.index_files([str(path)]).offset[2])
    assert train.where(5) == f"{path}, record 2 of the file at byte {place}"
    assert train.bytes == sum(
        file.stat().st_size for file in tmp_path.glob("train-*")
    ) - (6 * 16)
    train.will_read(5)


@pytest.mark.parametrize("features", shards.FEATURES)
def test_names_of_features_are_found(tmp_path, features):
    """Those of the Model Garden and those of TFDS, each split for itself."""
    folder(tmp_path, features=features)
    data = datasets.load("tfrecord", str(tmp_path))
    assert data.train.features == data.validation.features == features
    assert data.train.read(1) == (bmp(1), 1)


def test_names_of_features_are_found_behind_a_broken_record(tmp_path):
    folder(tmp_path, features=shards.FEATURES[1])
    path = tmp_path / "train-00000-of-00002"
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    train = datasets.load("tfrecord", str(tmp_path)).train
    assert train.features == shards.FEATURES[1]
    with pytest.raises(records.BadRecord, match="header"):
        train.read(0)
    assert train.read(1) == (bmp(1), 1)


def test_other_features_are_named(tmp_path):
    folder(tmp_path, features=("image/encoded", "y"))
    message = refused("tfrecord", tmp_path)
    assert "train-00000-of-00002, record 0 of the file" in message
    assert "image/class/label, or image and label; found image/encoded, y" in message


def test_records_that_are_no_examples(tmp_path):
    folder(tmp_path)
    path = tmp_path / "train-00000-of-00002"
    path.write_bytes(records.framed(b"\xff\xd8\xff") * 20)
    message = refused("tfrecord", tmp_path)
    assert "record 0 of the file" in message and "tf.train.Example" in message
    assert "all 16 records that were tried are broken" in message


def test_a_record_without_an_image_is_bad(tmp_path):
    folder(tmp_path)
    with open(tmp_path / "train-00001-of-00002", "ab") as file:
        file.write(records.framed(b""))
    train = datasets.load("tfrecord", str(tmp_path)).train
    with pytest.raises(records.BadRecord, match="image/encoded is not in the Example"):
        train.read(6)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_d5_a_split_without_a_single_image(tmp_path, split):
    folder(tmp_path)
    text = {"image/encoded": b"text", "image/class/label": 1}
    paths = sorted(tmp_path.glob(f"{split}-*"))
    for path in paths:
        path.write_bytes(records.framed(examples.encode(text)) * 2)
    for _ in range(2):
        message = refused("tfrecord", tmp_path)
        assert f"{paths[0]}, record 0 of the file" in message
        assert "because the image is no JPEG, PNG, GIF or BMP" in message
    with open(paths[-1], "ab") as file:  # one good image is enough
        good = {**text, "image/encoded": bmp(0)}
        file.write(records.framed(examples.encode(good)))
    datasets.load("tfrecord", str(tmp_path))


def test_a_pipe_named_like_a_shard(tmp_path):
    folder(tmp_path)
    path = tmp_path / "validation-00000-of-00001"
    path.unlink()
    os.mkfifo(path)
    assert f"{path}: must be a TFRecord file, but is" in refused("tfrecord", tmp_path)


def damaged(path, damage: str):
    """One record of the train split's second shard becomes bad."""
    folder(path)
    shard = path / "train-00001-of-00002"
    offset = int(records.index_files([str(shard)]).offset[-1])
    data = bytearray(shard.read_bytes())
    if damage == "cut":
        data = data[:-10]
    else:
        place = {"length": -12, "length CRC": -4, "data": 20, "data CRC": None}[damage]
        data[len(data) - 1 if place is None else offset + place] ^= 16
    shard.write_bytes(data)


@pytest.mark.parametrize("damage", ["length", "length CRC", "data", "data CRC", "cut"])
def test_a_broken_record_is_left_to_the_run(tmp_path, damage):
    """D6: the others keep their numbers, and a second start finds the same."""
    damaged(tmp_path, damage)
    for _ in range(2):
        data = datasets.load("tfrecord", str(tmp_path))
        assert len(data.train) == 6
        with pytest.raises(records.BadRecord):
            data.train.read(5)
        good = [data.train.read(record) for record in range(5)]
        assert good == [(bmp(i), i % 2) for i in range(5)]
        assert data.train.bytes > 0


def test_checksums_are_not_compared_when_not_asked_for(tmp_path):
    damaged(tmp_path, "data CRC")
    train = datasets.load("tfrecord", str(tmp_path), verify=False).train
    assert train.read(5) == (bmp(5), 1)


def test_the_base_of_the_labels_is_declared(tmp_path):
    """D7: labels 1 ... 1000."""
    names = "".join(f"class {i}\n" for i in range(1000))
    folder(tmp_path, labels=names, records_each=600, label=lambda i: i % 1000 + 1)
    for _ in range(2):  # the second time from the stored sample
        message = refused("tfrecord", tmp_path)
        assert "train-00001-of-00002, record 399 of the file" in message
        assert "from 0 to 999" in message and "is 1000," in message
        assert "set --label_offset=1, which fits" in message
    data = datasets.load("tfrecord", str(tmp_path), label_offset=1)
    assert data.train.read(0)[1] == 1  # as stored
    assert "set --label_offset=1," in refused("tfrecord", tmp_path, label_offset=2)


def test_labels_of_the_validation_split_are_checked_too(tmp_path):
    """D7."""
    folder(tmp_path, train=0, label=lambda i: i)
    write_numbered(tmp_path, "train", 1, 4)
    message = refused("tfrecord", tmp_path)
    assert "validation-00000-of-00001, record 2 of the file" in message
    assert "there must be more classes" in message


def test_the_base_of_the_digits():
    """D7."""
    message = refused("digits", label_offset=1)
    assert "set --label_offset=0, which fits" in message


def test_stored_labels_are_not_read_again(tmp_path, monkeypatch):
    data_dir = str(folder(tmp_path))
    datasets.load("tfrecord", data_dir)
    monkeypatch.setattr(label_sample, "take", None)
    monkeypatch.setattr(records, "index_each", None)
    assert len(datasets.load("tfrecord", data_dir).train) == 6


@pytest.mark.parametrize("name", ["imagenet", "tfrecord"])
@pytest.mark.parametrize(
    "there, dataset",
    [
        ("imagenet2012-train.tfrecord-00000-of-01024", "tfds:imagenet2012"),
        ("imagenet2012/5.1.0/x", "tfds:imagenet2012"),
        ("mnist-train.tfrecord-00000-of-00001", "tfds:mnist"),
        ("train/cat/1.jpg", "folder"),
    ],
)
def test_a_folder_for_another_dataset(tmp_path, name, there, dataset):
    """D9."""
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).touch()
    message = refused(name, tmp_path)
    assert "expected the train shards" in message
    assert f"use --dataset={dataset}" in message


def test_archives_are_to_be_prepared(tmp_path):
    """D9."""
    (tmp_path / "ILSVRC2012_img_train.tar").touch()
    assert "tools/prepare_imagenet.py" in refused("imagenet", tmp_path)


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

    def load(name, folder, files, **options):
        offset = np.zeros(counts[name], np.int64)
        index = records.Index(tuple(files), np.zeros_like(offset), offset, offset)
        zero = np.zeros(1, np.int64)
        sample = label_sample.LabelSample(shards.FEATURES[0], zero, zero)
        return shards.ShardSplit(name, index), sample

    monkeypatch.setattr(shards, "load", load)
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
