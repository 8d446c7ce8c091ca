import hashlib
import json

import pytest
from pictures import write_numbered

from tf_goyal import datasets, records


@pytest.fixture
def folder(tmp_path):
    """Two splits as tools/prepare_imagenet.py leaves them."""
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    splits = {}
    for split, shards, count in (("train", 2, 5), ("validation", 1, 3)):
        paths = write_numbered(tmp_path, split, shards, count)
        splits[split] = {
            "records": count,
            "per_class": {},
            "shards": [
                {
                    "file": path.name,
                    "records": len(records.index_files([str(path)])),
                    "bytes": path.stat().st_size,
                    "sha256": "",
                }
                for path in paths
            ],
            "left_out": [],
            "converted": [],
        }
    write(tmp_path, {"format": 1, "options": {}, "classes": 2, "splits": splits})
    return tmp_path


def write(folder, content):
    (folder / "manifest.json").write_text(json.dumps(content))


def change(folder, edit):
    content = json.loads((folder / "manifest.json").read_text())
    edit(content)
    write(folder, content)


def refused(folder) -> str:
    with pytest.raises(ValueError) as error:
        datasets.load("tfrecord", str(folder))
    assert str(error.value).endswith(".")
    return str(error.value)


def test_a_prepared_folder(folder):
    data = datasets.load("tfrecord", str(folder))
    assert (len(data.train), len(data.validation)) == (5, 3)
    assert data.train.part_sizes.tolist() == [3, 2]


def test_a_shard_that_is_cut_off(folder):
    """D6: 10 bytes."""
    path = folder / "train-00001-of-00002"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-10])
    message = refused(folder)
    assert f"train-00001-of-00002: expected {size} bytes, as " in message
    assert f"manifest.json says; found {size - 10}" in message


def test_a_shard_of_other_records(folder):
    """As many bytes, but another number of records."""
    change(folder, lambda c: c["splits"]["train"]["shards"][1].update(records=4))
    message = refused(folder)
    assert "train-00001-of-00002: expected 4 records, as " in message
    assert "manifest.json says; found 2" in message


def test_other_shards(folder):
    write_numbered(folder, "train", 3, 5)
    for shard in range(2):
        (folder / f"train-{shard:05d}-of-00002").unlink()
    assert "train-00000-of-00002 is missing" in refused(folder)


def test_a_split_that_is_not_listed(folder):
    change(folder, lambda content: content["splits"].pop("validation"))
    assert "validation-00000-of-00001 is there" in refused(folder)


def test_other_classes(folder):
    (folder / "labels.txt").write_text("cat\ndog\neel\n")
    assert "manifest.json: expected 2 classes; the names of 3" in refused(folder)


def test_other_names_of_the_classes(folder):
    """Two lines swapped: as many classes, each with the other's name."""
    digest = hashlib.sha256(b"cat\ndog\n").hexdigest()
    change(folder, lambda content: content.update(labels_sha256=digest))
    assert datasets.load("tfrecord", str(folder)).labels == ("cat", "dog")
    (folder / "labels.txt").write_text("dog\ncat\n")
    message = refused(folder)
    assert f"labels.txt: expected the SHA-256 {digest}, as " in message
    assert "manifest.json says; found " in message
    change(folder, lambda content: content.pop("labels_sha256"))  # an older one
    assert datasets.load("tfrecord", str(folder)).labels == ("dog", "cat")


@pytest.mark.parametrize(
    "edit, said",
    [
        (lambda c: c.update(format=2), "its format is 2"),
        (lambda c: c.pop("splits"), "it has no 'splits'"),
        (lambda c: c.update(classes="2"), "'2' is no whole number"),
        (lambda c: c.update(labels_sha256=1), "its labels_sha256 is 1"),
        (lambda c: c.update(labels_sha256="A" * 64), "its labels_sha256 is 'AAA"),
        (lambda c: c.update(splits=[]), "manifest of tools/prepare_imagenet.py"),
        (lambda c: c["splits"].update(train=None), "manifest of tools/prepare_imag"),
        (
            lambda c: c["splits"]["train"]["shards"][0].update(bytes=-1),
            "-1 is no whole number",
        ),
    ],
)
def test_a_manifest_of_another_form(folder, edit, said):
    change(folder, edit)
    assert said in refused(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "1", "[" * 100_000, "\0"])
def test_what_is_no_manifest(folder, content):
    (folder / "manifest.json").write_text(content)
    assert "expected the manifest of tools/prepare_imagenet.py" in refused(folder)


def test_unreadable(folder):
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()
    assert "Is a directory" in refused(folder)
