"""The command `evaluate`: what it prints is what training logged, to the bit."""

import json
import shutil

import pytest
import tensorflow as tf

from tf_goyal import checkpoint, datasets, evaluate, run_log
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
    assert result == logged(trained_run, 26)
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
    command = ["-m", "tf_goyal.evaluate", f"--model_dir={trained_run}", "--step=24"]
    done = python("-c", code, json.dumps(workers), *command, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == logged(trained_run, 24)


def test_readable_line(trained_run):
    result = logged(trained_run, 26)
    line = evaluate._line(result)
    assert line.startswith("step 26  epoch 1.1")
    assert f"top-1 error {result['top1_error']:.2f} %" in line
    assert f"({result['images']} images)" in line
    assert result["weights_sha256"] in line
    assert "\n" not in line


def test_load_takes_the_newest_complete_checkpoint(trained_run, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained_run / "checkpoints", run / "checkpoints")
    variables = run / "checkpoints" / "step-26" / "variables.npz"
    variables.write_bytes(variables.read_bytes()[:-1])

    trained = evaluate.load(str(run))
    assert trained.step == 24
    assert trained.settings.model_dir == str(run)
    assert trained.settings.model == "resnet20"
    assert trained.labels == [str(digit) for digit in range(10)]
    assert trained.epoch == logged(trained_run, 24)["epoch"]
    assert "step-26" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"step-26.*is broken"):
        evaluate.load(str(run), 26)


def test_data_of_other_classes_is_refused(trained_run):
    trained = evaluate.load(str(trained_run))
    data = datasets.load("digits")
    evaluate.check_labels(trained, data)
    fewer = datasets.Dataset("digits", data.train, data.validation, data.labels[:9])
    with pytest.raises(ValueError, match=r"10 \(0, 1, 2 \.\.\.\).*with 9 .*--data_dir"):
        evaluate.check_labels(trained, fewer)


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
    assert "are 24, 26; received --step=25" in refused(command, run, "--step=25")
    assert "--step" in refused(command, run, "--step=-1")
    text = refused(command, run, f"--data_dir={missing}")
    assert "--data_dir" in text and str(missing) in text
    assert "flags only" in refused(command, run, "again")


def test_missing_data_is_refused(refused, trained_run, tmp_path):
    """The folder that the run's data was in is gone."""
    data_dir = str(tmp_path / "gone")
    arrays, manifest = checkpoint.load(checkpoint.folder(trained_run) / "step-26")
    metadata = manifest["metadata"]
    metadata["flags"] |= {"dataset": "tfrecord", "data_dir": data_dir}
    checkpoint.save(str(tmp_path), 26, arrays, metadata, keep=1)
    assert data_dir in refused("evaluate", f"--model_dir={tmp_path}")
    assert tf.io.gfile.listdir(str(tmp_path / "checkpoints")) == ["step-26"]
