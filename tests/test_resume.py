"""The checkpoint that all processes of a run go on from."""

import threading

import pytest

from tf_goyal import resume


class Together:
    """`gather` for processes that are threads."""

    def __init__(self, count):
        self._values = [None] * count
        self._barrier = threading.Barrier(count, timeout=30)

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
