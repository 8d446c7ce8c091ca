"""An evaluator beside a training: each checkpoint once, the last one always."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from training import DEADLINE, evaluations, final_hash, recipe, started, train

from tf_goyal import checkpoint, evaluator, run_log
from tf_goyal.launch import free_ports
from tf_goyal.samples import InputError


@pytest.fixture
def follow(tmp_path, monkeypatch, capsys):
    """Runs the evaluator with a stand-in for the network; time does not pass.

    It evaluates to the value that is saved. What happens between two looks is a list
    of functions; behind the last of them the evaluator must leave.
    """
    happenings = []

    class Evaluation:
        def __init__(self, found, data_dir):
            folder = tmp_path / "evaluator"
            folder.mkdir(exist_ok=True)
            self.log = run_log.RunLog(str(folder), tensorboard=False)

        def __call__(self, found):
            return {"step": found.step, "epoch": 1.0, "loss": float(found.arrays["x"])}

    def sleep(seconds):
        if seconds == evaluator.POLL_SECONDS:
            assert happenings, "waits for something that does not come"
            happenings.pop(0)()

    monkeypatch.setattr(evaluator, "_Evaluation", Evaluation)
    monkeypatch.setattr(evaluator.time, "sleep", sleep)

    def run(*functions, total_steps=0):
        happenings[:] = functions
        code = evaluator.run(
            str(tmp_path),
            total_steps=total_steps,
            shown=lambda result: f"step {result['step']}",
        )
        assert not happenings, "left before training had ended"
        return code, capsys.readouterr()

    return run


@pytest.fixture
def save(tmp_path):
    """Saves a checkpoint of a run of 8 steps, by default with its step as its value."""

    def saved(step, value=None, keep=5):
        metadata = {
            "flags": {"model_dir": "elsewhere", "dataset": "digits"},
            "derived": {"train_images": 100, "labels": ["a", "b"], "total_steps": 8},
        }
        (tmp_path / "config.json").write_text(json.dumps(metadata))
        arrays = {"x": np.float32(step if value is None else value)}
        checkpoint.save(str(tmp_path), step, arrays, metadata, keep=keep)

    return saved


@pytest.fixture
def say(tmp_path):
    """Writes an event to the training's log."""

    def said(event):
        log = run_log.RunLog(str(tmp_path), tensorboard=False)
        log.write("event", event=event)
        log.close()

    return said


def nothing():
    """Another look finds what the last one found."""


def found(model_dir):
    """Step -> loss, of each line as it was written."""
    text = (model_dir / "evaluator" / run_log.FILE_NAME).read_text()
    return [(line["step"], line["loss"]) for line in map(json.loads, text.splitlines())]


def test_s5_each_checkpoint_once_and_the_last_one_always(follow, save, tmp_path):
    """S5: waits for the run, evaluates in order, leaves behind the last step."""
    code, said = follow(
        nothing,
        lambda: save(2),
        nothing,
        lambda: (save(4), save(6)),
        lambda: save(8),
    )
    assert code == 0
    assert said.out.splitlines() == [
        f"waits for a checkpoint in {tmp_path}/checkpoints, looks every 10 s",
        *("step 2", "step 4", "step 6", "step 8"),
        "training has ended; checkpoints evaluated: 4",
    ]
    assert found(tmp_path) == [(2, 2.0), (4, 4.0), (6, 6.0), (8, 8.0)]


def test_started_again_it_evaluates_none_twice(follow, save, tmp_path):
    """Its own restart, in the middle and behind the end (F5's kind)."""
    save(2)
    with pytest.raises(AssertionError, match="does not come"):
        follow()  # as if it were killed here: step 7 is not the last of 8
    with pytest.raises(AssertionError, match="does not come"):
        save(7)
        follow()
    save(8)
    assert follow()[0] == 0
    assert follow(nothing)[1].out == "training has ended; checkpoints evaluated: 3\n"
    assert found(tmp_path) == [(2, 2.0), (7, 7.0), (8, 8.0)]
    assert [line["step"] for line in evaluator.lines(str(tmp_path))] == [2, 7, 8]


def test_a_step_that_ran_again_is_evaluated_again(follow, save, tmp_path):
    """A crash, and a resume at an older checkpoint: the log has what counts now."""
    save(2)
    save(4)
    follow(nothing, lambda: save(4, value=4.5), lambda: save(8))
    assert found(tmp_path) == [(2, 2.0), (4, 4.0), (4, 4.5), (8, 8.0)]
    assert [line["loss"] for line in evaluator.lines(str(tmp_path))] == [2, 4.5, 8]


def test_a_longer_run_goes_on(follow, save, tmp_path):
    """The length is that of the flags, where there are some: step 8 is not the end."""
    save(8)
    follow(nothing, nothing, lambda: save(9), lambda: save(10), total_steps=10)
    assert [step for step, _ in found(tmp_path)] == [8, 9, 10]


@pytest.mark.parametrize(
    "event", ["not_finite", "too_many_broken_records", "input_failed", "not_saved"]
)
def test_a_run_that_stopped_for_good_has_ended(follow, save, say, event):
    """F4's kind, with 3, and F6's, with 2, whose last checkpoint is not there.

    But not where it was started again, and fails once more.
    """
    say("start")
    save(2)
    code, said = follow(
        lambda: say(event),
        lambda: say("start"),
        nothing,
        lambda: say(event),
        nothing,
    )
    assert code == 0
    assert said.out.endswith("training has ended; checkpoints evaluated: 1\n")


@pytest.mark.parametrize("event", ["peer_lost", "stop", "broken_record", "done"])
def test_a_run_that_crashed_or_was_asked_to_stop_has_not_ended(
    follow, save, say, event
):
    """F1, F2: it comes again."""
    say("start")
    say(event)
    save(2)
    with pytest.raises(AssertionError, match="does not come"):
        follow(nothing, nothing)


@pytest.mark.parametrize(
    "odd",
    [
        '{"kind": "eval", "step": 2}',
        '{"kind": "event", "event": "x"}',
        '{"kind": "eval", "step": "8", "checkpoint_sha256": "a"}',
        '{"kind": "eval", "step": null}',
    ],
)
def test_odd_lines_in_the_logs_are_passed_over(follow, save, tmp_path, odd):
    """F3's kind: all is evaluated that no line says has been, with its checksum."""
    (tmp_path / "evaluator").mkdir()
    for folder in (tmp_path, tmp_path / "evaluator"):
        (folder / run_log.FILE_NAME).write_text(f'{odd}\n{{"kind": "event"}}\n')
    save(2)
    follow(nothing, lambda: save(8))
    ours = evaluator.lines(str(tmp_path))
    assert [(line["step"], line["loss"]) for line in ours] == [(2, 2.0), (8, 8.0)]


@pytest.mark.parametrize("lacks", ["flags", "derived"])
def test_a_manifest_that_does_not_say_of_what_run_it_is(follow, save, tmp_path, lacks):
    """F3: an older one, whose manifest has no checksum."""
    save(2)
    path = tmp_path / "checkpoints" / "step-2" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["manifest_sha256"], manifest["metadata"][lacks]
    path.write_text(json.dumps(manifest))
    code, said = follow(nothing, lambda: save(8))
    assert code == 0
    assert f"step-2 has a damaged manifest: KeyError('{lacks}')" in said.err
    assert [step for step, _ in found(tmp_path)] == [8]


def test_a_broken_checkpoint_is_named_once_and_passed_over(follow, save, tmp_path):
    """F3; written anew, it counts."""
    for step in (2, 3, 4, 5):
        save(step)
    folder = tmp_path / "checkpoints"
    variables = (folder / "step-2" / "variables.npz").read_bytes()
    (folder / "step-2" / "variables.npz").write_bytes(variables[:-1])
    (folder / "step-3" / "manifest.json").unlink()
    (folder / "step-5" / "manifest.json").write_text("[]")
    code, said = follow(nothing, lambda: save(3), lambda: save(8))
    assert code == 0
    assert said.out.endswith("checkpoints evaluated: 3\n")
    passed_over = said.err.splitlines()
    assert len(passed_over) == 3
    for line, step in zip(passed_over, (2, 3, 5), strict=True):
        assert line.startswith("passed over: ") and f"step-{step}" in line
    assert [step for step, _ in found(tmp_path)] == [4, 3, 8]
    assert [line["step"] for line in evaluator.lines(str(tmp_path))] == [3, 4, 8]


def test_a_broken_last_checkpoint_is_no_good_end(follow, save, tmp_path):
    """F3: nobody takes the one before it for the result."""
    save(7)
    save(8)
    (tmp_path / "checkpoints" / "step-8" / "variables.npz").write_bytes(b"")
    with pytest.raises(ValueError, match="last checkpoint, of step 8 .* is broken"):
        follow(nothing)
    assert [step for step, _ in found(tmp_path)] == [7]


def test_a_checkpoint_that_vanishes_is_no_broken_one(
    follow, save, tmp_path, monkeypatch
):
    """Retention removes step 2 while it is read."""
    save(2)
    load = evaluator.trained.load

    def removed_meanwhile(model_dir, step):
        if step == 2:
            save(8, keep=1)
        return load(model_dir, step)

    monkeypatch.setattr(evaluator.trained, "load", removed_meanwhile)
    code, said = follow()
    assert (code, said.err) == (0, "")
    assert [step for step, _ in found(tmp_path)] == [8]


def test_no_image_that_can_be_used(follow, save, monkeypatch):
    """Exit 3, as training and evaluate have it."""

    def fails(self, found):
        raise InputError("no image of the validation set can be used")

    save(2)
    monkeypatch.setattr(evaluator._Evaluation, "__call__", fails)
    code, said = follow()
    assert code == 3
    assert said.err == "evaluator: no image of the validation set can be used\n"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    """F6, before it waits."""
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="a trial write for .*/file/run/evaluator"):
        evaluator.run(str(tmp_path / "file" / "run"))


def test_it_leaves_at_once_when_asked(tmp_path):
    """SIGTERM while it waits: 143."""
    flags = [f"--model_dir={tmp_path}", "--follow", "--poll_seconds=3600"]
    with started("tf_goyal.evaluate", flags) as process:
        assert process.stdout.readline().startswith("waits for a checkpoint in ")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=180)
    assert process.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_s5_beside_a_training_to_the_bit(data, tmp_path):
    """S5: started before the run; it finds what training logged, to the bit."""
    model_dir = tmp_path / "run"
    flags = recipe(data, model_dir)
    follows = [f"--model_dir={model_dir}", "--follow", "--poll_seconds=0.1"]
    with started("tf_goyal.evaluate", follows) as process:
        assert process.stdout.readline().startswith("waits for a checkpoint in ")
        ((code, trained),) = train(flags)
        assert code == 0, trained
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, output
    assert output.endswith("training has ended; checkpoints evaluated: 3\n")
    ours = evaluator.lines(str(model_dir))
    assert [line.pop("checkpoint_sha256") for line in ours]
    assert ours == evaluations(model_dir)
    assert [4, 8, 10] == [line["step"] for line in ours]
    assert list((model_dir / "evaluator").glob("events.out.tfevents.*"))


@pytest.mark.parametrize("listed", [True, False])
def test_s5_an_evaluator_task_of_train(data, tmp_path, python, listed):
    """S5: one command for all tasks, as of a TFJob; the evaluator is no worker."""
    chief, worker, own = (f"127.0.0.1:{port}" for port in free_ports(3))
    cluster = {"chief": [chief], "worker": [worker]}
    flags = recipe(data, tmp_path / "run", steps=2, eval_every=0)
    tasks = [{"type": role, "index": 0} for role in ("chief", "worker", "evaluator")]
    if listed:
        cluster["evaluator"] = [own]
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(
                python,
                *("-m", "tf_goyal.train", *flags),
                environment={
                    "TF_CONFIG": json.dumps({"cluster": cluster, "task": task})
                },
            )
            for task in tasks
        ]
    first, second, evaluates = (run.result() for run in runs)
    for done in (first, second, evaluates):
        assert done.returncode == 0, done.stderr
    assert final_hash(first.stdout) == final_hash(second.stdout)
    (line,) = evaluator.lines(str(tmp_path / "run"))
    assert (line["step"], line["images"]) == (2, 50)
    assert line["weights_sha256"] == final_hash(first.stdout)
    assert evaluations(tmp_path / "run") == []  # --eval_every=0: never
