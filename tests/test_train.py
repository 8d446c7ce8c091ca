"""Runs with real processes: train, stop, kill, resume, and compare to the bit."""

import json
import signal
import time
from importlib.metadata import version

import numpy as np
import psutil
import pytest
from training import (
    DEADLINE,
    evaluations,
    final_hash,
    losses,
    make_data,
    recipe,
    started,
    train,
    wait_for,
)

from tf_goyal import checkpoint, run_log


@pytest.fixture(scope="module")
def two(data, tmp_path_factory):
    """A run by two processes of TF_CONFIG: its folder, and what they printed."""
    model_dir = tmp_path_factory.mktemp("two") / "run"
    flags = recipe(data, model_dir)
    return model_dir, train(flags, flags)


def test_two_local_workers(two):
    """S1, D1 (one file, two workers): exit 0 on both, the same hash on both."""
    model_dir, results = two
    assert [code for code, _ in results] == [0, 0], results
    (first, second) = (final_hash(text) for _, text in results)
    assert first == second
    # The log's last evaluation is of these very weights; so is the checkpoint.
    assert evaluations(model_dir)[-1]["weights_sha256"] == first
    arrays, manifest = checkpoint.load_latest(str(model_dir))
    model = {n: a for n, a in arrays.items() if n.startswith("model/")}
    assert checkpoint.weights_sha256(model) == first
    assert manifest["step"] == arrays["optimizer/sgd/iteration"] == 10


def test_the_log_says_what_the_contract_says(two):
    lines = run_log.read(str(two[0]))
    train_line = [line for line in lines if line["kind"] == "train"][-1]
    assert list(train_line) == [
        "kind",
        "step",
        "epoch",
        "images",
        "lr",
        "loss",
        "top1_error",
        "images_per_second",
        "seconds",
    ]
    assert list(train_line["seconds"]) == ["input", "compute", "exposed_communication"]
    assert (train_line["step"], train_line["images"]) == (10, 320)
    assert train_line["epoch"] == 320 / 120
    assert list(evaluations(two[0])[-1]) == [
        "kind",
        "step",
        "epoch",
        "images",
        "loss",
        "top1_error",
        "top5_error",
        "weights_sha256",
    ]
    # An epoch is 3.75 steps: the first is complete with step 4, the second with 8.
    assert [line["step"] for line in evaluations(two[0])] == [4, 8, 10]
    config = json.loads((two[0] / "config.json").read_text())
    assert config["flags"]["global_batch"] == 32
    assert config["derived"]["virtual_workers"] == 4
    assert config["versions"]["tensorflow"] == version("tensorflow")


@pytest.fixture(scope="module")
def resumed(data, tmp_path_factory):
    """The same run by one process, which SIGTERM stops, and which then goes on."""
    model_dir = tmp_path_factory.mktemp("resumed") / "run"
    flags = recipe(data, model_dir)
    with started("tf_goyal.train", flags) as process:
        wait_for(model_dir, '"step": 1,', process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=DEADLINE)
    stopped_at = checkpoint.steps(str(model_dir))[-1]
    code_then = process.returncode
    return model_dir, (code_then, output), stopped_at, train(flags)[0]


def test_stopped_and_resumed_on_another_layout_to_the_bit(two, resumed):
    """M6, D10, F7: two processes in one go, or one in two: the same bits."""
    model_dir, (code, output), stopped_at, (code_again, output_again) = resumed
    assert code == 143, output
    assert 1 <= stopped_at < 10
    assert f"asked to stop: saved at step {stopped_at}" in output
    assert code_again == 0, output_again
    assert final_hash(output_again) == final_hash(two[1][0][1])
    assert losses(model_dir) == losses(two[0])
    rates = [
        {
            line["step"]: line["lr"]
            for line in run_log.read(str(folder))
            if line["kind"] == "train"
        }
        for folder in (model_dir, two[0])
    ]
    assert rates[0] == rates[1]


def test_validation_counts_every_image_on_any_layout(two, resumed):
    """D8: 50 images in batches of 8, two processes and one: equal to the bit."""
    assert [line["images"] for line in evaluations(two[0])] == [50, 50, 50]
    names = ("step", "loss", "top1_error", "top5_error", "weights_sha256")
    for ours, theirs in zip(evaluations(two[0]), evaluations(resumed[0]), strict=True):
        assert [ours[name] for name in names] == [theirs[name] for name in names]


def test_a_finished_run_is_left_alone(data, two):
    """F5: exit 0 at once; no file of the run is touched."""
    model_dir = two[0]
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in model_dir.rglob("*")}
    code, output = train(recipe(data, model_dir))[0]
    assert code == 0
    assert "already done" in output
    after = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in model_dir.rglob("*")}
    assert after == before


def test_another_recipe_does_not_go_on_from_this_checkpoint(data, two):
    code, output = train(recipe(data, two[0], steps=20, seed=5, base_lr=0.2))[0]
    assert code == 2
    assert "--base_lr was 0.1, now 0.2; --seed was 0, now 5" in output


def test_a_longer_run_does_not_go_on_from_a_step_that_was_not_full(data, two, tmp_path):
    """120 images are 3.75 steps: what step 4 of a run of one epoch left out comes."""
    short = {"steps": 0, "epochs": 1, "checkpoint_every": 0.01, "lr_boundaries": ""}
    flags = recipe(data, tmp_path / "short", warmup="none", **short)
    assert train(flags)[0][0] == 0
    longer = recipe(data, tmp_path / "short", warmup="none", **{**short, "epochs": 2})
    code, output = train(longer)[0]
    assert code == 0, output
    assert "step-4 ends a shorter run" in output
    fresh = recipe(data, tmp_path / "fresh", warmup="none", **{**short, "epochs": 2})
    assert final_hash(train(fresh)[0][1]) == final_hash(output)


def test_another_data_set_does_not_go_on_from_this_checkpoint(two, tmp_path):
    other = make_data(tmp_path / "other", 100, 50)
    code, output = train(recipe(other, two[0], steps=20))[0]
    assert code == 2
    assert "training images were 120, now 100" in output


def test_seven_images_on_two_workers(tmp_path):
    """D2: n = 2, 2 workers, 3 epochs: no hang, 21 images."""
    data = make_data(tmp_path / "set", 7, 3)
    flags = recipe(
        data,
        tmp_path / "run",
        global_batch=4,
        worker_batch=2,
        base_batch=4,
        steps=0,
        epochs=3,
    )
    for code, output in train(flags, flags):
        assert code == 0, output
    lines = run_log.read(str(tmp_path / "run"))
    last = [line for line in lines if line["kind"] == "train"][-1]
    assert (last["step"], last["images"], last["epoch"]) == (6, 21, 3.0)


def test_three_files_on_four_workers(tmp_path):
    """D1, with 4 processes of one virtual worker each."""
    data = make_data(tmp_path / "set", 40, 10, files=3)
    flags = recipe(data, tmp_path / "run", steps=2)
    results = train(flags, flags, flags, flags)
    assert [code for code, _ in results] == [0] * 4, results
    assert len({final_hash(output) for _, output in results}) == 1


def test_a_loss_that_is_not_finite_stops_all_at_the_same_step(data, tmp_path):
    """F4: exit 3 on both, and the last good checkpoint stays."""
    flags = recipe(
        data,
        tmp_path / "run",
        base_lr=1e12,
        warmup="none",
        checkpoint_every=0.01,
        reduction="fast",
        lr_boundaries="",
    )
    results = train(flags, flags)
    assert [code for code, _ in results] == [3, 3], results
    (event,) = [
        e for e in run_log.read(str(tmp_path / "run")) if e.get("event") == "not_finite"
    ]
    # Whatever was saved can be gone on from: no weight in it is NaN or infinite.
    saved = checkpoint.steps(str(tmp_path / "run"))
    assert all(step < event["step"] for step in saved)
    for step in saved:
        arrays, _ = checkpoint.load(
            checkpoint.folder(tmp_path / "run") / f"step-{step}"
        )
        assert all(np.isfinite(array).all() for array in arrays.values())


def test_a_killed_worker_is_started_again_and_nothing_shows(data, two, tmp_path):
    """F1: kill -9; the other leaves with 138, launch restarts, the bits are equal."""
    model_dir = tmp_path / "run"
    flags = recipe(data, model_dir, checkpoint_every=0.01)
    launch = ["--processes=2", "--restarts=1", "--", *flags]
    with started("tf_goyal.launch", launch) as process:
        deadline = time.monotonic() + DEADLINE
        while not checkpoint.steps(str(model_dir)):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        children = psutil.Process(process.pid).children()
        (victim,) = [
            c
            for c in children
            if json.loads(c.environ()["TF_CONFIG"])["task"]["index"] == 1
        ]
        victim.kill()
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, output
    assert "starting again" in output
    assert final_hash(output) == final_hash(two[1][0][1])
    events = [e.get("event") for e in run_log.read(str(model_dir))]
    assert events.count("start") == 2
