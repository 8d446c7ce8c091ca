"""Faulted trainings end with the weights of one that nothing befell (F1-F3, F6, F7)."""

import json
import os

import numpy as np
import pytest
from tool_runs import load, run


@pytest.fixture
def chaos(monkeypatch, tmp_path):
    """The tool, which writes its result to `tmp_path`."""
    monkeypatch.setattr(load("machine"), "RESULTS", tmp_path)
    return load("chaos")


def test_one_of_each_fault_ends_the_same(chaos, monkeypatch, tmp_path, capsys):
    """F1, F2, F3, F6, F7: other numbers of processes too; the same hash, none hung."""
    count = len(chaos.FAULTS)
    code = run(chaos, monkeypatch, f"--faults={count}", "--seed=2002", "--processes=2")
    said = capsys.readouterr().out
    assert code == 0, said
    result = json.loads((tmp_path / "chaos.json").read_text())
    assert (result["faults"], result["same_hash"]) == (count, count)
    happened = {training["fault"]: training for training in result["trainings"]}
    assert set(happened) | set(result["left_out"]) == set(chaos.FAULTS)
    assert -9 in happened["kill"]["codes"] and 138 in happened["kill"]["codes"]
    assert set(happened["terminate"]["codes"]) == {143}
    assert set(happened["stall"]["codes"]) == {0}
    assert len(happened["truncate"]["starts"]) >= 2


def outcome(chaos, fault, wrong=(), seconds=1.0, lost=0):
    return chaos.Outcome(
        0, fault, wrong=list(wrong), seconds_to_leave=seconds, steps_lost=lost
    )


def test_the_table_by_hand(chaos):
    rows = chaos.table(
        [
            outcome(chaos, "kill", seconds=1.0, lost=2),
            outcome(chaos, "kill", seconds=4.0, lost=6, wrong=["a process hung"]),
            outcome(chaos, "kill", seconds=2.0, lost=3),
            outcome(chaos, "stall"),
        ]
    ).splitlines()
    assert rows[2] == "| kill | 3 | 2 | 1 | 2.0, 4.0 | 3, 6 |"
    assert rows[3] == "| stall | 1 | 1 | 0 | goes on | 0, 0 |"


def attempt(chaos_run, codes, output=""):
    return chaos_run.Attempt(len(codes), codes, 0, 9, 1.0, False, output)


@pytest.mark.parametrize(
    ("fault", "codes", "right"),
    [
        ("kill", [138, -9, 138], True),
        ("kill", [138, -9, 1], False),
        ("terminate", [143, 143], True),
        ("terminate", [143, 138], False),
        ("freeze", [138, -9], True),
        ("stall", [138, 138], False),
        ("truncate", [-9, -9], True),
        ("disk", [2, 0], True),
        ("disk", [1, 0], False),
    ],
)
def test_exit_codes_are_looked_at(chaos, tmp_path, fault, codes, right):
    told = outcome(chaos, fault)
    happened = attempt(load("chaos_run"), codes)
    chaos.Chaos(0, 3, tmp_path)._check_codes(fault, 1, happened, told)
    assert (told.wrong == []) == right


def test_a_start_that_loses_more_than_it_must_is_found(chaos, tmp_path):
    """Step 6 was complete; a run that goes on from 3 has lost three."""
    chaos_run = load("chaos_run")
    for said, right in (("goes on from step 6 of 80", True), ("step 3 of 80", False)):
        told = outcome(chaos, "kill")
        happened = attempt(chaos_run, [0, 0], f"resnet20: ... {said}")
        chaos.Chaos(0, 3, tmp_path)._check_start(happened, 6, told)
        assert (told.wrong == []) == right


@pytest.mark.parametrize("broken", [True, False])
def test_where_the_only_checkpoint_was_cut_train_must_refuse(
    chaos, tmp_path, monkeypatch, broken
):
    """F3: it does not begin anew by itself; a start that does is found."""
    chaos_run = load("chaos_run")
    step = chaos.checkpoint.folder(str(tmp_path)) / "step-5"
    chaos.checkpoint.save(str(tmp_path), 5, {"model/w": np.zeros(9)}, {}, keep=1)
    assert not chaos._all_broken(tmp_path)
    (step / "manifest.json").write_text("{")
    assert chaos._all_broken(tmp_path)
    told = outcome(chaos, "truncate")
    if not broken:  # a train that would begin anew
        done = attempt(chaos_run, [0], "starts at step 0")
        monkeypatch.setattr(chaos_run.Running, "leave", lambda *_: done)
    chaos.Chaos(0, 3, tmp_path)._refused(tmp_path, told)
    assert (told.wrong == []) == broken
    assert told.moment.endswith(", the only one")
    assert not step.parent.exists()  # removed, as it is told to
    assert not chaos._all_broken(tmp_path)


def test_draws_depend_on_the_seed_and_the_number_alone(chaos, tmp_path, monkeypatch):
    """However many run at once: training 3 of seed 0 is always the same one."""
    drawn = {}

    def faulted(self, outcome, draws):
        drawn.setdefault(outcome.number, []).append(draws.random())
        return len(drawn[outcome.number]) > 1  # the first time it came too late

    monkeypatch.setattr(chaos.Chaos, "_faulted", faulted)
    one = chaos.Chaos(0, 3, tmp_path)
    for number in (3, 1, 2):
        one.faulted(number, "kill")
    first, drawn = drawn, {}
    for number in (1, 2, 3):
        chaos.Chaos(0, 3, tmp_path).faulted(number, "kill")
    assert drawn == first
    assert len({*map(tuple, first.values())}) == 3


def test_a_training_that_fails_in_the_tool_is_a_wrong_one(chaos, tmp_path, monkeypatch):
    def fails(self, outcome, draws):
        raise ValueError("no checkpoint can be read")

    monkeypatch.setattr(chaos.Chaos, "_faulted", fails)
    found = chaos.Chaos(0, 3, tmp_path).faulted(0, "kill")
    assert found.wrong == ["ValueError: no checkpoint can be read"]


def test_a_hash_counts_only_where_the_ranks_agree(chaos):
    chaos_run = load("chaos_run")
    one, other = "a" * 64, "b" * 64
    same = f"weights_sha256 {one}\nweights_sha256 {one}"
    assert attempt(chaos_run, [0, 0], same).sha256 == one
    differ = f"weights_sha256 {one}\nweights_sha256 {other}"
    assert attempt(chaos_run, [0, 0], differ).sha256 == ""


def test_a_process_that_does_not_leave_is_killed_and_counts_as_hung(chaos, tmp_path):
    chaos_run = load("chaos_run")
    with chaos_run.running(tmp_path / "run", ["--help"], 1) as ranks:
        assert ranks.leave(60).hung is False
    with chaos_run.running(tmp_path / "run", ["--recipe=digits"], 1) as ranks:
        os.kill(ranks.ranks[0].pid, 19)  # SIGSTOP
        found = ranks.leave(0.5)
    assert found.hung and found.codes == [-9]
