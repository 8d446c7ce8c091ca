"""tools/train.sbatch, and training in a real Slurm of one node.

Where Slurm and MUNGE can be installed, .ci/run does so, and then nothing is skipped.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_cluster
import training

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "tools" / "train.sbatch"


@pytest.fixture(scope="module")
def slurm():
    # Packages of the system, which a test must not install; .ci/run does.
    if missing := slurm_cluster.missing():
        pytest.skip(
            f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge"
        )
    with slurm_cluster.one_node() as cluster:
        yield cluster


# Slurm may end the `sleep` before it asks the shell, which has to be there then.
UNTIL_ASKED = "while true; do sleep 0.2; done"


@pytest.fixture(scope="module")
def limited(slurm, tmp_path_factory):
    """A job that reaches its time limit while other tests run: its number and log."""
    folder = tmp_path_factory.mktemp("limited")
    python = stub(
        folder,
        '[ "${SLURM_RESTART_COUNT:-0}" = 1 ] && exit\n'
        f"trap 'echo asked; exit 143' TERM\n{UNTIL_ASKED}",
    )
    # A minute of grace, so that the tasks are there when Slurm looks at its clock.
    job = submit(slurm, folder, options=["--time=3"], python=python)
    return job, folder / f"tf_goyal-{job}.log"


@pytest.fixture(scope="module")
def undisturbed(slurm, limited, data, tmp_path_factory):
    """Output of `srun -n 2`: 150 steps."""
    flags = training.recipe(data, tmp_path_factory.mktemp("slurm") / "run", steps=150)
    command = [sys.executable, "-m", "tf_goyal.train", *flags]
    done = slurm.run("srun", "-n", "2", *command, seconds=600, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout
    return done.stdout


def submit(slurm, folder, *flags, options=(), python=sys.executable, **variables):
    """The template as a job of two tasks: its number."""
    done = slurm.run(
        "sbatch",
        *["--parsable", "--nodes=1", "--ntasks-per-node=2", *options],
        SCRIPT,
        *flags,
        cwd=folder,
        PYTHON=str(python),
        PYTHONPATH=str(ROOT),
        **variables,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def wait_for(slurm, job, ready, seconds=training.DEADLINE):
    """What Slurm says of the job, once `ready` holds for it."""
    deadline = time.monotonic() + seconds
    while not ready(said := slurm.job(job)):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    return said


def ended(said):
    states = ("COMPLETED", "FAILED", "CANCELLED")
    return said["JobState"].startswith(states) and "EndTime" in said


def stub(folder, body):
    """A program to stand for Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def hashes(output):
    return re.findall(r"exit code 0, weights_sha256 ([0-9a-f]{64})", output)


def test_two_tasks_of_srun_train_one_model(undisturbed):
    first, second = hashes(undisturbed)
    assert first == second


def test_a_stopped_job_goes_on_to_the_same_weights(slurm, undisturbed, data, tmp_path):
    """F2: SIGTERM to all tasks, 143, back into the queue, done: equal to the bit."""
    run = tmp_path / "run"
    job = submit(slurm, tmp_path, *training.recipe(data, run, steps=150))
    log = run / "log.jsonl"
    wait_for(slurm, job, lambda _: log.exists() and '"step": 20,' in log.read_text())
    assert slurm.run("scancel", "--signal=TERM", job).returncode == 0
    said = wait_for(slurm, job, ended, seconds=600)
    output = (tmp_path / f"tf_goyal-{job}.log").read_text()
    assert (said["JobState"], said["Restarts"]) == ("COMPLETED", "1"), output
    assert "exit code 143: back into the queue" in output
    assert hashes(output) == hashes(undisturbed)


def test_a_refused_run_is_not_started_again(slurm, tmp_path):
    """With two tasks; the sentence is in the job's log."""
    job = submit(slurm, tmp_path, "--recipe=digits", "--model_dir=run", "--epochs=-1")
    said = wait_for(slurm, job, ended)
    assert (said["JobState"], said["ExitCode"]) == ("FAILED", "2:0")
    assert said["Restarts"] == "0"
    assert "--epochs must be" in (tmp_path / f"tf_goyal-{job}.log").read_text()


def test_a_job_at_its_time_limit_is_stopped_and_goes_on(slurm, limited):
    """Slurm asks the tasks, 120 s before; the second start is done at once."""
    job, log = limited
    said = wait_for(slurm, job, ended)
    assert (said["JobState"], said["Restarts"]) == ("COMPLETED", "1"), log.read_text()
    assert log.read_text().count("asked") == 2


def test_a_cancelled_job_stays_cancelled(slurm, tmp_path):
    """Though its tasks save and leave with 143, as after a wish to stop."""
    asked = tmp_path / "asked"  # what a task prints after scancel may be lost
    python = stub(
        tmp_path,
        f"trap 'echo asked >>{asked}; exit 143' TERM\necho up\n{UNTIL_ASKED}",
    )
    job = submit(slurm, tmp_path, python=python)
    log = tmp_path / f"tf_goyal-{job}.log"
    wait_for(slurm, job, lambda _: log.exists() and log.read_text().count("up") == 2)
    assert slurm.run("scancel", job).returncode == 0
    wait_for(slurm, job, ended)
    wait_for(
        slurm, job, lambda _: asked.exists() and asked.read_text().count("asked") == 2
    )
    time.sleep(1)  # in which it would have been put back
    said = slurm.job(job)
    assert (said["JobState"], said["Restarts"]) == ("CANCELLED", "0")


def test_all_tasks_get_one_token_and_the_number_of_tasks(slurm, tmp_path):
    python = stub(tmp_path, 'echo $TF_GOYAL_RUN_TOKEN $(printf "<%s>" "$@")')
    tokens = []
    for _ in range(2):
        job = submit(slurm, tmp_path, "--a=b c", python=python)
        assert wait_for(slurm, job, ended)["ExitCode"] == "0:0"
        log = (tmp_path / f"tf_goyal-{job}.log").read_text()
        labels, lines = zip(*(line.split(": ", 1) for line in log.splitlines()))
        assert sorted(labels) == ["0", "1"]
        token, rest = lines[0].split(" ", 1)
        assert lines == (lines[0],) * 2
        assert rest == "<-m><tf_goyal.train><--a=b c><--expected_workers=2>"
        assert re.fullmatch("[0-9a-f]{64}", token)
        tokens.append(token)
    assert tokens[0] != tokens[1]


@pytest.mark.parametrize(
    ("code", "restarted", "limit", "requeued"),
    [
        (0, 0, None, False),
        (2, 0, None, False),
        (3, 0, None, False),
        (127, 0, None, False),
        (128, 0, None, True),
        (138, 9, None, True),
        (138, 10, None, False),
        (143, 1, "2", True),
        (143, 2, "2", False),
        (143, 0, "0", False),
    ],
)
def test_what_is_put_back_into_the_queue(tmp_path, code, restarted, limit, requeued):
    """Exit codes from 128 on, up to $RESTARTS times; with commands that only tell."""
    for name, body in (("srun", f"exit {code}"), ("scontrol", "echo scontrol $*")):
        stub(tmp_path, body).rename(tmp_path / name)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "2",
        "SLURM_RESTART_COUNT": str(restarted),
    }
    if limit is not None:
        environment["RESTARTS"] = limit
    done = subprocess.run(
        ["bash", SCRIPT], env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == code
    assert ("scontrol requeue 7" in done.stdout) == requeued
