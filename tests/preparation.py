"""A synthetic ImageNet, preparations of it, and what is in them, for several tests."""

import importlib
import io
import signal
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tf_goyal import examples, flags, records

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS))
make_imagenet_like = importlib.import_module("make_imagenet_like")
prepare_imagenet = importlib.import_module("prepare_imagenet")

CLASSES, TRAIN, VALIDATION = 3, 70, 20
SYNSETS = ["n01440764", "n01440765", "n01440766"]
DEADLINE = 180  # seconds, of one preparation
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


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def kaggle_labels(like, path):
    """LOC_val_solution.csv, in no order."""
    rows = zip(sorted(like.validation_images), like.synsets, strict=True)
    lines = [f"{name[:-5]},{synset} 1 2 3 4 \n" for name, synset in rows]
    path.write_text("ImageId,PredictionString\n" + "".join(reversed(lines)))
    return path


def finish_within(monkeypatch, module, name, finish):
    """Has another process finish the folder just as a function is called."""
    function = getattr(module, name)
    todo = [finish]

    def first(*arguments):
        if todo:
            todo.pop()()
        return function(*arguments)

    monkeypatch.setattr(module, name, first)
