"""Runs with real processes: train, stop, kill, resume, and compare to the bit."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pictures
import psutil
import pytest

from tf_goyal import checkpoint, datasets, run_log
from tf_goyal.launch import free_ports

DEADLINE = 240  # seconds; what is hung in a collective is killed then
ROOT = Path(__file__).resolve().parent.parent


def make_data(folder, train, validation, files=1, instead=None):
    """A `tfrecord` data set of the first digits, its training part in `files` files.

    Args:
      instead: (split, record) -> the bytes to store in place of the image.
    """
    folder.mkdir()
    digits = datasets.load("digits")
    for split, count, shards in (
        (digits.train, train, files),
        (digits.validation, validation, 1),
    ):
        images, labels = zip(*map(split.read, range(count)), strict=True)
        images = [
            (instead or {}).get((split.name, record), image)
            for record, image in enumerate(images)
        ]
        pictures.write_shards(folder, images, shards, split.name, labels)
    (folder / "labels.txt").write_text("\n".join(digits.labels) + "\n")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """120 training images in one file, 50 for validation."""
    return make_data(tmp_path_factory.mktemp("data") / "set", 120, 50)


def recipe(data, model_dir, **changes):
    """k = 4 workers of n = 8, exact, 10 steps; an evaluation every 3.75 steps."""
    flags = {
        "dataset": "tfrecord",
        "data_dir": data,
        "model_dir": model_dir,
        "model": "resnet20",
        "image_size": 16,
        "eval_resize": 16,
        "global_batch": 32,
        "worker_batch": 8,
        "base_batch": 16,
        "warmup_epochs": 0.5,
        "lr_boundaries": "1,2",
        "steps": 10,
        "reduction": "exact",
        "allreduce": "halving_doubling",
        "log_every": 1,
    }
    return [f"--{name}={value}" for name, value in {**flags, **changes}.items()]


@contextlib.contextmanager
def started(module, arguments, rank=0, ports=(0,), output=subprocess.PIPE):
    """One process; killed, children and all, when the test is done with it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_CONFIG", None)
    if len(ports) > 1:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        task = {"type": "worker", "index": rank}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def train(*ranks):
    """Trains with one process for each list of flags: [(exit code, output), …]."""
    ports = free_ports(len(ranks))
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(started("tf_goyal.train", flags, rank, ports))
            for rank, flags in enumerate(ranks)
        ]
        outputs = [process.communicate(timeout=DEADLINE)[0] for process in processes]
    return [(p.returncode, text) for p, text in zip(processes, outputs, strict=True)]


def final_hash(output):
    """weights_sha256 of a process' last line."""
    return output.strip().split("weights_sha256 ")[1][:64]


def evaluations(model_dir):
    lines = run_log.read(str(model_dir))
    return [line for line in lines if line["kind"] == "eval"]


def losses(model_dir):
    lines = run_log.read(str(model_dir))
    return {line["step"]: line["loss"] for line in lines if line["kind"] == "train"}


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
        log = model_dir / run_log.FILE_NAME
        deadline = time.monotonic() + DEADLINE
        while not (log.exists() and '"step": 1,' in log.read_text()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
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


@pytest.mark.parametrize("algorithm", ["halving_doubling", "ring"])
def test_a_peer_that_stops_answering_is_named(data, tmp_path, algorithm):
    """A stopped process raises no error anywhere: the others leave with 138."""
    changes = {"steps": 100_000, "collective_timeout": 3, "allreduce": algorithm}
    flags = recipe(data, tmp_path / "run", **changes)
    ports = free_ports(3)
    log = tmp_path / "run" / "log.jsonl"
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(started("tf_goyal.train", flags, rank, ports))
            for rank in range(3)
        ]
        deadline = time.monotonic() + DEADLINE
        while not (log.exists() and '"step": 3,' in log.read_text()):
            assert time.monotonic() < deadline and processes[0].poll() is None
            time.sleep(0.1)
        processes[2].send_signal(signal.SIGSTOP)
        outputs = [p.communicate(timeout=DEADLINE)[0] for p in processes[:2]]
    assert [process.returncode for process in processes[:2]] == [138, 138], outputs
    # TensorFlow may notice it too, and tell some of them first.
    assert all("a peer was lost: " in output for output in outputs)
    (said, *_) = [text for text in outputs if "a peer was lost: step " in text]
    if algorithm == "ring":
        assert "do not say from whom" in said
    else:  # rank 1 may wait for rank 0, which waits for rank 2
        assert "missing: bucket_" in said and "from_rank_" in said
    assert run_log.read(str(tmp_path / "run"))[-1]["event"] == "peer_lost"


def test_auto_measures_and_says_what_it_picks(data, tmp_path):
    """Issue 4's auto: agreed by all ranks, and the bits of any other algorithm."""
    flags = recipe(data, tmp_path / "run", allreduce="auto", steps=2)
    results = train(flags, flags)
    assert [code for code, _ in results] == [0, 0], results
    (line,) = [
        line
        for line in run_log.read(str(tmp_path / "run"))
        if line.get("event") == "all_reduce"
    ]
    assert set(line["measured"]) == {"ring", "halving_doubling"}
    for times in line["measured"].values():
        assert "1024" in times and all(seconds > 0 for seconds in times.values())
    picked = {bucket["algorithm"] for bucket in line["buckets"]}
    assert picked <= {"ring", "halving_doubling"}
    other = recipe(data, tmp_path / "other", bucket_mb=0.25, steps=2)
    assert final_hash(train(other, other)[0][1]) == final_hash(results[0][1])


@pytest.fixture(scope="module")
def odd_data(tmp_path_factory):
    """D5, D6: odd images that are good, and in training four and one that are not."""
    folder = make_data(
        tmp_path_factory.mktemp("odd") / "set",
        120,
        50,
        files=3,
        instead={
            ("train", 3): pictures.cmyk(),
            ("train", 11): pictures.encode(pictures.pixels(20, 30), "PNG"),
            ("train", 17): pictures.rotated(),
            ("train", 5): pictures.truncated(),
            ("train", 45): b"",
            ("train", 77): pictures.undecodable(),
            ("validation", 20): pictures.truncated(),
        },
    )
    last = folder / "train-00002-of-00003"
    last.write_bytes(last.read_bytes()[:-10])
    return folder


def broken(model_dir):
    """What the log says of broken records: {(split, record): reason}."""
    return {
        (line["split"], line["record"]): (line["place"], line["why"])
        for line in run_log.read(str(model_dir))
        if line.get("event") == "broken_record"
    }


def test_broken_records_change_nothing_between_layouts(odd_data, tmp_path):
    """D5, D6: one process, three, and one after a stop: the same weights to the bit."""
    one, three = tmp_path / "one", tmp_path / "three"
    alone = train(recipe(odd_data, one))
    flags = recipe(odd_data, three, allreduce="auto")
    together = train(flags, flags, flags)
    assert [code for code, _ in alone + together] == [0] * 4, alone + together
    hashes = {final_hash(output) for _, output in alone + together}
    assert len(hashes) == 1
    named = broken(one)
    assert named == broken(three)
    assert set(named) == {("train", r) for r in (5, 45, 77, 119)} | {("validation", 20)}
    for (split, record), words in {
        ("train", 5): ("train-00000-of-00003, record 5", "cut off"),
        ("train", 45): ("train-00001-of-00003, record 5", "empty"),
        ("train", 77): ("train-00001-of-00003, record 37", "cannot be decoded"),
        ("train", 119): ("train-00002-of-00003, record 39", "10 bytes before"),
        ("validation", 20): ("validation-00000-of-00001, record 20", "cut off"),
    }.items():
        place, why = named[split, record]
        assert words[0] in place and words[1] in why
    assert [e["images"] for e in evaluations(one)] == [49] * 3
    assert "train-00000-of-00003, record 5 of the file" in alone[0][1]


@pytest.mark.parametrize(("most", "code"), [(4, 3), (5, 0)])
def test_too_many_broken_records_end_the_run_everywhere(odd_data, tmp_path, most, code):
    """D5: five are broken; --max_bad_records 4 and 5. Two processes, the same step."""
    flags = recipe(odd_data, tmp_path / "run", max_bad_records=most)
    results = train(flags, flags)
    assert [result for result, _ in results] == [code] * 2, results
    assert len({final_hash(output) for _, output in results}) == 1
    assert len(broken(tmp_path / "run")) == 5
    if code:
        last = run_log.read(str(tmp_path / "run"))[-1]
        assert last["event"] == "too_many_broken_records"
        named = {split: sorted(records) for split, records in last["records"].items()}
        assert named == {"train": [5, 45, 77, 119], "validation": [20]}
        assert "--max_bad_records" in results[0][1]
        assert "--max_bad_records" not in results[1][1]


def test_labels_that_count_from_one_are_refused(data, tmp_path, python):
    """D7: before TensorFlow starts, with the sentence that helps."""
    done = python("-c", REFUSED, *recipe(data, tmp_path / "run", label_offset=1))
    assert done.returncode == 2, done.stderr
    assert "--label_offset" in done.stderr
    assert not (tmp_path / "run").exists()


def test_different_flags_are_refused_by_all(data, tmp_path):
    """S7's kind: by name; another all-reduce too, before anybody waits for it."""
    flags = recipe(data, tmp_path / "run")
    other = recipe(data, tmp_path / "run", seed=7, allreduce="ring")
    for (code, output), seed in zip(train(flags, other), (0, 7), strict=True):
        assert code == 2, output
        assert "differ in --allreduce, --seed: start all" in output
        assert f"--seed is {seed}" in output


# Run in a process that then looks whether TensorFlow was ever imported.
REFUSED = """
import sys
from tf_goyal import flags, train
try:
    flags.run(train.main, sys.argv)
finally:
    assert "tensorflow" not in sys.modules and "keras" not in sys.modules
"""


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"global_batch": 30}, "multiple of --worker_batch=8, got 30"),
        ({"devices": 5}, "4 for 5 devices"),
        ({"model": "resnet51"}, "resnet51"),
        ({"lr_boundaries": "2,1"}, "strictly increasing, got 2"),
        ({"base_lr": -0.1}, "--base_lr must be at least 0"),
        ({"data_dir": "/nowhere/set"}, "/nowhere/set"),
        ({"global_batch": 128}, "at least --global_batch=128 images"),
        ({"resume": "must"}, "--resume=must needs a checkpoint"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_refused_before_tensorflow_starts(data, tmp_path, python, change, named):
    """One sentence on stderr, exit 2, and not a file written."""
    model_dir = tmp_path / "run"
    done = python("-c", REFUSED, *recipe(data, model_dir, **change))
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not model_dir.exists()


def test_a_broken_cluster_is_refused_before_tensorflow_starts(data, tmp_path, python):
    """S3: a task type that the cluster does not have."""
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}}
    text = json.dumps({**cluster, "task": {"type": "chief", "index": 0}})
    arguments = ["-c", REFUSED, *recipe(data, tmp_path / "run")]
    done = python(*arguments, environment={"TF_CONFIG": text})
    assert done.returncode == 2
    assert "task.type" in done.stderr and "worker" in done.stderr
