"""The command doctor: what it refuses, and its output in a fresh process."""

import contextlib
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tf_goyal import checkpoint, cluster, coordination, doctor, flags, train

# The digits with k = 4 virtual workers, whatever their recipe has.
FOUR = ["--recipe=digits", "--global_batch=64", "--worker_batch=16"]

pytestmark = pytest.mark.usefixtures("no_signals")


def refusal(module, arguments: list[str], capsys) -> str:
    """The sentence with which a command exits with 2."""
    define = getattr(module, "define", None)
    with pytest.raises(SystemExit) as caught:
        flags.run(module.main, [module.__name__, *arguments], define=define)
    out, error = capsys.readouterr()
    assert caught.value.code == 2
    assert out == ""
    assert error.count("\n") == 1
    return error.split(": ", 1)[1]


@pytest.mark.parametrize(
    ("arguments", "tf_config", "part"),
    [
        (["--recipe=digits"], "", "--model_dir"),
        ([*FOUR, "--model_dir=m", "--global_batch=63"], "", "multiple"),
        (["--recipe=goyal_8k", "--model_dir=m"], "", "--data_dir"),
        (["--recipe=goyal_8k", "--model_dir=m", "--data_dir=no"], "", "no"),
        (["--recipe=digits", "--model_dir=m", "--resume=must"], "", "must"),
        (["--recipe=digits", "--model_dir=m"], "{", "TF_CONFIG"),
        (
            [*FOUR, "--model_dir=m"],
            json.dumps(
                {
                    "cluster": {"worker": [f"h:{i}" for i in range(1, 6)]},
                    "task": {"type": "worker", "index": 0},
                }
            ),
            "5 devices",
        ),
        (
            [*FOUR, "--model_dir=m", "--worker_hosts=h:[1-5]", "--task_index=0"],
            "",
            "5 devices",
        ),
        (
            [*FOUR, "--model_dir=m", "--expected_workers=2"],
            "",
            "--expected_workers=2",
        ),
    ],
)
def test_refuses_as_train_does(
    arguments, tf_config, part, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CONFIG", tf_config)
    found = refusal(doctor, arguments, capsys)
    assert found == refusal(train, arguments, capsys)
    assert part in found
    assert list(tmp_path.iterdir()) == []


def test_s9_refuses_nccl_without_gpus_as_train_does(tmp_path, monkeypatch, capsys):
    """S9: TensorFlow runs already when it is found that there is no GPU."""
    import tensorflow as tf

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [])
    monkeypatch.delenv("TF_CONFIG", raising=False)
    arguments = ["--recipe=digits", f"--model_dir={tmp_path}", "--allreduce=nccl"]
    found = refusal(doctor, arguments, capsys)
    assert found == refusal(train, arguments, capsys)
    assert "--allreduce=nccl needs GPUs" in found


def test_refuses_several_cpus_in_each_of_several_processes_as_train_does(
    tmp_path, monkeypatch, capsys
):
    """Doctor looks at the devices of its place in the cluster, as train does.

    Train does so once the others are there, who all say the same here.
    """
    import tensorflow as tf

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [])
    task = {"type": "worker", "index": 0}
    description = {"cluster": {"worker": ["h:1", "h:2"]}, "task": task}
    monkeypatch.setenv("TF_CONFIG", json.dumps(description))
    arguments = ["--recipe=digits", f"--model_dir={tmp_path}", "--devices=2"]
    others = contextlib.nullcontext()
    others.gather = lambda value: [value, value]
    monkeypatch.setattr(train.peers, "meet", lambda *_, **__: others)
    monkeypatch.setattr(coordination, "configure", lambda *_, **__: None)
    found = refusal(doctor, arguments, capsys)
    assert found == refusal(train, arguments, capsys)
    assert "use more processes" in found


def test_refuses_more_gpus_than_virtual_workers_as_train_does(
    tmp_path, monkeypatch, capsys
):
    """k = 4, and --devices=0 stands for the five GPUs that there are."""
    import tensorflow as tf

    from tf_goyal import build

    strategy = type("Strategy", (), {"num_replicas_in_sync": 5})
    monkeypatch.setattr(cluster, "strategy", lambda *_, **__: strategy)
    monkeypatch.setattr(build, "prepare_tensorflow", lambda _: None)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: ["GPU"] * 5)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    arguments = [*FOUR, f"--model_dir={tmp_path}"]
    found = refusal(doctor, arguments, capsys)
    assert found == refusal(train, arguments, capsys)
    assert "make 4 for 5 devices: use a larger --global_batch or lower" in found


def test_refuses_what_the_facts_say():
    """D4: a record that is missing or comes twice; a disk that is too small."""
    storage = {"model_dir": "/run", "free_bytes": 2**20, "needed_bytes": 2**20}
    doctor.refuse_failures({"storage": storage, "proof": {"holds": True}})
    with pytest.raises(ValueError, match="exactly once an epoch"):
        doctor.refuse_failures(
            {"storage": storage, "proof": {"holds": False, "epochs": []}}
        )
    short = storage | {"free_bytes": 2**20 - 1}
    with pytest.raises(ValueError, match="has 1,048,575: free some or lower --keep"):
        doctor.refuse_failures({"storage": short})


@pytest.fixture
def stopped_run(tmp_path, monkeypatch) -> str:
    """The folder of a run of the digits recipe that was stopped at step 7."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    flags.parse(["train", "--recipe=digits"])
    settings = dataclasses.asdict(flags.config_from_flags())
    derived = {"train_images": 1500, "labels": [str(digit) for digit in range(10)]}
    metadata = {"flags": settings, "derived": derived, "owes_evaluation": False}
    checkpoint.save(str(tmp_path), 7, {"model/w": np.zeros(2)}, metadata, keep=1)
    return str(tmp_path)


def test_refuses_another_recipes_checkpoint_as_train_does(stopped_run, capsys):
    arguments = ["--recipe=digits", f"--model_dir={stopped_run}", "--momentum=0.8"]
    found = refusal(doctor, arguments, capsys)
    assert found == refusal(train, arguments, capsys)
    assert "--momentum was 0.9, now 0.8" in found


def test_shows_the_step_that_a_run_goes_on_from(stopped_run, capsys):
    def shown(*arguments: str) -> str:
        argv = ["doctor", "--recipe=digits", f"--model_dir={stopped_run}", *arguments]
        with pytest.raises(SystemExit) as caught:
            flags.run(doctor.main, argv, define=doctor.define)
        assert caught.value.code == 0
        return capsys.readouterr().out

    before = sorted(Path(stopped_run).rglob("*"))
    assert "goes on from step 7" in shown()
    assert "nothing to do: step 7 is the last" in shown("--steps=7")
    assert sorted(Path(stopped_run).rglob("*")) == before


def test_more_processes_than_virtual_workers(tmp_path, capsys):
    """--processes asks for a layout, here of 6 devices for k = 4."""
    arguments = [*FOUR, f"--model_dir={tmp_path}", "--processes=3", "--devices=2"]
    found = refusal(doctor, arguments, capsys)
    assert "6 devices (3 processes of 2)" in found


def test_digits_end_to_end(tmp_path, python):
    """A fresh process: JSON and nothing else on stdout, nothing left behind."""
    done = python(
        *["-m", "tf_goyal.doctor", *FOUR, f"--model_dir={tmp_path}/run"],
        *["--json", "--data", "--processes=3"],
        environment={"TF_CONFIG": "", "CUDA_VISIBLE_DEVICES": "-1"},
        seconds=300.0,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["recipe"]["virtual_workers"] == 4
    assert facts["layout"]["workers"] == [[0, 1], [1, 2], [2, 4]]
    assert facts["data"]["splits"]["train"]["images"] == 1500
    assert facts["proof"]["holds"]
    assert facts["proof"]["epochs"][0]["union"] == 1500
    assert len(facts["model"]["decayed_variables"]) == 19 + 2 + 1
    assert facts["storage"]["trial_write"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_tensorflow_at_import(python):
    """Bad input is refused before TensorFlow starts."""
    check = (
        "import sys; from tf_goyal import doctor; "
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    assert python("-c", check, seconds=180.0).returncode == 0
