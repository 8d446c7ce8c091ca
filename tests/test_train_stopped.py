"""SIGTERM to one worker only, at every stage of a run: all leave together (F2)."""

import signal
import time

import pytest
from training import (
    DEADLINE,
    evaluations,
    final_hash,
    losses,
    make_data,
    recipe,
    together,
    train,
    wait_for,
)

from tf_goyal import checkpoint, run_log


@pytest.fixture(scope="module")
def slow_evaluation(tmp_path_factory):
    """297 images for validation, in batches of 2: seconds, where a step takes less."""
    return make_data(tmp_path_factory.mktemp("data") / "set", 120, 297)


def flags_of(data, model_dir):
    # A first trace may take longer than the default's 30 s.
    return recipe(data, model_dir, worker_batch=2, base_batch=8, grace_seconds=0)


def stopped(flags, model_dir, moment):
    """Two processes; SIGTERM to rank 1 once `moment` is in the log."""
    with together(flags, flags) as (processes, _):
        wait_for(model_dir, moment, processes[0])
        if "all_reduce" in moment:  # rank 1 may come there later; the trace is long
            time.sleep(1.0)
        processes[1].send_signal(signal.SIGTERM)
        outputs = [p.communicate(timeout=DEADLINE)[0] for p in processes]
    return [process.returncode for process in processes], outputs


def test_during_a_step_evaluation_and_the_first_trace(slow_evaluation, tmp_path):
    """F2: one step agreed on, saved once, 143 at both; nothing shows in the end."""
    whole = flags_of(slow_evaluation, tmp_path / "whole")
    ((code, undisturbed), _) = train(whole, whole)
    assert code == 0, undisturbed

    model_dir = tmp_path / "run"
    flags = flags_of(slow_evaluation, model_dir)
    moments = {
        "during the first trace": ('"event": "all_reduce"', 1),
        "during the evaluation behind step 4": ('"step": 4,', 4),
        "during a step": ('"step": 6,', 6),
    }
    for when, (moment, least) in moments.items():
        codes, outputs = stopped(flags, model_dir, moment)
        assert codes == [143, 143], (when, outputs)
        steps = checkpoint.steps(str(model_dir))
        assert steps[-1] >= least, (when, outputs)
        (stop,) = [
            line
            for line in run_log.read(str(model_dir))[::-1]
            if line.get("event") == "stop"
        ][:1]
        assert stop["step"] == steps[-1]
        assert f"asked to stop: saved at step {steps[-1]}" in outputs[0]
    assert not [line for line in evaluations(model_dir) if line["step"] > steps[-1]]

    ((code, output), _) = train(flags, flags)
    assert code == 0, output
    assert final_hash(output) == final_hash(undisturbed)
    assert losses(model_dir) == losses(tmp_path / "whole")
    names = ("step", "top1_error", "weights_sha256")
    assert [[e[n] for n in names] for e in evaluations(model_dir)] == [
        [e[n] for n in names] for e in evaluations(tmp_path / "whole")
    ]


def test_the_evaluation_behind_the_last_step_is_made_up_for(slow_evaluation, tmp_path):
    """F2: the last checkpoint owes it; a rerun makes it, and another one does not."""
    model_dir = tmp_path / "run"
    flags = flags_of(slow_evaluation, model_dir)
    codes, outputs = stopped(flags, model_dir, '"step": 10,')
    assert codes == [143, 143], outputs
    assert 10 not in [line["step"] for line in evaluations(model_dir)]
    ((code, output), _) = train(flags, flags)
    assert code == 0, output
    assert [line["step"] for line in evaluations(model_dir)] == [4, 8, 10]
    ((code, output),) = train(flags)
    assert (code, "already done" in output) == (0, True)
    assert [line["step"] for line in evaluations(model_dir)] == [4, 8, 10]


def test_a_process_that_hangs_leaves_when_its_grace_is_over(data, tmp_path):
    """F2, --grace_seconds: its peer is frozen, so that no step ends any more."""
    model_dir = tmp_path / "run"
    flags = [*recipe(data, model_dir, steps=100_000, eval_every=0), "--grace_seconds=2"]
    with together(flags, flags) as (processes, _):
        wait_for(model_dir, '"step": 9,', processes[0])
        while not checkpoint.steps(str(model_dir)):
            assert processes[0].poll() is None
            time.sleep(0.05)
        processes[0].send_signal(signal.SIGSTOP)
        processes[1].send_signal(signal.SIGTERM)
        output = processes[1].communicate(timeout=DEADLINE)[0]
    assert processes[1].returncode == 143, output
    assert "not done after --grace_seconds=2: leaves as it is" in output
    assert checkpoint.load_latest(str(model_dir))[1]["step"] >= 4
