"""tools/prepare_imagenet.py: from images to shards and their manifest."""

import hashlib
import io
import json
import tarfile

import numpy as np
from PIL import Image
from preparation import (
    CLASSES,
    ODD,
    SYNSETS,
    TRAIN,
    VALIDATION,
    add,
    by_name,
    contents,
    make_imagenet_like,
    messages,
    pixels,
    prepare,
    train_name,
)

from tf_goyal import records

pytest_plugins = ["preparation_fixtures"]


def test_each_usable_image_is_stored_once_with_its_label_and_its_own_bytes(
    like, prepared
):
    found = by_name(prepared, "train")
    assert len(messages(prepared, "train")) == len(found) == TRAIN - 2
    converted = {train_name(ODD["cmyk"]), train_name(ODD["png"])}
    broken = {train_name(ODD["cut off"]), train_name(ODD["empty"])}
    assert set(like.images) - set(found) == broken
    for name, (image, label) in found.items():
        assert label == SYNSETS.index(name.split("/")[0])
        assert (image == like.images[name]) == (name not in converted), name
    validation = by_name(prepared, "validation")
    assert len(validation) == VALIDATION - 2
    names = sorted(like.validation_images)
    for name, synset in zip(names, like.synsets, strict=True):
        if f"{synset}/{name}" in validation:
            label = validation[f"{synset}/{name}"][1]
            assert SYNSETS[label] == synset


def test_cmyk_and_png_become_the_rgb_that_pillow_makes_of_them(like, prepared):
    """Case D5."""
    found = by_name(prepared, "train")
    for kind in ("cmyk", "png"):
        name = train_name(ODD[kind])
        image = Image.open(io.BytesIO(found[name][0]))
        assert (image.format, image.mode) == ("JPEG", "RGB")
        wanted = pixels(like.images[name])
        assert np.abs(pixels(found[name][0]) - wanted).mean() < 4  # levels of 255


def test_the_manifest_tells_what_is_there(like, prepared):
    manifest = json.loads((prepared / "manifest.json").read_text())
    assert manifest["format"] == 1 and manifest["classes"] == CLASSES
    assert manifest["options"] == {
        "train_shards": 7,
        "validation_shards": 1,
        "max_side": 0,
        "quality": 0,
    }
    train = manifest["splits"]["train"]
    # 70 images, i % 3 is the class: 24, 23, 23. Broken are 4 (class 1) and 5 (class 2).
    assert (ODD["cut off"], ODD["empty"]) == (4, 5)
    assert train["per_class"] == {"0": 24, "1": 22, "2": 22}
    assert train["records"] == TRAIN - 2
    left_out = {one["image"]: one["reason"] for one in train["left_out"]}
    assert "0 bytes" in left_out[train_name(ODD["empty"])]
    assert "truncated" in left_out[train_name(ODD["cut off"])]
    assert len(left_out) == 2
    kinds = {one["image"]: one["from"] for one in train["converted"]}
    assert kinds == {train_name(ODD["cmyk"]): "CMYK", train_name(ODD["png"]): "PNG"}
    validation = manifest["splits"]["validation"]
    assert sum(validation["per_class"].values()) == VALIDATION - 2
    for split, shards in (("train", 7), ("validation", 1)):
        described = manifest["splits"][split]["shards"]
        names = [f"{split}-{part:05d}-of-{shards:05d}" for part in range(shards)]
        assert [shard["file"] for shard in described] == names
        for shard in described:
            data = (prepared / shard["file"]).read_bytes()
            assert len(data) == shard["bytes"]
            assert hashlib.sha256(data).hexdigest() == shard["sha256"]
            index = records.index_files([str(prepared / shard["file"])])
            assert len(index) == shard["records"]
    assert (prepared / "labels.txt").read_text() == "".join(f"{s}\n" for s in SYNSETS)
    assert len(list(prepared.iterdir())) == 7 + 1 + 2  # shards, labels and manifest


def test_the_records_are_the_same_in_1_7_and_64_shards(like, prepared, tmp_path):
    wanted = messages(prepared, "train")
    for shards in (1, 64):
        folder = tmp_path / str(shards)
        arguments = [f"--train_shards={shards}", "--validation_shards=3", *like.flags]
        assert prepare(f"--data_dir={folder}", *arguments) == 0
        assert messages(folder, "train") == wanted
        assert messages(folder, "validation") == messages(prepared, "validation")

    def order(name):
        return hashlib.blake2b(name.encode(), digest_size=8).digest()

    names = list(by_name(prepared, "train"))
    assert names == sorted(names, key=order)


def test_tensorflow_reads_the_shards(prepared):
    import tensorflow as tf

    files = sorted(map(str, prepared.glob("train-*")))
    read = list(tf.data.TFRecordDataset(files).as_numpy_iterator())
    assert read == messages(prepared, "train")
    for message in read:
        feature = tf.train.Example.FromString(message).features.feature
        image = tf.io.decode_image(feature["image/encoded"].bytes_list.value[0])
        height, width, _ = image.shape
        assert feature["image/height"].int64_list.value == [height]
        assert feature["image/width"].int64_list.value == [width]


def test_a_class_whose_images_are_all_left_out_is_named(tmp_path, capsys):
    photo = make_imagenet_like.photograph(0, 40, 30)
    path = tmp_path / "some.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a/1", "a/2", "b/1", "b/2", "c/1"):
            add(archive, f"{name}.JPEG", b"junk" if name[0] == "b" else photo)
    given = [f"--train_archive={path}", f"--validation_archive={path}"]
    arguments = [f"--data_dir={tmp_path}/data", "--noexpect_imagenet", *given]
    for _ in range(2):  # when it is made, and when it is there
        assert prepare(*arguments) == 0
        output = capsys.readouterr().out
        assert "class 1, b, has no train images: all were left out" in output
        assert output.count("has no train images") == 1


def test_too_many_bad_images_stop_it_with_3_and_more_may_be_allowed(
    like, tmp_path, capsys
):
    arguments = [f"--data_dir={tmp_path}/data", "--train_shards=7", *like.flags]
    assert prepare(*arguments, "--max_bad_images=1") == 3
    output, errors = capsys.readouterr()
    assert "more than --max_bad_images=1" in errors
    assert "0 bytes" in output or "truncated" in output
    assert not (tmp_path / "data" / "manifest.json").exists()
    before = contents(tmp_path / "data")
    assert prepare(*arguments, "--max_bad_images=1") == 3
    assert contents(tmp_path / "data") == before  # it is known without writing more
    capsys.readouterr()
    assert prepare(*arguments, "--max_bad_images=4") == 0
    output = capsys.readouterr().out
    assert train_name(ODD["empty"]) in output and train_name(ODD["cut off"]) in output
