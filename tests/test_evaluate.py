"""The command `evaluate`: what it prints is what training logged, to the bit."""

import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from training import started

from tf_goyal import checkpoint, datasets, evaluate, evaluator, flags, run_log, trained
from tf_goyal.config import Config
from tf_goyal.launch import free_ports

NEVER = 'raise SystemExit("TensorFlow started")\n'


def logged(model_dir, step):
    """The log's "eval" line of a step, without its kind."""
    (line,) = [
        line
        for line in run_log.read(model_dir)
        if line["kind"] == "eval" and line["step"] == step
    ]
    return {name: value for name, value in line.items() if name != "kind"}


def test_newest_checkpoint_evaluates_to_what_was_logged(trained_run, python):
    """One process evaluates to the bit what two processes logged (D8, S1)."""
    done = python("-m", "tf_goyal.evaluate", f"--model_dir={trained_run}", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == logged(trained_run, 14)
    assert result["images"] == len(datasets.load("digits").validation)


def test_two_processes_evaluate_an_older_checkpoint_together(trained_run, python):
    """TF_CONFIG of two processes: one result, equal to the log's (S1, D8)."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    code = (
        "import json, os, subprocess, sys\n"
        "workers, command = json.loads(sys.argv[1]), sys.argv[2:]\n"
        "def start(rank):\n"
        "    config = {'cluster': {'worker': workers},\n"
        "              'task': {'type': 'worker', 'index': rank}}\n"
        "    environment = {**os.environ, 'TF_CONFIG': json.dumps(config)}\n"
        "    return subprocess.Popen([sys.executable, *command], env=environment)\n"
        "sys.exit(max(abs(child.wait()) for child in [start(0), start(1)]))\n"
    )
    command = ["-m", "tf_goyal.evaluate", f"--model_dir={trained_run}", "--step=12"]
    done = python("-c", code, json.dumps(workers), *command, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == logged(trained_run, 12)


def test_readable_line(trained_run):
    result = logged(trained_run, 14)
    line = evaluator.describe(result)
    assert line.startswith("step 14  epoch 1.19")
    assert f"top-1 error {result['top1_error']:.2f} %" in line
    assert f"({result['images']} images)" in line
    assert result["weights_sha256"] in line
    assert "\n" not in line


@pytest.fixture
def refused(python, tmp_path):
    """Runs a command that must refuse in one line, without TensorFlow."""
    poison = tmp_path / "poison"
    poison.mkdir()
    for package in ("tensorflow", "keras"):
        (poison / f"{package}.py").write_text(NEVER)

    def run(command, *arguments):
        environment = {"PYTHONPATH": str(poison)}
        done = python("-m", f"tf_goyal.{command}", *arguments, environment=environment)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert done.stderr.startswith(f"{command}: ")
        assert done.stderr.count("\n") == 1
        return done.stderr

    return run


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_refusals(command, refused, trained_run, tmp_path):
    """D9's kind: exit 2, one sentence that says what is wanted, before TensorFlow."""
    assert "--model_dir" in refused(command)
    missing = tmp_path / "nothing"
    text = refused(command, f"--model_dir={missing}")
    assert f"{missing}/checkpoints" in text and "no folder" in text
    missing.mkdir()
    assert "no folder" not in refused(command, f"--model_dir={missing}")

    run = f"--model_dir={trained_run}"
    assert "are 12, 14; received --step=13" in refused(command, run, "--step=13")
    assert "--step" in refused(command, run, "--step=-1")
    text = refused(command, run, f"--data_dir={missing}")
    assert "--data_dir" in text and str(missing) in text
    assert "flags only" in refused(command, run, "again")


def test_an_evaluator_refuses_what_it_cannot_follow(refused, trained_run, tmp_path):
    """--follow takes every checkpoint, as they come, and the training's classes."""
    run = f"--model_dir={trained_run}"
    assert "--step=12" in refused("evaluate", run, "--follow", "--step=12")
    assert "--poll_seconds" in refused("evaluate", run, "--follow", "--poll_seconds=0")
    missing = tmp_path / "nothing"
    text = refused("evaluate", run, "--follow", f"--data_dir={missing}")
    assert "--data_dir" in text and str(missing) in text
    assert not (trained_run / "evaluator").exists()


def test_all_must_have_the_same_checkpoint():
    """Of a run's folder that not all see alike: both are named."""
    arrays = {"model/w": np.zeros(1), "optimizer/v": np.ones(1)}
    found = trained.TrainedModel(Config(), 12, arrays, {})
    sha256 = checkpoint.weights_sha256({"model/w": np.zeros(1)})
    for other in ([12, "5f"], [14, sha256]):
        peers = SimpleNamespace(gather=lambda said, other=other: [said, said, other])
        with pytest.raises(ValueError) as caught:
            evaluate._compare(found, peers)
        assert f"rank 0 has step 12, sha256 {sha256}" in str(caught.value)
        assert f"rank 2 step {other[0]}, sha256 {other[1]}" in str(caught.value)
    evaluate._compare(found, SimpleNamespace(gather=lambda said: [said, said]))


def test_what_one_process_refuses_ends_all(trained_run, tmp_path):
    """The other does not wait for --start_timeout, 300 s."""
    ports = free_ports(2)
    folders = [trained_run, tmp_path]
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(
                started("tf_goyal.evaluate", [f"--model_dir={folder}"], rank, ports)
            )
            for rank, folder in enumerate(folders)
        ]
        outputs = [each.communicate(timeout=200)[0] for each in both]
    assert [each.returncode for each in both] == [2, 2], outputs
    why = (
        f"rank 1 (127.0.0.1:{ports[1]}) does not start: --model_dir must be the folder"
    )
    assert why in outputs[0]


def test_several_processes_do_not_follow(monkeypatch):
    """Each would evaluate every checkpoint, and write the same log."""
    workers = {"cluster": {"worker": ["a:1", "b:1"]}}
    task = {"task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(workers | task))
    flags.parse(
        ["evaluate", "--model_dir=a", "--follow"],
        define=evaluate.define,
        with_config=False,
    )
    with pytest.raises(ValueError, match="--follow .* 2 processes"):
        evaluate.main([])


def test_missing_data_is_refused(refused, trained_run, tmp_path):
    """The folder that the run's data was in is gone."""
    data_dir = str(tmp_path / "gone")
    arrays, manifest = checkpoint.load(checkpoint.folder(trained_run) / "step-14")
    metadata = manifest["metadata"]
    metadata["flags"] |= {"dataset": "tfrecord", "data_dir": data_dir}
    checkpoint.save(str(tmp_path), 14, arrays, metadata, keep=1)
    assert data_dir in refused("evaluate", f"--model_dir={tmp_path}")
    assert tf.io.gfile.listdir(str(tmp_path / "checkpoints")) == ["step-14"]
