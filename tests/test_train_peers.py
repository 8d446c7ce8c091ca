"""Processes that train together and do not agree, or do not answer."""

import shutil
import signal
import time

import pytest
from training import DEADLINE, final_hash, recipe, together, train, wait_for

from tf_goyal import records, run_log


@pytest.mark.parametrize("algorithm", ["halving_doubling", "ring"])
def test_a_peer_that_stops_answering_is_named(data, tmp_path, algorithm):
    """A stopped process raises no error anywhere: the others leave with 138."""
    changes = {"steps": 100_000, "collective_timeout": 20, "allreduce": algorithm}
    changes["eval_every"] = changes["checkpoint_every"] = 10**6
    flags = recipe(data, tmp_path / "run", **changes)
    with together(flags, flags, flags) as (processes, _):
        wait_for(tmp_path / "run", '"step": 3,', processes[0])
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
    assert set(line["measured"]) == {"ring", "halving_doubling", "doubling"}
    for times in line["measured"].values():
        assert "1024" in times and all(seconds > 0 for seconds in times.values())
    picked = {bucket["algorithm"] for bucket in line["buckets"]}
    assert picked <= set(line["measured"])
    other = recipe(data, tmp_path / "other", bucket_mb=0.25, steps=2)
    assert final_hash(train(other, other)[0][1]) == final_hash(results[0][1])


@pytest.mark.parametrize("failing", [0, 1])
def test_an_input_that_fails_at_one_process_ends_all_alike(data, tmp_path, failing):
    """One process' copy of the data breaks in the middle: no record is whole."""
    copies = [tmp_path / "copy 0", tmp_path / "copy 1"]
    flags = [
        recipe(shutil.copytree(data, copy), tmp_path / "run", steps=100_000)
        for copy in copies
    ]
    with together(*flags) as (processes, _):
        wait_for(tmp_path / "run", '"step": 3,', processes[0])
        for path in copies[failing].glob("train-*"):
            with path.open("r+b") as file:
                for offset in records.index_file(str(path))[0]:
                    file.seek(offset)
                    file.write(b"broken")
        outputs = [p.communicate(timeout=DEADLINE)[0] for p in processes]
    assert [process.returncode for process in processes] == [3, 3], outputs
    assert all("the input failed: " in output for output in outputs)
    assert f"rank {failing} of 2" in outputs[1 - failing].split("failed: ")[1]
    assert "records in a row are broken" in outputs[1 - failing]
    last = run_log.read(str(tmp_path / "run"))[-1]
    assert last["event"] == "input_failed"
    assert "records in a row are broken" in last["why"]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_is_named(data, tmp_path, killed):
    """F1: kill -9; the others say who it was, and leave with 138."""
    never = 10**6
    changes = {"steps": 100_000, "eval_every": never, "checkpoint_every": never}
    flags = recipe(data, tmp_path / "run", **changes)
    with together(flags, flags, flags) as (processes, ports):
        wait_for(tmp_path / "run", '"step": 3,', processes[0])
        processes[killed].send_signal(signal.SIGKILL)
        left = [p for rank, p in enumerate(processes) if rank != killed]
        outputs = [p.communicate(timeout=DEADLINE)[0] for p in left]
    name = f"rank {killed} of 3 (127.0.0.1:{ports[killed]}): connection closed"
    for process, output in zip(left, outputs, strict=True):
        assert process.returncode == 138, output
        assert f"a peer was lost: {name}" in output
    last = run_log.read(str(tmp_path / "run"))[-1]
    assert killed == 0 or (last["event"], last["why"]) == ("peer_lost", name)


def test_a_stall_is_survived_to_the_bit(data, tmp_path):
    """Shorter than --peer_timeout, longer than TensorFlow's own patience of 10 s."""
    changes = {"steps": 60, "eval_every": 100, "checkpoint_every": 100}
    flags = recipe(data, tmp_path / "run", **changes)
    with together(flags, flags) as (processes, _):
        wait_for(tmp_path / "run", '"step": 3,', processes[0])
        processes[1].send_signal(signal.SIGSTOP)
        time.sleep(16)
        processes[1].send_signal(signal.SIGCONT)
        outputs = [p.communicate(timeout=DEADLINE)[0] for p in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    undisturbed = train(recipe(data, tmp_path / "other", **changes))
    assert final_hash(outputs[0]) == final_hash(undisturbed[0][1])
