"""A peer that falls silent (SIGSTOP) in the middle of each phase of an all-reduce."""

import pytest
import rank_runs

DEADLINE = 900  # seconds
RANKS = 4
HOSTS = [[0, 2], [1, 3]]
# Who stops, and after which message of the first sum.
PHASES = {
    "reduce-scatter": ("halving_doubling", 3, "segment_0_summing_from_"),
    "all-gather": ("halving_doubling", 3, "segment_0_result_from_"),
    "doubling": ("doubling", 3, "segment_0_summing_from_"),
    "inside a host": ("hierarchical", 1, "_summing_from_rank_3"),
    "between hosts, reduce-scatter": (
        "hierarchical",
        1,
        "segment_0_summing_from_rank_0",
    ),
    "between hosts, all-gather": ("hierarchical", 1, "segment_0_result_from_rank_0"),
    "back inside a host": ("hierarchical", 3, "_result_from_rank_1"),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder with what the watchdogs said and the processes printed."""
    folder = tmp_path_factory.mktemp("stopped")
    keys = ("algorithm", "victim", "message")
    phases = [dict(zip(keys, phase, strict=True)) for phase in PHASES.values()]
    settings = {"phases": phases, "hosts": HOSTS, "folder": str(folder)}
    rank_runs.run("stopped_process.py", folder, RANKS, settings, DEADLINE)
    return folder


@pytest.mark.parametrize(
    ("number", "victim"), [(n, phase[1]) for n, phase in enumerate(PHASES.values())]
)
def test_the_others_name_who_does_not_answer(stopped, number, victim):
    """All of them notice; some wait for one another, and somebody for the victim."""
    said = {
        rank: (stopped / f"phase-{number}-{rank}").read_text()
        for rank in range(RANKS)
        if rank != victim
    }
    for text in said.values():
        assert text.startswith("step ") and "its all-reduce got nothing for 1 s" in text
        # A stopped process may have sent all that it had to, and taken nothing.
        assert "missing: bucket_" in text or "does not take what was sent" in text
    assert any(f"_from_rank_{victim}" in text for text in said.values()), said


def test_sums_are_right_when_it_answers_again(stopped):
    """Three in each phase, on each rank: nothing was lost or counted twice."""
    victims = [victim for _, victim, _ in PHASES.values()]
    for rank in range(RANKS):
        text = (stopped / f"rank-{rank}.out").read_text()
        expected = f"right {3 * len(PHASES)}, stopped {victims.count(rank)}\n"
        assert expected in text
