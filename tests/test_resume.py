"""The checkpoint that all processes of a run go on from."""

import json
import threading

import numpy as np
import pytest

from tf_goyal import checkpoint, datasets, flags, provenance, resume


class Together:
    """`gather` for processes that are threads."""

    def __init__(self, count):
        self._values = [None] * count
        self._barrier = threading.Barrier(count, timeout=120)

    def of(self, rank):
        def gather(value):
            self._values[rank] = value
            self._barrier.wait()
            told = list(self._values)
            self._barrier.wait()
            return told

        return gather


def found(step, sha256="x", owes=False):
    manifest = {"step": step, "sha256": f"{sha256}{step}" if step else ""}
    return {"of": step}, {**manifest, "owes_evaluation": owes, "broken_records": {}}


def agree(monkeypatch, *ranks, owes=(False, False, False)):
    """What each rank goes on from; `ranks`: the steps that each one finds."""

    def newest(steps, at_most):
        return max([s for s in steps if at_most is None or s <= at_most], default=0)

    def last_checkpoint(steps, _, at_most=None):
        return found(newest(steps, at_most))

    monkeypatch.setattr(resume, "last_checkpoint", last_checkpoint)
    together, results = Together(len(ranks)), [None] * len(ranks)

    def one(rank):
        first = found(newest(ranks[rank], None), owes=owes[rank])
        try:
            results[rank] = resume.agreed(first, ranks[rank], None, together.of(rank))
        except ValueError as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=one, args=(r,)) for r in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_the_newest_that_all_can_use_is_taken(monkeypatch):
    """Rank 1 does not see step 9 yet, and for rank 2 step 8 is broken."""
    results = agree(monkeypatch, [3, 5, 8, 9], [3, 5, 8], [3, 5, 7])
    assert [arrays["of"] for arrays, _ in results] == [5, 5, 5]
    assert {manifest["step"] for _, manifest in results} == {5}


@pytest.mark.parametrize("step", [0, 4])
def test_all_alike_is_taken_as_it_is(monkeypatch, step):
    results = agree(monkeypatch, [step], [step])
    assert [manifest["step"] for _, manifest in results] == [step, step]


def test_nobody_starts_anew_beside_one_that_has_a_checkpoint(monkeypatch):
    """A --model_dir that is not shared: never a silent start at step 0."""
    for result in agree(monkeypatch, [4, 8], [], [8]):
        assert "rank 1 finds none that it can use where rank 0 finds step 8" in result
        assert "--model_dir, on storage that they share" in result


def test_different_checkpoints_of_one_step_are_refused():
    together, results = Together(2), [None, None]

    def one(rank):
        mine = found(4, sha256="xy"[rank])
        with pytest.raises(ValueError) as error:
            resume.agreed(mine, None, None, together.of(rank))
        results[rank] = str(error.value)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all("they find different ones of step 4" in each for each in results)


def test_rank_0_says_whether_an_evaluation_is_owed(monkeypatch):
    """All evaluate, or none: the log that says so may reach the others later."""
    results = agree(monkeypatch, [4], [4], owes=(False, True))
    assert [manifest["owes_evaluation"] for _, manifest in results] == [False, False]


@pytest.fixture
def digits(tmp_path):
    """A run on the digits: its settings, its data, and how to save a step of it."""
    flags.parse(["train", "--recipe=digits", f"--model_dir={tmp_path}"])
    settings, data = flags.config_from_flags(), datasets.load("digits")
    metadata = provenance.describe(settings, data, 1)
    metadata |= {"owes_evaluation": True, "broken_records": {"train": [7]}}

    def save(step):
        variables = {"x": np.float32(step)}
        return checkpoint.save(tmp_path, step, variables, metadata, keep=9)

    return settings, data, save


def metadata_without(name):
    return lambda told: told["metadata"].pop(name)


def metadata_with(name, value):
    return lambda told: told["metadata"].update({name: value})


def flag(name, value):
    return lambda told: told["metadata"]["flags"].update({name: value})


DAMAGES = [
    metadata_without("flags"),
    metadata_without("owes_evaluation"),
    metadata_without("derived"),
    metadata_with("flags", None),
    metadata_with("derived", None),
    metadata_with("derived", {"train_images": 1.5, "labels": []}),
    metadata_with("derived", {"train_images": 5, "labels": 0}),
    metadata_with("owes_evaluation", 0),
    metadata_with("broken_records", 7),
    metadata_with("broken_records", {"train": 7}),
    metadata_with("broken_records", {"train": [[]]}),
    flag("global_batch", "x"),
    flag("epochs", float("inf")),
    flag("unknown", 1),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_f3_a_manifest_that_lacks_something_is_passed_over(digits, capsys, damage):
    """F3: JSON all right, of an older checkpoint whose manifest has no checksum."""
    settings, data, save = digits
    save(3)
    path = save(5) / "manifest.json"
    told = json.loads(path.read_text())
    del told["manifest_sha256"]
    path.write_text(json.dumps(told))
    assert resume.last_checkpoint(settings, data)[1]["step"] == 5
    damage(told)
    path.write_text(json.dumps(told))
    arrays, found_ = resume.last_checkpoint(settings, data)
    assert (found_["step"], arrays["x"]) == (3, 3.0)
    assert found_["owes_evaluation"] and found_["broken_records"] == {"train": [7]}
    said = capsys.readouterr().err
    assert "step-5 has a damaged manifest: " in said and said.count("\n") == 1


def test_f3_a_byte_of_the_metadata_flipped_is_a_broken_checkpoint(digits, capsys):
    """F3: not another recipe, which would refuse the run, and not another account."""
    settings, data, save = digits
    save(3)
    path = save(5) / "manifest.json"
    content = path.read_bytes()
    for good, flipped in (
        (b'"train_images"', b'"train_imagez"'),
        (b'"seed": 0', b'"seed": 1'),
        (b'"owes_evaluation": true', b'"owes_evaluation": null'),
    ):
        assert content.count(good) == 1
        path.write_bytes(content.replace(good, flipped))
        assert resume.last_checkpoint(settings, data)[1]["step"] == 3
        assert "step-5 is broken: manifest.json: " in capsys.readouterr().err
