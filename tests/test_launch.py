"""launch: real processes of this machine, their loss, and what starts again."""

import contextlib
import json
import os
import signal
import threading
import time
import types
from pathlib import Path

import psutil
import pytest
from training import DEADLINE, final_hash, recipe, started, train

from tf_goyal import flags, launch, run_log

STAND_IN = '''"""Stands in for `train`: does what it finds in the plan."""

import json, os, signal, sys, time
from pathlib import Path

folder = Path(__file__).parent.parent
description = json.loads(os.environ["TF_CONFIG"])
rank = description["task"]["index"]
token = os.environ["TF_GOYAL_RUN_TOKEN"]
starts = folder / f"starts-of-{rank}"
with starts.open("a") as file:
    file.write(json.dumps([description["cluster"]["worker"], token, sys.argv[1:]]))
    file.write("\\n")
visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
(folder / f"gpus-of-{rank}").write_text(visible)
number = len(starts.read_text().splitlines())
plan = json.loads((folder / "plan").read_text())[number - 1][rank]
if plan == "wait":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    (folder / "waits").touch()
    time.sleep(60)
if plan < 0:
    os.kill(os.getpid(), -plan)
sys.exit(plan)
'''


@pytest.fixture
def launched(tmp_path, monkeypatch, capfd):
    """Runs launch in this process, over processes that do what a plan says.

    The plan has a list for each start: exit code by rank, or -N for the signal N.
    """
    package = tmp_path / "tf_goyal"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(STAND_IN)
    monkeypatch.chdir(tmp_path)  # where "python -m" looks first
    handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}

    def run(plan, *own, processes=None, recipe=("--recipe=digits",)):
        (tmp_path / "plan").write_text(json.dumps(plan))
        count = f"--processes={processes or len(plan[0])}"
        line = ["launch", count, *own, "--", *recipe, f"--model_dir={tmp_path}/run"]
        with pytest.raises(SystemExit) as caught:
            flags.run(
                launch.main,
                line,
                define=launch.define,
                with_config=False,
                arguments="-- FLAGS",
            )
        return caught.value.code, capfd.readouterr().err

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def starts(folder: Path) -> list[list]:
    """[hosts, token, flags] as each process of each start found them."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("starts-of-*"))
        for line in path.read_text().splitlines()
    ]


def sizes(folder: Path) -> list[int]:
    """How many processes each start had, as rank 0 was told."""
    lines = (folder / "starts-of-0").read_text().splitlines()
    return [len(json.loads(line)[0]) for line in lines]


@pytest.mark.parametrize(
    ("plan", "code", "counts"),
    [
        # Killed: lost. Left because of it: not.
        ([[138, -9, 138], [0, 0]], 0, [3, 2]),
        ([[138, -9, 138], [-9, 138], [0]], 0, [3, 2, 1]),
        # By the exit code of a shell between: as if killed.
        ([[138, 137, 138], [0, 0]], 0, [3, 2]),
        # An unknown code asks for a start; 143 was asked to stop, and can go on.
        ([[200, 138, 143], [0, 0]], 0, [3, 2]),
        # Nobody died by itself: all are left.
        ([[138, 138], [0, 0]], 0, [2, 2]),
        # One was done when the other was lost.
        ([[0, -6], [0]], 0, [2, 1]),
        # At least one, though all were lost.
        ([[-9, -11], [0]], 0, [2, 1]),
        # No restart is left.
        ([[-9, 138], [-9], [138], [0]], 138, [2, 1, 1]),
        # Below 128 there is none, whoever else was lost.
        ([[3, 138]], 3, [2]),
        ([[138, 2]], 2, [2]),
        ([[-9, 1]], 1, [2]),
        ([[-9, 3]], 3, [2]),
    ],
)
def test_elastic_goes_on_with_those_that_are_left(
    launched, tmp_path, plan, code, counts
):
    """F1, F7: a lost process does not come back, and the others do not wait for it."""
    found, errors = launched(plan, "--restarts=2", "--elastic")
    assert (found, sizes(tmp_path)) == (code, counts)
    said = [line for line in errors.splitlines() if line.startswith("launch: ")]
    assert len(said) == len(counts) - 1
    for line, before, after in zip(said, counts, counts[1:], strict=False):
        assert f"starting again with {after} of {before} processes" in line


def test_one_that_launch_must_end_itself_is_not_lost(launched, tmp_path, monkeypatch):
    """A peer that hangs because of the loss is as good as one that left with 138."""
    monkeypatch.setattr(launch, "MARGIN_SECONDS", 0.5)
    code, _ = launched(
        [[-9, "wait", "wait"], [0, 0]],
        *("--restarts=1", "--elastic"),
        recipe=("--recipe=digits", "--peer_timeout=5", "--grace_seconds=5"),
    )
    assert (code, sizes(tmp_path)) == (0, [3, 2])


def test_without_elastic_all_start_again(launched, tmp_path):
    """As often as --restarts says; then the code of the loss."""
    plan = [[-9, 138], [138, 200], [138, 138]]
    code, errors = launched(plan, "--restarts=2")
    assert (code, sizes(tmp_path)) == (138, [2, 2, 2])
    assert "again with 2 of 2 processes, restarts left: 1\n" in errors
    assert "again with 2 of 2 processes, restarts left: 0\n" in errors
    code, errors = launched([*plan, [0, 0], [-9, 138]][3:], processes=2)
    assert "launch" not in errors  # no --restarts: not even one


def test_each_start_has_its_ports_and_its_token(launched, tmp_path):
    """Members of a start know each other by it; one process is a run as well."""
    assert launched([[-9, 138], [0]], "--restarts=1", "--elastic")[0] == 0
    (hosts, token, given), (again, other, _), (others, same, _) = starts(tmp_path)
    assert (hosts, token) == (others, same)
    assert len(set(hosts)) == 2 and len(again) == 1
    assert len(bytes.fromhex(token)) == len(bytes.fromhex(other)) == 32
    assert token != other
    assert given == ["--recipe=digits", f"--model_dir={tmp_path}/run"]


def test_sigterm_is_handed_on_and_ends_the_restarts(launched, tmp_path):
    """F2: 143 from all of them is no loss."""

    def ask():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if (tmp_path / "waits").exists():
                return os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)

    asks = threading.Thread(target=ask)
    asks.start()
    code, _ = launched([["wait", "wait"], [0, 0]], "--restarts=5", "--elastic")
    asks.join()
    assert code == 143
    assert sizes(tmp_path) == [2]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--worker_hosts=a:1,b:1"], "--worker_hosts=a:1,b:1"),
        (["--task_index=0"], "--task_index=0"),
        (["--expected_workers=2"], "--expected_workers=2"),
        (["--worker_batch=128"], "at most 1 devices"),
        (["--resume=never"], "--restarts=1 and --resume=never"),
        (["again"], "'again'"),
    ],
)
def test_refusals(launched, tmp_path, given, named):
    """Exit 2 and one sentence, before any process is started."""
    code, errors = launched(
        [[0, 0]],
        *("--restarts=1", "--elastic"),
        recipe=("--recipe=digits", *given),
    )
    assert code == 2
    assert errors.startswith("launch: ") and errors.count("\n") == 1
    assert named in errors
    assert not list(tmp_path.glob("starts-of-*"))


def test_without_a_restart_nothing_is_gone_on_from(launched):
    assert launched([[0]], recipe=("--recipe=digits", "--resume=never"))[0] == 0


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, ["0", "1", "2"]),
        ("", []),
        ("-1", []),
        ("3", ["3"]),
        ("2, 0,-1,1", ["2", "0"]),  # as CUDA does, which ends at what is none
        ("GPU-8932f937,MIG-2", ["GPU-8932f937", "MIG-2"]),
    ],
)
def test_the_gpus_that_are_to_be_shared_out(tmp_path, visible, gpus):
    for name in ("nvidia0", "nvidia1", "nvidia7", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert launch.visible_gpus(environ, tmp_path) == gpus


@pytest.mark.parametrize(
    ("visible", "shares"),
    [("4,5", ["4", "5"]), ("4,5,6", ["4", "5"]), ("4,5,6,7", ["4,5", "6,7"])],
)
def test_each_process_gets_gpus_of_its_own(
    launched, tmp_path, monkeypatch, visible, shares
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert launched([[0, 0]])[0] == 0
    seen = [(tmp_path / f"gpus-of-{rank}").read_text() for rank in range(2)]
    assert seen == shares


def test_fewer_gpus_than_processes_are_refused(launched, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    code, errors = launched([[0, 0]])
    assert code == 2
    assert "there are 1, got --processes=2" in errors


@pytest.mark.parametrize(
    ("first", "codes", "code", "lost"),
    [
        (-9, [2, -9], 137, 1),  # killed before all had met: who refuses misses it
        (2, [2, -9], 2, 1),  # refused first
        (138, [2, 138], 2, 0),
        (-9, [2, -9, 3], 3, 1),
    ],
)
def test_a_refusal_because_of_a_killed_process_is_no_end(first, codes, code, lost):
    children = [types.SimpleNamespace(returncode=each) for each in codes]
    assert launch._ending(children, first, ()) == (code, lost)


def test_elastic_needs_a_restart(launched):
    code, errors = launched([[0, 0]], "--elastic")
    assert code == 2
    assert errors.startswith("launch: --elastic") and "--restarts=0" in errors


def test_a_store_keeps_no_logs_of_the_others(capsys):
    """They are appended to, and are beside the run where it is on a disk."""
    assert launch._log_folder("a/run") == Path("a/run/logs")
    folder = launch._log_folder("ram://run")
    assert folder.is_dir() and str(folder) in capsys.readouterr().out
    folder.rmdir()


def test_elastic_ends_with_the_bits_of_a_run_that_lost_nothing(data, tmp_path):
    """F1, F7: kill -9 of one of three; two go on, to the hash of one alone."""
    model_dir = tmp_path / "run"
    given = recipe(data, model_dir, checkpoint_every=0.01, steps=30)
    own = ["--processes=3", "--restarts=1", "--elastic"]
    with started("tf_goyal.launch", [*own, "--", *given]) as process:
        deadline = time.monotonic() + DEADLINE
        log = model_dir / run_log.FILE_NAME
        while not (log.exists() and '"step": 3,' in log.read_text()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if json.loads(child.environ()["TF_CONFIG"])["task"]["index"] == 1:
                    child.kill()
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, output
    assert "starting again with 2 of 3 processes" in output
    assert "rank 0 of 2: exit code 0" in output
    ((code, alone),) = train(recipe(data, tmp_path / "alone", steps=30))
    assert code == 0, alone
    assert final_hash(output) == final_hash(alone)
