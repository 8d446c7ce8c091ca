"""The Model Garden's Mask R-CNN in its own environment, by the real commands."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tool_runs

from tf_goyal import backbone, resnet

garden_parity = tool_runs.load("garden_parity")
GARDEN = tool_runs.TOOLS.parent / ".venv-detection" / "bin" / "python"
DEADLINE = 900
pytestmark = pytest.mark.skipif(
    not GARDEN.exists(),
    reason="tools/detection/setup has not been run: its 3 GB are not for every test",
)


def started(script, *arguments):
    return subprocess.Popen(
        [GARDEN, tool_runs.TOOLS / "detection" / script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process):
    """Its exit code and all it said; killed at the deadline."""
    try:
        output, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    return process.returncode, output


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    return digits_coco(tmp_path_factory.mktemp("digits") / "coco")


def digits_coco(folder):
    """Eight images of digits to train on, two to evaluate on: the flags."""
    maker = tool_runs.TOOLS / "make_digits_coco.py"
    flags = [f"--out={folder}", "--train=8", "--validation=2", "--size=64"]
    subprocess.run([sys.executable, maker, *flags], check=True, timeout=DEADLINE)
    return [
        f"--{split}_{what}={folder / place}"
        for split in ("train", "validation")
        for what, place in (
            ("annotations", f"annotations/{split}.json"),
            ("images", split),
        )
    ]


def small(coco, model_dir, *flags):
    """Training from scratch on 20 images, one a step, a checkpoint every two."""
    sizes = ["--image_size=64", "--rois=8", "--detections=5", "--anchor_size=4"]
    length = ["--images_per_step=1", "--images_seen=20", "--base_lr=0.001"]
    return [*coco, f"--model_dir={model_dir}", *sizes, *length, *flags]


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--image_size=96", "--image_size must be a multiple of 64, received 96"),
        ("--frozen_bn", "--frozen_bn must come with a --backbone"),
        ("--backbone=nowhere", "nowhere must be the folder backbone/ of an export"),
        ("--depth=51", "flag --depth=51: value should be one of <50|101|152>"),
        ("--base_lr=nan", "--base_lr must be above 0 and finite, received nan"),
        ("--anchor_size=0", "--anchor_size must be above 0 and finite, received 0.0"),
        ("--model_dir=/proc/run", "--model_dir must be a folder that can be written"),
        ("--train_images=nowhere", "8 of the 8 images of"),
    ],
)
def test_settings_are_refused_by_name(coco, tmp_path, flag, says):
    code, output = ended(started("mask_rcnn.py", *small(coco, tmp_path / "run", flag)))
    assert (code, says in output) == (2, True), output
    assert not (tmp_path / "run").exists()


def test_data_that_were_refused_are_mended_and_tried_again(tmp_path):
    """An image that is not as large as the file says; nothing was trained yet."""
    coco = digits_coco(tmp_path / "coco")
    annotations = tmp_path / "coco" / "annotations" / "train.json"
    right = annotations.read_text()
    wrong = json.loads(right)
    wrong["images"][0]["height"] += 1
    annotations.write_text(json.dumps(wrong))
    flags = small(coco, tmp_path / "run", "--images_seen=1")
    code, output = ended(started("mask_rcnn.py", *flags))
    assert (code, "65 x 64" in output) == (2, True), output
    annotations.write_text(right)
    code, output = ended(started("mask_rcnn.py", *flags))
    assert code == 0, output
    annotations.write_text(json.dumps({**json.loads(right), "images": []}))
    code, output = ended(started("mask_rcnn.py", *flags))
    assert (code, "must have images, it has none" in output) == (2, True), output
    one_less = json.loads(right)
    del one_less["annotations"][0]
    annotations.write_text(json.dumps(one_less))
    code, output = ended(started("mask_rcnn.py", *flags))
    assert (code, "SHA-256 of the training data was" in output) == (2, True), output


def write_backbone(folder, **changes):
    """The export of a ResNet-50, with what its metadata says changed."""
    about = json.loads(garden_parity.about("resnet50", "same"))
    model = resnet.build("resnet50", classes=2, image_size=32)
    backbone.write(model, folder, json.dumps({**about, **changes}))


def features(folder):
    """Exit code and output of the Model Garden's features of a black image."""
    images = folder / "images.npy"
    np.save(images, np.zeros([1, 32, 32, 3], np.uint8))
    output = folder / "features.npz"
    return ended(started("features.py", folder / "backbone", images, output))


def test_a_backbone_of_another_depth_is_refused_by_a_variable(tmp_path):
    """X3: what has no partner on either side is an error that names it."""
    write_backbone(tmp_path, model="resnet101")
    code, output = features(tmp_path)
    assert (code, "does not fit the Model Garden's" in output) == (1, True), output
    assert "bottleneck_block" in output


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"padding": "valid"}, "'padding': 'valid'"),
        ({"model": "resnet20"}, "'model': 'resnet20'"),
        ({"batch_norm": {"epsilon": "x"}}, "metadata.json is not as tf_goyal.export"),
        ({"preprocessing": None}, "metadata.json is not as tf_goyal.export"),
    ],
)
def test_a_backbone_that_nothing_can_be_told_of(tmp_path, changes, says):
    """X3: padding, epsilon or pixels that would be taken for others."""
    write_backbone(tmp_path, **changes)
    code, output = features(tmp_path)
    assert (code, says in output) == (1, True), output


def test_every_variable_of_a_backbone_is_matched(tmp_path):
    """X3, with the metadata of tools/garden_parity.py."""
    write_backbone(tmp_path)
    code, output = features(tmp_path)
    assert (code, "265 variables matched" in output) == (0, True), output


def test_a_damaged_backbone(tmp_path):
    write_backbone(tmp_path)
    (data,) = (tmp_path / "backbone").glob("*.data-*")
    data.write_bytes(data.read_bytes()[:-1000])
    code, output = features(tmp_path)
    assert (code, "is damaged" in output) == (1, True), output
    assert "Traceback" not in output


def test_a_killed_training_goes_on_and_other_settings_are_refused(coco, tmp_path):
    run = tmp_path / "run"
    first = started("mask_rcnn.py", *small(coco, run))
    deadline = time.monotonic() + DEADLINE
    while not (run / "checkpoint").exists():  # which names the first one
        assert first.poll() is None and time.monotonic() < deadline, ended(first)
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    assert ended(first)[0] == -signal.SIGKILL
    assert not (run / "metrics.json").exists()

    code, output = ended(started("mask_rcnn.py", *small(coco, run)))
    assert code == 0, output
    assert f"restored from checkpoint: {run}/ckpt-" in output
    found = json.loads((run / "metrics.json").read_text())
    assert found["schedule"] == {"steps": 20, "rate": 0.001 / 16, "warmup_steps": 2}
    assert (found["training_images"], found["validation_images"]) == (8, 2)
    assert set(found["ap"]) >= {"box AP", "mask AP"}
    assert isinstance(json.loads((run / "detections.json").read_text()), list)

    code, output = ended(started("mask_rcnn.py", *small(coco, run, "--images_seen=40")))
    assert (code, "--images_seen was 20, now 40" in output) == (2, True), output
