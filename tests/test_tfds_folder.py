import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds
from pictures import bmp, write_numbered

from tf_goyal import datasets, tfds_folder

NAMES = ["cat", "dog", "eel"]


class _Builder(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    COUNTS = {"train": 40, "validation": 9, "test": 4}  # noqa: RUF012

    def _features(self, image, label):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {"file_name": tfds.features.Text(), "image": image, "label": label}
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager):
        return {s: self._generate_examples(s, n) for s, n in self.COUNTS.items()}

    def _generate_examples(self, split, count):
        channels = self.info.features["image"].shape[-1]
        for i in range(count):
            yield (
                f"{split} {i}",
                {
                    "file_name": f"{split} {i}",
                    "image": np.full([8, 8, channels], i, np.uint8),
                    # As ImageNet's test split in TFDS: no labels.
                    "label": i % 3 if split != "test" or channels == 1 else -1,
                },
            )


class GoyalPhotos(_Builder):
    """As imagenet2012: JPEG of any size, names of the classes, no labels in a split."""

    def _info(self):
        return self._features(
            tfds.features.Image(encoding_format="jpeg"),
            tfds.features.ClassLabel(names=NAMES),
        )


class GoyalDigits(_Builder):
    """As mnist: PNG in gray, no names, train and test; and with configurations."""

    COUNTS = {"train": 6, "test": 5}  # noqa: RUF012
    BUILDER_CONFIGS = [  # noqa: RUF012
        tfds.core.BuilderConfig(name=name, version="1.0.0", description=name)
        for name in ("small", "big-2.0")
    ]

    def _info(self):
        return self._features(
            tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
            tfds.features.ClassLabel(num_classes=3),
        )


def prepare(builder, shards=None):
    download = tfds.download.DownloadConfig(num_shards=shards)
    builder.download_and_prepare(download_config=download)
    return builder


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A folder as TFDS' --data_dir; not to be changed."""
    folder = tmp_path_factory.mktemp("tfds")
    prepare(GoyalPhotos(data_dir=str(folder)), shards=3)
    for config in ("small", "big-2.0"):
        prepare(GoyalDigits(data_dir=str(folder), config=config))
    return folder


@pytest.fixture
def photos(written, tmp_path) -> pathlib.Path:
    """A copy of the folder of a version."""
    folder = tmp_path / "goyal_photos" / "1.0.0"
    ignored = shutil.ignore_patterns(".*")
    shutil.copytree(written / "goyal_photos" / "1.0.0", folder, ignore=ignored)
    return folder


def edit(path: pathlib.Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def read(split) -> list[tuple[bytes, int]]:
    return [split.read(record) for record in range(len(split))]


def as_tfds_reads(builder, split) -> list[tuple[bytes, int]]:
    data = builder.as_dataset(
        split=split,
        decoders={"image": tfds.decode.SkipDecoding()},
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
    return [(e["image"], int(e["label"])) for e in data.as_numpy_iterator()]


def refused(name, data_dir, **options) -> str:
    with pytest.raises(ValueError) as error:
        datasets.load(name, str(data_dir), **options)
    assert str(error.value).endswith(".")
    return str(error.value)


def refused_photos(photos) -> str:
    return refused("tfds:goyal_photos", photos.parents[1])


def test_several_shards_and_names(written):
    """What TFDS wrote is what TFDS reads, in its order."""
    data = datasets.load("tfds:goyal_photos", str(written))
    builder = tfds.builder("goyal_photos", data_dir=str(written))
    assert data.name == "tfds:goyal_photos" and data.labels == tuple(NAMES)
    assert read(data.train) == as_tfds_reads(builder, "train")
    assert read(data.validation) == as_tfds_reads(builder, "validation")
    lengths = builder.info.splits["train"].shard_lengths
    assert data.train.part_sizes.tolist() == lengths and len(lengths) == 3
    assert data.train.bytes == int(builder.info.splits["train"].num_bytes)
    assert data.train.read(0)[0][:2] == b"\xff\xd8"
    assert data.train.where(0).startswith(
        str(written / "goyal_photos/1.0.0/goyal_photos-train.tfrecord-00000-of-00003")
    )


@pytest.mark.parametrize("config", ["small", "big-2.0"])
def test_a_configuration_png_and_test_in_place_of_validation(written, config):
    name = f"tfds:goyal_digits/{config}:1.0.0"
    data = datasets.load(name, str(written))
    builder = tfds.builder(f"goyal_digits/{config}", data_dir=str(written))
    assert data.labels == ("0", "1", "2")
    assert read(data.validation) == as_tfds_reads(builder, "test")
    assert data.validation.name == "validation"
    assert data.train.read(0)[0].startswith(b"\x89PNG")


def test_the_folder_of_the_version_itself(photos):
    for name in ("tfds:goyal_photos", "tfds:goyal_photos:1.0.0"):
        assert len(datasets.load(name, str(photos)).train) == 40
    assert "found that of goyal_photos" in refused("tfds:mnist", photos)
    assert "that of goyal_photos" in refused("tfds:goyal_photos/big", photos)
    assert "version 2.0.0; found 1.0.0" in refused("tfds:goyal_photos:2.0.0", photos)


def test_the_newest_version_is_the_greatest_number(photos):
    root = photos.parents[1]
    for version in ("9.0.0", "10.0.0"):
        copy = shutil.copytree(photos, photos.parent / version)
        edit(copy / "dataset_info.json", lambda info, v=version: info.update(version=v))
    (photos.parent / "incomplete.X_11.0.0").mkdir()
    data = datasets.load("tfds:goyal_photos", str(root))
    assert "/10.0.0/" in data.train.where(0)
    data = datasets.load("tfds:goyal_photos:9.0.0", str(root))
    assert "/9.0.0/" in data.train.where(0)
    message = refused("tfds:goyal_photos:2.0.0", root)
    assert "goyal_photos/2.0.0" in message
    assert "found 1.0.0, 10.0.0, 9.0.0" in message


def test_another_filename_template(tmp_path):
    """As tfds.folder_dataset.write_metadata describes files of another writer."""
    paths = write_numbered(
        tmp_path,
        "train",
        3,
        7,
        features=("picture", "kind"),
        file="{name}-{shard:05d}-of-{shards:05d}.tfrecord",
    )
    paths += write_numbered(
        tmp_path,
        "test",
        1,
        2,
        features=("picture", "kind"),
        file="{name}-{shard:05d}-of-{shards:05d}.tfrecord",
    )
    template = tfds.core.ShardedFileTemplate(
        data_dir=tmp_path,
        template="{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
        filetype_suffix="tfrecord",
    )
    tfds.folder_dataset.write_metadata(
        data_dir=tmp_path,
        features=tfds.features.FeaturesDict(
            {
                "picture": tfds.features.Image(),
                "kind": tfds.features.ClassLabel(names=NAMES),
            }
        ),
        split_infos=[
            tfds.core.SplitInfo(
                name=split,
                shard_lengths=lengths,
                num_bytes=0,
                filename_template=template,
            )
            for split, lengths in (("train", [3, 2, 2]), ("test", [2]))
        ],
        filename_template=template,
        check_data=False,  # it would decode them
    )
    data = datasets.load("tfds:anything", str(tmp_path))
    assert [image for image, _ in read(data.train)] == [bmp(i) for i in range(7)]
    assert data.train.files == tuple(map(str, paths[:3]))
    assert data.labels == tuple(NAMES)


def test_as_older_versions_wrote_it(photos):
    """Without template and file format; features as {"type", "content"}."""

    def old_info(info):
        del info["fileFormat"]
        for split in info["splits"]:
            del split["filepathTemplate"]
            split["shardLengths"] = [int(length) for length in split["shardLengths"]]

    edit(photos / "dataset_info.json", old_info)
    module = "tensorflow_datasets.core.features"
    image = {"shape": [None, None, 3], "dtype": "uint8", "encoding_format": "jpeg"}
    members = {
        "file_name": {"type": f"{module}.text_feature.Text", "content": {}},
        "image": {"type": f"{module}.image_feature.Image", "content": image},
        "label": {
            "type": f"{module}.class_label_feature.ClassLabel",
            "content": json.dumps({"num_classes": 3}),
        },
    }
    for content in (members, {"features": members}):
        features = {
            "type": f"{module}.features_dict.FeaturesDict",
            "content": content,
        }
        (photos / "features.json").write_text(json.dumps(features))
        data = datasets.load("tfds:goyal_photos", str(photos))
        assert (len(data.train), data.labels) == (40, tuple(NAMES))


@pytest.mark.parametrize("name", ["mnist", "goyal_photos:3.0.0"])
def test_not_prepared(photos, name):
    """D9: the command that prepares it."""
    root = photos.parents[1]
    message = refused(f"tfds:{name}", root)
    assert f"`tfds build {name} --data_dir={root}`" in message
    assert str(root / name.partition(":")[0]) in message


def test_no_folder(tmp_path):
    assert "--dataset=tfds:mnist requires --data_dir" in refused("tfds:mnist", "")
    message = refused("tfds:mnist", tmp_path / "nowhere")
    assert "nowhere/mnist/VERSION" in message


def test_configurations_are_named(written):
    message = refused("tfds:goyal_digits", written)
    assert "found the configurations big-2.0, small" in message
    assert "--dataset=tfds:goyal_digits/big-2.0" in message


@pytest.mark.parametrize(
    "name",
    [
        *("tfds:", "tfds:..", "tfds:a/..", "tfds:a/.", "tfds:a/b/c", "tfds:/etc"),
        *("tfds:a:1", "tfds:a:1.0", "tfds:a:1.*.*", "tfds:a:latest", "tfds:a b"),
        *("tfds:../a", "tfds:a/../..", "tfds:a:1.0.0/b", "tfds:ä", "tfds:a\n"),
    ],
)
def test_names_that_are_none(tmp_path, name):
    assert "--dataset must be tfds:NAME" in refused(name, tmp_path)


@pytest.mark.parametrize("shard", range(3))
def test_a_missing_shard(photos, shard):
    """D9."""
    name = f"goyal_photos-train.tfrecord-{shard:05d}-of-00003"
    (photos / name).unlink()
    message = refused_photos(photos)
    assert f"{name}: missing" in message and "lists 3 shards" in message


def test_several_missing_shards(photos):
    for path in photos.glob("*-train.*"):
        path.unlink()
    assert "00000-of-00003 and 2 more: missing" in refused_photos(photos)


def test_records_that_are_not_all_there(photos):
    """D6: cut off between records."""
    path = photos / "goyal_photos-train.tfrecord-00001-of-00003"
    index = datasets.load("tfds:goyal_photos", str(photos)).train.index
    last = int(index.offset[index.file == 1][-1])
    os.truncate(path, last - 12)
    message = refused_photos(photos)
    assert f"{path}: expected 14 records, as " in message and "found 13" in message


def test_a_broken_record_is_left_to_the_run(photos):
    """D6: a flipped byte and a torn end change no count."""
    path = photos / "goyal_photos-train.tfrecord-00001-of-00003"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data[:-10])
    assert len(datasets.load("tfds:goyal_photos", str(photos)).train) == 40


@pytest.mark.parametrize("file_format", ["array_record", "riegeli", "parquet"])
def test_another_file_format(photos, file_format):
    edit(photos / "dataset_info.json", lambda i: i.update(fileFormat=file_format))
    message = refused_photos(photos)
    assert f"must be tfrecord; found {file_format}" in message
    assert "tfds build goyal_photos --file_format=tfrecord" in message


@pytest.mark.parametrize(
    "keep, found",
    [(("test", "validation"), "validation, test"), (("train",), "train"), ((), "none")],
)
def test_missing_splits(photos, keep, found):
    def change(info):
        info["splits"] = [s for s in info["splits"] if s["name"] in keep]

    edit(photos / "dataset_info.json", change)
    assert "train and validation, or train and test; found " in refused_photos(photos)


IMAGE = {"image": {"dtype": "uint8"}}
LABEL = {"classLabel": {"numClasses": "3"}}


@pytest.mark.parametrize(
    "features, said",
    [
        ({"text": {"text": {}}}, "one Image feature; found none among text"),
        ({}, "one Image feature; found none among no features"),
        ({"a": IMAGE, "b": IMAGE, "c": LABEL}, "one Image feature; found a, b"),
        ({"image": IMAGE}, "one ClassLabel feature; found none among image"),
        (
            {"image": IMAGE, "y": LABEL, "z": LABEL},
            "one ClassLabel feature; found y, z",
        ),
        ({"image": {"image": {"dtype": "float32"}}, "y": LABEL}, "image is float32"),
        ({"image": IMAGE, "y": {"classLabel": {}}}, "the classes of y must be whole"),
        ({"image": IMAGE, "y": {"classLabel": {"numClasses": "0"}}}, "found 0"),
        (
            {"image": IMAGE, "y": {"classLabel": {"numClasses": 10**9}}},
            "found 10000000",
        ),
        ({"image": IMAGE, "y": {"classLabel": {"numClasses": -1}}}, "found -1"),
        ({"image": IMAGE, "y": {"classLabel": {"numClasses": "9" * 9999}}}, "whole"),
        ({"image": IMAGE, "y": {"classLabel": {"numClasses": True}}}, "found True"),
        ({"image": IMAGE, "../y": LABEL}, "must be a name"),
        ({"image": IMAGE, "/etc/y": LABEL}, "must be a name"),
        ({"image": IMAGE, "y": "text", "z": 1, "a": None}, "found none among image"),
    ],
)
def test_features_of_no_image_classification(photos, features, said):
    content = {"featuresDict": {"features": features}}
    (photos / "features.json").write_text(json.dumps(content))
    message = refused_photos(photos)
    assert said in message and "features.json" in message


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object(photos, name, content):
    (photos / name).write_bytes(content)
    message = refused_photos(photos)
    assert f"{name}: must be JSON" in message and "tfds build goyal_photos" in message


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_missing_json(photos, name):
    (photos / name).unlink()
    message = refused_photos(photos)
    assert f"{name}: cannot be read: No such file" in message
    assert "tfds build goyal_photos" in message


@pytest.mark.parametrize(
    "template",
    [
        "../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "/etc/{SPLIT}-{SHARD_INDEX}",
        "a/../../{SPLIT}-{SHARD_INDEX}",
        "..\\{SPLIT}-{SHARD_INDEX}",
        "{SPLIT}/../{SHARD_INDEX}",
        "{SPLIT}-{SHARD_INDEX}\0",
        "./{SPLIT}-{SHARD_INDEX}",
        "{SPLIT}//{SHARD_INDEX}",
    ],
)
def test_nothing_outside_of_the_folder_is_read(photos, template):
    def change(info):
        for split in info["splits"]:
            split["filepathTemplate"] = template

    edit(photos / "dataset_info.json", change)
    message = refused_photos(photos)
    assert "must give files in the same folder" in message


def test_nor_through_the_names_in_a_template(photos):
    def change(info):
        info["splits"][0]["name"] = "train"
        info["splits"][0]["filepathTemplate"] = "{SPLIT}{DATASET.__class__}{X}"

    edit(photos / "dataset_info.json", change)
    assert "must give each of its 3 shards a name of its own" in refused_photos(photos)


@pytest.mark.parametrize(
    "lengths", [None, [], "13", ["13", "14", "x"], [13, 14, -1], [13, 14, 1.5], [[], 1]]
)
def test_odd_shard_lengths(photos, lengths):
    def change(info):
        info["splits"][0]["shardLengths"] = lengths

    edit(photos / "dataset_info.json", change)
    assert "shardLengths" in refused_photos(photos)


@pytest.mark.parametrize("splits", [1, {}, ["train"], [{}], [{"name": 1}], None])
def test_odd_splits(photos, splits):
    edit(photos / "dataset_info.json", lambda info: info.update(splits=splits))
    assert "splits must be" in refused_photos(photos)


def test_other_names_of_classes(photos):
    (photos / "label.labels.txt").write_text("cat\ndog\n")
    message = refused_photos(photos)
    assert "label.labels.txt: expected the names of 3 classes" in message
    (photos / "label.labels.txt").write_bytes(b"\xff\n\n")
    assert "UTF-8" in refused_photos(photos)


def test_the_base_of_the_labels(written):
    """D7."""
    message = refused("tfds:goyal_photos", written, label_offset=1)
    assert "set --label_offset=0, which fits" in message


def test_digits_of_shard_numbers():
    """As naming.py of TFDS: five, or as many as there are."""
    name = tfds_folder._file_name("{SHARD_X_OF_Y}", "a", "b", 7, 123456)
    assert name == "000007-of-123456"
    template = tfds.core.ShardedFileTemplate(
        data_dir="", template="{SHARD_X_OF_Y}", dataset_name="a", split="b"
    )
    theirs = template.relative_filepath(shard_index=7, num_shards=123456)
    assert name == str(theirs)
