"""tools/detection/draw.py: what it shows, and what it refuses."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tool_runs
from PIL import Image
from pycocotools import mask as masks

SIDE = 40


@pytest.fixture
def run(tmp_path):
    """A folder as of mask_rcnn.py with two images, the first's left half found."""
    images = tmp_path / "images"
    images.mkdir()
    for i in (1, 2):
        Image.new("RGB", (SIDE, SIDE)).save(images / f"{i}.png")
    half = np.zeros([SIDE, SIDE], np.uint8, order="F")
    half[:, : SIDE // 2] = 1
    code = masks.encode(half)
    found = [
        {
            "image_id": 1,
            "category_id": 3,
            "bbox": [0, 0, SIDE / 2, SIDE],
            "score": 0.5,
            "segmentation": {"size": code["size"], "counts": code["counts"].decode()},
        }
    ]
    described = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in (1, 2)],
        "categories": [{"id": 3, "name": "cat"}],
    }
    (tmp_path / "validation.json").write_text(json.dumps(described))
    (tmp_path / "detections.json").write_text(json.dumps(found))
    return tmp_path


def draw(run, *flags):
    return subprocess.run(
        [
            sys.executable,
            tool_runs.TOOLS / "detection" / "draw.py",
            f"--model_dir={run}",
            f"--images={run / 'images'}",
            f"--output={run / 'found.png'}",
            *flags,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


def black(run):
    """How much of the picture's left and of its right half is black."""
    picture = np.asarray(Image.open(run / "found.png").convert("L"))
    middle = picture.shape[1] // 2
    return [
        float((part < 8).mean()) for part in (picture[:, :middle], picture[:, middle:])
    ]


@pytest.mark.parametrize(("least", "shown"), [(0.49, True), (0.5, True), (0.51, False)])
def test_what_is_surer_than_asked_is_coloured(run, least, shown):
    done = draw(run, f"--score={least}")
    assert done.returncode == 0, done.stdout
    with_object, without = black(run)
    assert without > 0.7
    assert (with_object < 0.6 * without) == shown


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--count=0"], "draw: flag --count=0: "),
        (
            ["--model_dir=nowhere"],
            "nowhere/validation.json cannot be read: No such file",
        ),
        (["--images=nowhere"], "nowhere/1.png cannot be read"),
        (["--output=/proc/found.png"], "--output=/proc/found.png cannot be written"),
        (["--output=found.txt"], "--output=found.txt cannot be written: Format 'txt'"),
        (["found.png"], "takes flags only, written --name=value, got 'found.png'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(run, flags, says):
    done = draw(run, *flags)
    assert (done.returncode, says in done.stdout) == (2, True), done.stdout
    assert "Traceback" not in done.stdout
