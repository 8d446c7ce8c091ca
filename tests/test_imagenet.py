"""From the original archives' layout to a trained epoch, with the real commands."""

import json

import pytest

from tf_goyal import run_log

IMAGES, VALIDATION = 300, 40


@pytest.fixture(scope="module")
def archives(python, tmp_path_factory):
    """A small ImageNet as it is downloaded, with every odd kind of image in it."""
    folder = tmp_path_factory.mktemp("archives")
    done = python(
        "tools/make_imagenet_like.py",
        f"--out={folder}",
        "--classes=5",
        f"--train_images={IMAGES}",
        f"--validation_images={VALIDATION}",
        "--image_bytes=12000",
        "--varied",
        "--odd",
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def prepared(archives, python, tmp_path_factory):
    """Number of shards -> folder."""
    folders = {}
    for shards in (1, 7, 64):
        folders[shards] = tmp_path_factory.mktemp(f"shards-{shards}") / "data"
        done = python(
            "tools/prepare_imagenet.py",
            f"--data_dir={folders[shards]}",
            f"--train_archive={archives / 'ILSVRC2012_img_train.tar'}",
            f"--validation_archive={archives / 'ILSVRC2012_img_val.tar'}",
            f"--validation_labels={archives / 'validation_labels.txt'}",
            f"--train_shards={shards}",
            "--noexpect_imagenet",
        )
        assert done.returncode == 0, done.stderr
    return folders


def given(python, folder, processes, **changes):
    """(step, worker) -> hash of the images and labels, by that many processes."""
    found = {}
    for rank in range(processes):
        layout = {"data_dir": str(folder), "processes": processes, "rank": rank}
        done = python("tests/worker_images.py", json.dumps({**layout, **changes}))
        assert done.returncode == 0, done.stderr
        for line in done.stdout.splitlines():
            step, worker, digest = line.split()
            assert (step, worker) not in found
            found[step, worker] = digest
    return found


def test_shards_and_processes_do_not_matter(prepared, python):
    """D1, D3: 1, 7 and 64 shards, read by 1, 3 and 2 processes: image for image."""
    one, seven, many = (
        given(python, prepared[shards], processes)
        for shards, processes in ((1, 1), (7, 3), (64, 2))
    )
    assert one == seven == many
    steps = {int(step) for step, _ in one}
    assert len(one) == 6 * len(steps) and len(steps) >= 15


def test_streaming_depends_on_the_shards_and_not_on_the_processes(prepared, python):
    """D4: the alternative order, which gives the former up."""
    one, two, other = (
        given(python, prepared[shards], processes, shuffle="streaming")
        for shards, processes in ((7, 1), (7, 2), (64, 1))
    )
    assert one == two != other


def test_from_tar_to_a_trained_epoch(prepared, python, tmp_path):
    """The README's tour: no record is broken any more, and every image counts."""
    manifest = json.loads((prepared[7] / "manifest.json").read_text())
    counts = {name: split["records"] for name, split in manifest["splits"].items()}
    left_out = [image for s in manifest["splits"].values() for image in s["left_out"]]
    converted = {c["from"] for s in manifest["splits"].values() for c in s["converted"]}
    assert sum(counts.values()) + len(left_out) == IMAGES + VALIDATION
    assert left_out and {"CMYK", "PNG"} <= converted
    model_dir = tmp_path / "run"
    done = python(
        *("-m", "tf_goyal.launch", "--processes=2", "--"),
        *("--dataset=tfrecord", f"--data_dir={prepared[7]}"),
        *(f"--model_dir={model_dir}", "--model=resnet20", "--image_size=32"),
        *("--global_batch=32", "--worker_batch=8", "--base_batch=32"),
        *("--epochs=1", "--lr_boundaries="),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = run_log.read(str(model_dir))
    assert not [line for line in lines if line.get("event") == "broken_record"]
    assert [line["images"] for line in lines if line["kind"] == "eval"] == [
        counts["validation"]
    ]
    assert [line["images"] for line in lines if line["kind"] == "train"][-1] <= IMAGES
