"""The same images in every form that they are published in, and damaged archives."""

import hashlib
import importlib
import io
import json
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from preparation import (
    SYNSETS,
    add,
    by_name,
    contents,
    kaggle_labels,
    make_imagenet_like,
    prepare,
)

pytest_plugins = ["preparation_fixtures"]
image_sources = importlib.import_module("image_sources")


def kaggle(like):
    """The images under the names of Kaggle's archive."""
    root = "ILSVRC/Data/CLS-LOC"
    names = {f"{root}/train/{name}": data for name, data in like.images.items()}
    for name, data in like.validation_images.items():
        names[f"{root}/val/{name}"] = data
    names[f"{root}/test/ILSVRC2012_test_00000001.JPEG"] = b"not wanted"
    names["ILSVRC/Annotations/CLS-LOC/val/ILSVRC2012_val_00000001.xml"] = b"<a/>"
    return names


def kaggle_flags(like, folder, path):
    """An archive of both splits, and Kaggle's labels."""
    labels = kaggle_labels(like, folder / "LOC_val_solution.csv")
    return [
        f"--train_archive={path}",
        f"--validation_archive={path}",
        f"--validation_labels={labels}",
    ]


def devkit(like, path):
    """ILSVRC2012_devkit_t12.tar.gz, with one class that has children."""
    from scipy.io import savemat

    kinds = [
        ("ILSVRC2012_ID", "O"),
        ("WNID", "O"),
        ("words", "O"),
        ("gloss", "O"),
        ("num_children", "O"),
    ]
    rows = [
        (3 - i, synset, f"fish {i}, swimmer", "it swims", 0)
        for i, synset in enumerate(SYNSETS)
    ]
    rows.append((4, "n00000001", "animal", "all of them", 3))
    meta = io.BytesIO()
    savemat(meta, {"synsets": np.array(rows, kinds).reshape(-1, 1)})
    numbers = "".join(f"{3 - SYNSETS.index(one)}\n" for one in like.synsets)
    root = "ILSVRC2012_devkit_t12/data"
    with tarfile.open(path, "w:gz") as archive:
        add(archive, f"{root}/meta.mat", meta.getvalue())
        add(archive, f"{root}/ILSVRC2012_validation_ground_truth.txt", numbers.encode())
    return path


def unpacked(like, folder):
    for name, data in kaggle(like).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "ILSVRC/Data/CLS-LOC"


def as_tar(like, folder):
    path = folder / "kaggle.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in kaggle(like).items():
            add(archive, name, data)
    return kaggle_flags(like, folder, path)


def as_zip(like, folder):
    path = folder / "kaggle.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, data) in enumerate(kaggle(like).items()):
            kind = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[number % 2]
            archive.writestr(name, data, kind)
    return kaggle_flags(like, folder, path)


def as_flat_folder(like, folder):
    root = unpacked(like, folder)
    return [
        f"--train_dir={root}/train",
        f"--validation_dir={root}/val",
        f"--validation_labels={like.labels}",
    ]


def as_class_folders(like, folder):
    root = unpacked(like, folder)
    for name, synset in zip(sorted(like.validation_images), like.synsets, strict=True):
        (root / "val" / synset).mkdir(exist_ok=True)
        (root / "val" / name).rename(root / "val" / synset / name)
    return [f"--train_dir={root}/train", f"--validation_dir={root}/val"]


def as_archives_and_devkit(like, folder):
    kit = devkit(like, folder / "ILSVRC2012_devkit_t12.tar.gz")
    return [*like.flags, f"--validation_labels={kit}"]


@pytest.mark.parametrize(
    "form",
    [as_tar, as_zip, as_flat_folder, as_class_folders, as_archives_and_devkit],
)
def test_every_form_gives_the_same_files(like, prepared, tmp_path, form):
    given = form(like, tmp_path)
    folder = tmp_path / "data"
    arguments = ["--train_shards=7", "--noexpect_imagenet", "--workers=1", *given]
    assert prepare(f"--data_dir={folder}", *arguments) == 0
    found, wanted = contents(folder), contents(prepared)
    labels = found.pop("labels.txt").decode().splitlines()
    wanted.pop("labels.txt")
    words = ["fish 0, swimmer", "fish 1, swimmer", "fish 2, swimmer"]
    if form is as_archives_and_devkit:
        assert labels == [f"{s} {word}" for s, word in zip(SYNSETS, words)]
    else:
        assert labels == SYNSETS
    described = json.loads(found.pop("manifest.json"))
    expected = json.loads(wanted.pop("manifest.json"))
    digest = hashlib.sha256((folder / "labels.txt").read_bytes()).hexdigest()
    assert described.pop("labels_sha256") == digest
    expected.pop("labels_sha256")
    assert described == expected
    assert found == wanted


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_image_of_a_zip_archive_is_left_out(tmp_path, capsys, kind):
    photo = make_imagenet_like.photograph(0, 200, 150)
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name in "abcd":
            archive.writestr(f"{name}/{name}.JPEG", photo)
    data = bytearray(path.read_bytes())
    for info in archive.infolist()[1:]:
        first = info.header_offset + 30 + len(info.filename)
        if info.filename[0] == "b":  # a byte in the middle
            data[first + info.compress_size // 2] ^= 0x10
        if info.filename[0] == "c":  # the header of the first deflated block
            data[first] ^= 0x6
        if info.filename[0] == "d":  # the checksum in the directory
            entry = data.rindex(b"PK\1\2")
            data[entry + 16] ^= 1
    path.write_bytes(data)
    given = [f"--train_archive={path}", f"--validation_archive={path}"]
    folder = tmp_path / "data"
    assert prepare(f"--data_dir={folder}", "--noexpect_imagenet", *given) == 0
    output = capsys.readouterr().out
    for name in "bcd":
        assert f"left out {name}/{name}.JPEG: broken zip member" in output
    assert {name: image for name, (image, _) in by_name(folder, "train").items()} == {
        "a/a.JPEG": photo
    }
    assert "class 1, b, has no train images: all were left out" in output


def test_a_zip_member_that_is_longer_or_shorter_than_it_says_is_left_out(tmp_path):
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/a.JPEG", bytes(10**6))
    image = image_sources.archive(str(path), "train").images[0]
    assert image_sources.read(image) == bytes(10**6)
    for size in (0, 10, 10**6 - 1, 10**6 + 1):
        member = image.member._replace(size=size, crc=zlib.crc32(bytes(size)))
        with pytest.raises(ValueError, match="checksum"):
            image_sources.read(image._replace(member=member))


def test_names_of_an_archive_are_no_paths(like, tmp_path):
    photo = make_imagenet_like.photograph(0, 40, 30)
    path = tmp_path / "in" / "evil.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as archive:
        add(archive, "../../../evil/one.JPEG", photo)
        add(archive, "/etc/two.JPEG", photo)
        add(archive, "../three.JPEG", photo)
    folder = tmp_path / "out" / "data"
    given = [f"--train_archive={path}", f"--validation_archive={path}"]
    assert prepare(f"--data_dir={folder}", "--noexpect_imagenet", *given) == 0
    assert set(by_name(folder, "train")) == {
        "evil/one.JPEG",
        "etc/two.JPEG",
        "../three.JPEG",
    }
    everything = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert everything == {"evil.tar", *contents(folder)}
