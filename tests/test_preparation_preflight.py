"""What a preparation refuses before anything is written."""

import importlib
import io
import os
import socket
import tarfile
import zipfile

from preparation import (
    SYNSETS,
    VALIDATION,
    add,
    kaggle_labels,
    make_imagenet_like,
    prepare,
    refused,
)

pytest_plugins = ["preparation_fixtures"]
preparation_preflight = importlib.import_module("preparation_preflight")


def test_wrong_or_missing_inputs_are_listed_and_nothing_is_written(
    like, tmp_path, capsys
):
    """Case D9."""
    data_dir = tmp_path / "data"
    empty = tmp_path / "empty"
    empty.mkdir()
    text = tmp_path / "text.tar"
    text.write_text("<html>please log in</html>" * 100)
    half = tmp_path / "half.tar"
    half.write_bytes(like.train.read_bytes()[: like.train.stat().st_size // 2])
    packed = tmp_path / "packed.tar.gz"
    packed.write_bytes(b"\x1f\x8b" + bytes(100))
    no_end = tmp_path / "no_end.tar"
    data = like.validation.read_bytes().rstrip(b"\0")
    no_end.write_bytes(data + bytes(-len(data) % 512))
    half_class = tmp_path / "half_class.tar"  # of the first class, between whole ones
    with tarfile.open(like.train) as whole, tarfile.open(half_class, "w") as archive:
        for member in whole:
            inner = whole.extractfile(member).read()
            first = member.name == f"{SYNSETS[0]}.tar"
            add(archive, member.name, inner[: len(inner) // (1 + first)])
    train, validation, labels, *_ = like.flags
    numbers = tmp_path / "numbers.txt"
    numbers.write_text("1\n" * VALIDATION)
    short = tmp_path / "short.txt"
    short.write_text("".join(f"{one}\n" for one in like.synsets[:-1]))
    unknown = tmp_path / "unknown.txt"
    unknown.write_text("".join(f"{one}\n" for one in [*like.synsets[:-1], "n09"]))
    short_csv = kaggle_labels(like, tmp_path / "short.csv")
    short_csv.write_text("".join(short_csv.read_text().splitlines(True)[:-1]))
    long_csv = kaggle_labels(like, tmp_path / "long.csv")
    long_csv.write_text(long_csv.read_text() + f"ILSVRC2012_val_9,{SYNSETS[0]} 1\n")
    any_ = "--noexpect_imagenet"
    for given, part in (
        ([], "train images must be named by --train_archive"),
        ([train], "validation images must be named by --validation_archive"),
        ([train, f"--validation_archive={tmp_path}/gone"], "gone is not there"),
        ([train, validation, any_], "--validation_labels must name their classes"),
        ([f"--train_dir={empty}", validation, labels], "holds no images"),
        ([train, f"--validation_dir={empty}", labels, any_], "holds no images"),
        ([f"--train_archive={empty}", validation], "with --train_dir"),
        ([f"--train_dir={text}", validation], "with --train_archive"),
        ([train, f"--train_dir={empty}", validation], "got both"),
        ([f"--train_archive={text}", validation], "cut off, broken or something else"),
        ([f"--train_archive={half}", validation], "cut off, broken or something else"),
        ([f"--train_archive={half_class}", validation], f"the tar of {SYNSETS[0]}, "),
        ([train, f"--validation_archive={no_end}"], "cut off, broken or something"),
        ([f"--train_archive={packed}", validation], "compressed with gzip: unpack it"),
        ([f"--train_archive={like.validation}", validation], "outside of one"),
        ([train, validation, labels], "ImageNet has 1,000 classes, 1,281,167 train"),
        ([train, validation, any_, f"--validation_labels={numbers}"], "the devkit"),
        ([train, validation, any_, f"--validation_labels={short}"], "19 labels for 20"),
        ([train, validation, any_, f"--validation_labels={short_csv}"], "19 labels"),
        ([train, validation, any_, f"--validation_labels={long_csv}"], "21 labels"),
        ([train, validation, any_, f"--validation_labels={unknown}"], "'n09'"),
        ([train, validation, any_, f"--validation_labels={packed}"], "devkit"),
        ([train, validation, any_, f"--validation_labels={like.train}"], "devkit"),
        ([train, validation, any_, labels, "--train_shards=71"], "at most the 70"),
    ):
        capsys.readouterr()
        assert prepare(f"--data_dir={data_dir}", *given) == 2, given
        output, errors = capsys.readouterr()
        assert errors.count("\n") == 1 and part in errors, errors
        assert "ILSVRC2012_img_train.tar" in output
        assert "ILSVRC2012_img_val.tar" in output
        count = "any" if any_ in given else "1,281,167"
        assert count in output
    assert not data_dir.exists()


def test_what_is_no_file_is_refused_and_not_waited_for(like, tmp_path, capsys):
    data_dir = f"--data_dir={tmp_path}/data"
    pipe = tmp_path / "set" / "a" / "pipe.JPEG"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    (pipe.parent / "pipe.txt").symlink_to(pipe)  # looks like no image: not opened
    given = [*like.flags[1:], f"--train_dir={pipe.parent.parent}"]
    error = refused(capsys, data_dir, *given)
    assert f"{pipe} must be a file, but is a pipe" in error
    for path in (pipe, "/dev/null"):
        error = refused(capsys, data_dir, *like.flags, f"--train_archive={path}")
        assert f"{path} is no file" in error
        error = refused(capsys, data_dir, *like.flags, f"--validation_labels={path}")
        assert f"{path} is no file" in error
    pipe.unlink()
    socket.socket(socket.AF_UNIX).bind(os.path.relpath(pipe))
    assert "socket" in refused(capsys, data_dir, *given)


def test_a_class_without_images_is_refused(like, tmp_path, capsys):
    """Case D9: it would vanish, and the labels behind it would change."""
    photo = make_imagenet_like.photograph(0, 40, 30)
    tars, folders = tmp_path / "tars.tar", tmp_path / "folders.tar"
    with tarfile.open(tars, "w") as archive:
        for name in "abc":
            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w") as inner:
                if name != "b":
                    add(inner, f"{name}.JPEG", photo)
            add(archive, f"{name}.tar", file.getvalue())
    with tarfile.open(folders, "w") as archive:
        for name in ("set/train/a/a.JPEG", "set/train/b/b.tiff", "set/more/b.txt"):
            add(archive, name, photo)
    zips = tmp_path / "zips.zip"
    with zipfile.ZipFile(zips, "w") as archive:
        for name in ("x/a/", "x/b/", "y/", "__MACOSX/", "x/.b/", "x/a/1/a.JPEG"):
            archive.writestr(name, photo if name.endswith(".JPEG") else b"")
        archive.writestr("x/a.JPEG/", b"")
        archive.writestr("x/c/c.JPEG", photo)
    place = tmp_path / "place"
    for name in ("a", "b", ".c"):
        (place / name / "inner").mkdir(parents=True)
    (place / "a" / "inner" / "a.JPEG").write_bytes(photo)
    for given, part in (
        (f"--train_archive={tars}", "b.tar holds none"),
        (f"--train_archive={folders}", "set/train/b holds none"),
        (f"--train_archive={zips}", "x/a.JPEG and 1 more hold none"),
        (f"--train_dir={place}", "b holds none"),
    ):
        given = [*like.flags[1:], given]
        error = refused(capsys, f"--data_dir={tmp_path}/data", *given)
        assert f"must hold images of each class, but {part}" in error
    assert not (tmp_path / "data").exists()
    # Validation may lack a class.
    given = [f"--validation_archive={tars}", "--noexpect_imagenet"]
    place = tmp_path / "whole"
    for name in "abc":
        (place / name).mkdir(parents=True)
        (place / name / "a.JPEG").write_bytes(photo)
    assert prepare(f"--data_dir={tmp_path}/d", f"--train_dir={place}", *given) == 0


def test_labels_that_say_nothing_are_told_so(like, tmp_path, capsys):
    path = tmp_path / "labels"
    for data, part in (
        (b"", "is empty"),
        (b"\xef\xbb\xbf \n\n", "is empty"),
        (b"ImageId,Class\nv1,a\n", "columns ImageId and PredictionString, as "),
        (b"ImageId,Class\nv1,a\n", "but has ImageId, Class"),
        (b'ImageId,PredictionString\nv1,"' + b"a" * 200_000, "is no table"),
    ):
        path.write_bytes(data)
        given = [*like.flags, f"--validation_labels={path}"]
        error = refused(capsys, f"--data_dir={tmp_path}/data", *given)
        assert part in error and str(path) in error


def test_an_empty_data_dir_is_refused(like, capsys):
    for given in (["--verify"], like.flags):
        error = refused(capsys, "--data_dir=", *given)
        assert "--data_dir must name a folder" in error


def test_an_image_that_is_there_twice_is_refused(like, tmp_path, capsys):
    path = tmp_path / "twice.tar"
    with tarfile.open(path, "w") as archive:
        for _ in range(2):
            add(archive, "a/one.JPEG", b"")
    given = [f"--train_archive={path}", f"--validation_archive={path}"]
    error = refused(capsys, f"--data_dir={tmp_path}/d", "--noexpect_imagenet", *given)
    assert "a/one.JPEG is there twice" in error


def test_the_output_folder_must_be_free_and_large_enough(
    like, tmp_path, capsys, monkeypatch
):
    (tmp_path / "letter.txt").write_text("mine")
    error = refused(capsys, f"--data_dir={tmp_path}", *like.flags)
    assert "letter.txt" in error
    error = refused(capsys, f"--data_dir={tmp_path}/letter.txt/data", *like.flags)
    assert "can be written" in error
    monkeypatch.setattr(preparation_preflight.storage, "free_bytes", lambda _: 10**6)
    error = refused(capsys, f"--data_dir={tmp_path}/data", *like.flags)
    sizes = like.train.stat().st_size + like.validation.stat().st_size
    assert 2e6 < sizes < 1e9  # need: a little less, as tars have headers
    assert " MB of disk, but 1.0 MB are free, " in error and "0.0" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_what_is_written_already_needs_no_more_disk(
    like, tmp_path, capsys, monkeypatch
):
    folder = tmp_path / "data"
    arguments = [f"--data_dir={folder}", "--train_shards=7", *like.flags]
    assert prepare(*arguments, "--max_bad_images=0") == 3
    written = sum(path.stat().st_size for path in folder.glob("*-of-*"))
    assert written > 0
    images = [*like.images.values(), *like.validation_images.values()]
    need = sum(len(image) + 400 for image in images) - written
    storage = preparation_preflight.storage
    monkeypatch.setattr(storage, "free_bytes", lambda _: need - 1)
    assert "1 bytes too little" in refused(capsys, *arguments)
    monkeypatch.setattr(storage, "free_bytes", lambda _: need)
    assert prepare(*arguments) == 0
