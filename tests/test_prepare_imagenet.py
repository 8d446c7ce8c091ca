"""tools/prepare_imagenet.py: from images to shards, and what is refused."""

import errno
import hashlib
import importlib
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tf_goyal import examples, flags, records

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS))
make_imagenet_like = importlib.import_module("make_imagenet_like")
prepare_imagenet = importlib.import_module("prepare_imagenet")
preparation_preflight = importlib.import_module("preparation_preflight")
image_sources = importlib.import_module("image_sources")
preparation_journal = importlib.import_module("preparation_journal")
stored_image = importlib.import_module("stored_image")

CLASSES, TRAIN, VALIDATION = 3, 70, 20
SYNSETS = ["n01440764", "n01440765", "n01440766"]
DEADLINE = 60  # seconds, of one preparation
ODD = {kind: place for place, kind in enumerate(make_imagenet_like.ODD)}


def train_name(place):
    return f"{SYNSETS[place % CLASSES]}/{SYNSETS[place % CLASSES]}_{place}.JPEG"


def images_of(tar):
    """Names and bytes of a tar's members; a tar in it is opened too."""
    found = {}
    with tarfile.open(tar) as archive:
        for member in archive:
            data = archive.extractfile(member).read()
            if member.name.endswith(".tar"):
                with tarfile.open(fileobj=io.BytesIO(data)) as inner:
                    for one in inner:
                        found[f"{member.name[:-4]}/{one.name}"] = inner.extractfile(
                            one
                        ).read()
            else:
                found[member.name] = data
    return found


class Like:
    """A synthetic ImageNet with odd images: the archives, and what is in them."""

    def __init__(self, folder):
        self.folder = folder
        make_imagenet_like.write(
            folder,
            classes=CLASSES,
            train_images=TRAIN,
            validation_images=VALIDATION,
            with_odd=True,
            varied=True,
        )
        self.train = folder / "ILSVRC2012_img_train.tar"
        self.validation = folder / "ILSVRC2012_img_val.tar"
        self.labels = folder / "validation_labels.txt"
        self.images = images_of(self.train)
        self.validation_images = images_of(self.validation)
        self.synsets = self.labels.read_text().split()
        self.flags = [
            f"--train_archive={self.train}",
            f"--validation_archive={self.validation}",
            f"--validation_labels={self.labels}",
            "--noexpect_imagenet",
            "--workers=2",
        ]


@pytest.fixture(scope="session")
def like(tmp_path_factory):
    return Like(tmp_path_factory.mktemp("like"))


def prepare(*arguments):
    """Runs the tool here; its exit code."""
    argv = ["prepare_imagenet", *map(str, arguments)]
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as stopped:
            flags.run(
                prepare_imagenet.main,
                argv,
                define=prepare_imagenet.define,
                with_config=False,
            )
    finally:
        signal.signal(signal.SIGTERM, before)
    return stopped.value.code or 0


def refused(capsys, *arguments):
    """The one line of a refusal."""
    capsys.readouterr()
    assert prepare(*arguments) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("prepare_imagenet: ") and errors.count("\n") == 1
    return errors


@pytest.fixture(scope="session")
def prepared(like, tmp_path_factory):
    """The shards of the archives: 7 and 1."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    assert prepare(f"--data_dir={folder}", "--train_shards=7", *like.flags) == 0
    return folder


def messages(folder, split):
    """The Examples of a split in the order of the records."""
    files = sorted(map(str, folder.glob(f"{split}-*-of-*")))
    index = records.index_files(files)
    reader = records.Reader(index, verify=True)
    return [reader.read(record) for record in range(len(index))]


def by_name(folder, split):
    """Synset/filename to image bytes and label."""
    found = {}
    for message in messages(folder, split):
        image, label = examples.image_and_label(
            message, "image/encoded", "image/class/label"
        )
        name, _ = examples.image_and_label(
            message, "image/filename", "image/class/label"
        )
        synset, _ = examples.image_and_label(
            message, "image/class/synset", "image/class/label"
        )
        found[f"{synset.decode()}/{name.decode()}"] = image, label
    return found


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def pixels(data, mode="RGB"):
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode), np.float32)


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


def test_a_finished_folder_is_left_alone_and_other_options_are_refused(
    like, prepared, capsys
):
    before = contents(prepared)
    any_ = "--noexpect_imagenet"
    gone = ["--train_archive=gone.tar", "--validation_archive=gone.tar", any_]
    assert prepare(f"--data_dir={prepared}", *gone) == 0
    output = capsys.readouterr().out
    assert "is finished" in output
    for split in ("train", "validation"):
        assert f"the {split} images were not looked at: gone.tar is not" in output
    assert prepare(f"--data_dir={prepared}", any_) == 0
    assert "not looked at: they are not named" in capsys.readouterr().out
    only = [like.flags[1], "--train_archive=gone.tar", any_]
    assert prepare(f"--data_dir={prepared}", *only) == 0
    assert "validation images were not looked at: the train" in capsys.readouterr().out
    assert prepare(f"--data_dir={prepared}", *like.flags) == 0
    assert "not looked at" not in capsys.readouterr().out
    for flag, was in (("--train_shards=8", 7), ("--quality=80", 0)):
        name, value = flag.split("=")
        error = refused(capsys, f"--data_dir={prepared}", flag, *like.flags)
        assert f"{name}={was}" in error and f"{name}={value}" in error
    assert contents(prepared) == before


def test_a_finished_folder_is_compared_with_the_images_that_are_named(
    like, prepared, tmp_path, capsys
):
    before = contents(prepared)
    error = refused(capsys, f"--data_dir={prepared}", *like.flags, "--expect_imagenet")
    assert f"but found 3, {TRAIN} and {VALIDATION}: " in error  # with those left out
    fewer = tmp_path / "fewer.tar"
    with tarfile.open(fewer, "w") as archive:
        for name in list(like.images)[1:]:
            add(archive, name, like.images[name])
    given = [*like.flags, f"--train_archive={fewer}"]
    error = refused(capsys, f"--data_dir={prepared}", *given)
    assert "the train images' checksum" in error
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"{one}\n" for one in reversed(like.synsets)))
    given = [*like.flags, f"--validation_labels={labels}"]
    error = refused(capsys, f"--data_dir={prepared}", *given)
    assert "the validation images' checksum" in error
    given = [f"--train_dir={like.train}", "--noexpect_imagenet"]
    assert "with --train_archive" in refused(capsys, f"--data_dir={prepared}", *given)
    assert contents(prepared) == before


def copied(folder, to):
    to.mkdir()
    for name, data in contents(folder).items():
        (to / name).write_bytes(data)
    return to


def test_a_finished_folder_may_be_read_only(like, prepared, capsys, monkeypatch):
    # Linux says so before it looks for the file; root would not mind permissions.
    def unlink(path, missing_ok=False):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", unlink)
    assert prepare(f"--data_dir={prepared}", "--noexpect_imagenet") == 0
    assert "is finished" in capsys.readouterr().out


def test_a_damaged_manifest_is_named(like, prepared, tmp_path, capsys):
    folder = copied(prepared, tmp_path / "copy")
    path = folder / "manifest.json"
    whole = path.read_bytes()
    described = json.loads(whole)
    lacking = [
        {**described, "options": {"max_side": 0}},
        {**described, "options": {**described["options"], "quality": "0"}},
        {**described, "inputs": {}},
        {name: described[name] for name in described if name != "labels_sha256"},
        {**described, "splits": {**described["splits"], "test": {"shards": []}}},
        {**described, "splits": {"train": described["splits"]["train"]}},
        {**described, "classes": 4},
    ]
    for damaged in (
        b"",
        b"{}",
        b"[]",
        b"null",
        whole[: len(whole) // 2],
        b"\xff\xfe" + whole,
        *(json.dumps(one).encode() for one in lacking),
    ):
        path.write_bytes(damaged)
        for given in (["--verify"], like.flags):
            error = refused(capsys, f"--data_dir={folder}", *given)
            assert f"{path}: expected the manifest of" in error, damaged
            assert "prepare all in" in error or "prepare the data again" in error
        assert path.read_bytes() == damaged


def test_verify_finds_a_changed_byte(like, prepared, tmp_path, capsys):
    assert prepare(f"--data_dir={prepared}", "--verify") == 0
    assert "all 8 shards and labels.txt are" in capsys.readouterr().out
    copy = copied(prepared, tmp_path / "copy")
    labels = (copy / "labels.txt").read_text()
    for damaged in (labels.replace("n01440764", "n01440767"), None):
        if damaged is None:
            (copy / "labels.txt").unlink()
        else:
            (copy / "labels.txt").write_text(damaged)
        for flag in ("--verify", "--noexpect_imagenet"):
            error = refused(capsys, f"--data_dir={copy}", flag)
            assert "labels.txt" in error and "train-" not in error
    (copy / "labels.txt").write_text(labels)
    shard = copy / "train-00003-of-00007"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    assert shard.name in refused(capsys, f"--data_dir={copy}", "--verify")
    shard.unlink()
    for flag in ("--verify", "--noexpect_imagenet"):
        assert shard.name in refused(capsys, f"--data_dir={copy}", flag)


# Stopped and taken up again.


def started(folder, like, *arguments):
    """The tool as a process of its own that has written some shards, and not all."""
    slow = ["--train_shards=70", "--quality=50", *arguments]
    process = subprocess.Popen(
        [
            sys.executable,
            str(TOOLS / "prepare_imagenet.py"),
            f"--data_dir={folder}",
            *like.flags,
            *slow,
        ],
        cwd=TOOLS.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    journal = folder / "preparation.jsonl"
    end = time.monotonic() + DEADLINE
    while not journal.exists() or journal.read_bytes().count(b"\n") < 5:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    return process


def ended(process):
    """What it wrote and its exit code; with all that it started, it is gone."""
    try:
        output, errors = process.communicate(timeout=DEADLINE)  # workers hold the pipes
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return output, errors, process.returncode


def test_killed_in_the_middle_it_goes_on_to_the_same_files(like, tmp_path, capsys):
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    process = started(folder, like)
    process.kill()
    assert ended(process)[2] == -signal.SIGKILL
    assert not (folder / "manifest.json").exists()
    journal = folder / "preparation.jsonl"
    done = [json.loads(line)["file"] for line in journal.read_text().splitlines()[1:]]
    times = {name: (folder / name).stat().st_mtime_ns for name in done[1:]}
    (folder / done[0]).unlink()  # lost after all
    with open(journal, "a") as file:
        file.write('{"file": "train-0')  # the kill was in the middle of a line
    arguments = ["--train_shards=70", "--quality=50", *like.flags]

    error = refused(capsys, f"--data_dir={folder}", *arguments, "--quality=60")
    assert "--quality=50" in error and "--quality=60" in error
    other = tmp_path / "other.tar"  # one image has a byte more
    with tarfile.open(other, "w") as archive:
        for number, (name, data) in enumerate(like.images.items()):
            add(archive, name, data + bytes(number == 0))
    given = [*arguments, f"--train_archive={other}"]
    error = refused(capsys, f"--data_dir={folder}", *given)
    assert "the train images' checksum" in error
    assert not (folder / "manifest.json").exists()

    assert prepare(f"--data_dir={folder}", *arguments) == 0
    assert "going on" in capsys.readouterr().out
    assert prepare(f"--data_dir={whole}", *arguments) == 0
    assert contents(folder) == contents(whole)
    for name, written in times.items():  # kept, not written again
        assert (folder / name).stat().st_mtime_ns == written


def journal_line(file):
    """Of a shard of 3 bytes with one image that was left out."""
    return {
        "file": file,
        "records": 1,
        "bytes": 3,
        "sha256": "",
        "per_class": {"0": 1},
        "left_out": [{"image": "a/a.JPEG", "reason": "empty"}],
        "converted": [],
    }


def test_the_journal_forgets_a_line_that_was_cut_off(tmp_path):
    shard = journal_line("a")
    (tmp_path / "a").write_bytes(b"abc")
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    journal.add(journal_line("gone"))
    journal.close()
    with open(tmp_path / "preparation.jsonl", "a") as file:
        file.write('{"file": "b"')
    for _ in range(2):
        journal = preparation_journal.Journal(tmp_path, {"size": 1})
        journal.add(shard)
        journal.close()
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    assert journal.done == {"a": shard}
    journal.remove()
    preparation_journal.Journal(tmp_path, {"size": 2}).close()  # begins anew


@pytest.mark.parametrize(
    "damaged", [b"garbage", b"{}", b"[]", b"", b"\xff", b"7", b'"file"', b"[" * 9999]
)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_damaged_line_of_the_journal_is_named(tmp_path, damaged, number):
    path = tmp_path / "preparation.jsonl"
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    journal.add(journal_line("a"))
    journal.add(journal_line("b"))
    journal.close()
    lines = path.read_bytes().splitlines()
    lines[number - 1] = damaged
    whole = b"\n".join([*lines, b'{"cut'])
    path.write_bytes(whole)
    mend = "empty this file" if number == 1 else "remove this line"
    with pytest.raises(ValueError, match=f"{path}, line {number}: .*: {mend}"):
        preparation_journal.Journal(tmp_path, {"size": 1})
    assert path.read_bytes() == whole
    del lines[number - 1]
    whole = b"\n".join([*lines, b'{"cut'])
    path.write_bytes(b"" if number == 1 else whole)
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"abc")
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    assert set(journal.done) == {1: set(), 2: {"b"}, 3: {"a"}}[number]


@pytest.mark.parametrize("name", ["records", "left_out", "sha256"])
def test_a_line_of_the_journal_that_lacks_something_is_damaged(tmp_path, name):
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    wrong = {"records": 2, "left_out": [{"image": "a/a.JPEG"}], "sha256": None}
    journal.add({**journal_line("a"), name: wrong[name]})
    journal.close()
    with pytest.raises(ValueError, match="line 2: must be as this tool wrote it"):
        preparation_journal.Journal(tmp_path, {"size": 1})


def test_a_damaged_journal_is_a_refusal(like, tmp_path, capsys):
    (tmp_path / "preparation.jsonl").write_text("[]\n")
    error = refused(capsys, f"--data_dir={tmp_path}", *like.flags)
    assert f"{tmp_path}/preparation.jsonl, line 1: " in error


def finish_within(monkeypatch, module, name, finish):
    """Has another process finish the folder just as a function is called."""
    function = getattr(module, name)
    todo = [finish]

    def first(*arguments):
        if todo:
            todo.pop()()
        return function(*arguments)

    monkeypatch.setattr(module, name, first)


@pytest.mark.parametrize(
    "name",
    ["preflight", "Journal"],  # a moment before each of them
)
def test_a_folder_that_another_process_finishes_meanwhile_is_left_alone(
    like, prepared, tmp_path, capsys, monkeypatch, name
):
    for flag, code in (("--quality=50", 2), ("--train_shards=7", 0)):
        folder = tmp_path / f"{name}{code}"
        folder.mkdir()
        (folder / "preparation.jsonl").touch()  # the other one is at it

        def finish(folder=folder):
            for one, data in contents(prepared).items():
                (folder / one).write_bytes(data)
            (folder / "preparation.jsonl").unlink()

        with monkeypatch.context() as patch:
            finish_within(patch, prepare_imagenet, name, finish)
            arguments = [f"--data_dir={folder}", "--train_shards=7", *like.flags, flag]
            assert prepare(*arguments) == code
        output, errors = capsys.readouterr()
        if code:
            assert "--quality=0" in errors and "--quality=50" in errors
        else:
            assert "is finished" in output
        assert contents(folder) == contents(prepared)


def test_a_lock_on_a_journal_that_is_gone_is_none(tmp_path, monkeypatch):
    path = tmp_path / "preparation.jsonl"
    path.write_text('{"size": 2}\n')
    finish_within(monkeypatch, preparation_journal.fcntl, "flock", path.unlink)
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    assert path.read_text() == '{"size": 1}\n'
    path.unlink()
    journal.remove()


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop_it_leaves_whole_shards_only(like, tmp_path, number, code):
    process = started(tmp_path / "data", like)
    os.killpg(process.pid, number)  # as a terminal does: to the workers too
    output, errors, returned = ended(process)
    assert returned == code, output + errors
    assert "Traceback" not in errors
    shards = [path for path in (tmp_path / "data").iterdir() if "-of-" in path.name]
    assert 4 <= len(shards) < 71
    for shard in shards:
        assert not shard.name.startswith(".")
        records.Reader(records.index_files([str(shard)]), verify=True).read(0)


def test_two_at_once_are_refused(like, tmp_path, capsys):
    folder = tmp_path / "data"
    process = started(folder, like)
    process.send_signal(signal.SIGSTOP)
    try:
        same = ["--train_shards=70", "--quality=50", *like.flags]
        assert "another is at it" in refused(capsys, f"--data_dir={folder}", *same)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        ended(process)


def test_on_a_full_disk_it_says_so_and_goes_on_later(like, tmp_path):
    arguments = [f"--data_dir={tmp_path}/data", "--train_shards=2", *like.flags]
    tool = [sys.executable, str(TOOLS / "prepare_imagenet.py"), *arguments]
    limit = (300_000, 300_000)  # bytes of a file: less than a shard has
    full = subprocess.run(
        tool,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert full.returncode == 2 and full.stderr.count("\n") == 1
    assert "File too large" in full.stderr and "same command" in full.stderr
    assert [path.name for path in (tmp_path / "data").iterdir()] == [
        "preparation.jsonl"
    ]
    assert prepare(*arguments) == 0


# Other forms of the same images.


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def kaggle(like):
    """The images under the names of Kaggle's archive."""
    root = "ILSVRC/Data/CLS-LOC"
    names = {f"{root}/train/{name}": data for name, data in like.images.items()}
    for name, data in like.validation_images.items():
        names[f"{root}/val/{name}"] = data
    names[f"{root}/test/ILSVRC2012_test_00000001.JPEG"] = b"not wanted"
    names["ILSVRC/Annotations/CLS-LOC/val/ILSVRC2012_val_00000001.xml"] = b"<a/>"
    return names


def kaggle_labels(like, path):
    """LOC_val_solution.csv, in no order."""
    rows = zip(sorted(like.validation_images), like.synsets, strict=True)
    lines = [f"{name[:-5]},{synset} 1 2 3 4 \n" for name, synset in rows]
    path.write_text("ImageId,PredictionString\n" + "".join(reversed(lines)))
    return path


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
    labels = kaggle_labels(like, folder / "LOC_val_solution.csv")
    return [
        f"--train_archive={path}",
        f"--validation_archive={path}",
        f"--validation_labels={labels}",
    ]


def as_zip(like, folder):
    path = folder / "kaggle.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, data) in enumerate(kaggle(like).items()):
            kind = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[number % 2]
            archive.writestr(name, data, kind)
    labels = kaggle_labels(like, folder / "LOC_val_solution.csv")
    return [
        f"--train_archive={path}",
        f"--validation_archive={path}",
        f"--validation_labels={labels}",
    ]


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


# What is refused.


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


def test_too_many_bad_images_stop_it_with_3_and_more_may_be_allowed(
    like, tmp_path, capsys
):
    arguments = [f"--data_dir={tmp_path}/data", "--train_shards=7", *like.flags]
    assert prepare(*arguments, "--max_bad_images=1") == 3
    output, errors = capsys.readouterr()
    assert "more than --max_bad_images=1" in errors
    assert "0 bytes" in output or "truncated" in output
    assert not (tmp_path / "data" / "manifest.json").exists()
    assert prepare(*arguments, "--max_bad_images=4") == 0
    output = capsys.readouterr().out
    assert train_name(ODD["empty"]) in output and train_name(ODD["cut off"]) in output


# What is stored of an image.


@pytest.fixture(scope="module")
def photo():
    return make_imagenet_like.photograph(0, 200, 150)


def test_an_image_that_any_decoder_takes_keeps_its_bytes(photo):
    image = Image.open(io.BytesIO(photo))
    for options in ({"progressive": True}, {"restart_marker_rows": 1}):
        file = io.BytesIO()
        image.save(file, "JPEG", comment=b"\xff\xd9", **options)
        kept = stored_image.stored(file.getvalue())
        assert kept == (file.getvalue(), 150, 200, "")
    junk = photo + b"junk after the end"
    assert stored_image.stored(junk) == (junk, 150, 200, "")


def test_a_jpeg_without_its_end_is_decoded_to_see():
    # A thumbnail in the header has an end of its own, which is not the image's.
    photo = make_imagenet_like.photograph(1, 200, 150)
    inner = make_imagenet_like.photograph(1, 20, 15)
    segment = b"\xff\xe5" + (len(inner) + 2).to_bytes(2, "big") + inner
    data = photo[:2] + segment + photo[2:]
    assert stored_image.stored(data).data == data
    for cut in (data[:-2], data[: len(data) // 2], data[:30], b"\xff\xd8"):
        with pytest.raises(stored_image.BadImage):
            stored_image.stored(cut)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "I;16"])
def test_every_png_becomes_rgb(mode):
    levels = np.linspace(0, 255, 64 * 64).reshape(64, 64).astype(np.uint8)
    if mode == "I;16":
        image = Image.fromarray(levels.astype(np.uint16) * 257)
    else:
        image = Image.fromarray(levels).convert(mode)
    file = io.BytesIO()
    image.save(file, "PNG")
    kept = stored_image.stored(file.getvalue())
    assert kept[1:] == (64, 64, "PNG")
    made = Image.open(io.BytesIO(kept.data))
    assert made.mode == "RGB" and made.format == "JPEG"
    if mode != "1":
        assert np.abs(pixels(kept.data)[:, :, 0] - levels).mean() < 2


def test_max_side_and_quality_store_less(photo):
    kept = stored_image.stored(photo, max_side=100)
    assert kept[1:] == (75, 100, "")
    assert pixels(kept.data).shape == (75, 100, 3)
    wanted = np.asarray(
        Image.open(io.BytesIO(photo)).resize((100, 75), Image.Resampling.LANCZOS)
    )
    assert np.abs(pixels(kept.data) - wanted).mean() < 8
    assert stored_image.stored(photo, max_side=200).data == photo
    less = stored_image.stored(photo, quality=50)
    assert less[1:] == (150, 200, "") and len(less.data) < len(photo) / 2
    assert stored_image.stored(less.data, quality=90).data == less.data
    grey = io.BytesIO()
    Image.open(io.BytesIO(photo)).convert("L").save(grey, "JPEG", quality=95)
    less = stored_image.stored(grey.getvalue(), quality=50)
    assert Image.open(io.BytesIO(less.data)).mode == "L"


def test_the_orientation_is_ignored(photo):
    data = make_imagenet_like.odd("rotated", 0)
    assert stored_image.stored(data) == (data, 375, 500, "")
    small = stored_image.stored(data, max_side=100)
    assert small[1:] == (75, 100, "")
    assert not Image.open(io.BytesIO(small.data)).getexif()
