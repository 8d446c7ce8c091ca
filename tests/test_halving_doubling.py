"""The plan in NumPy, and sums over real processes (C1, C2)."""

import itertools

import numpy as np
import pytest
import reductions
from reductions import rounded

from tf_goyal import halving_doubling

DTYPES = ("float32", "bfloat16", "float16", "int64")
HALVINGS = (None, 0, 1, 2)


def simulate(length: int, processes: int, halvings: int | None) -> np.ndarray:
    """How often each rank's result counts each rank's elements: [p, length, p].

    Checks that nobody sends in a round what comes to it in that round or later.
    """
    messages, owned = halving_doubling.plan(length, processes, halvings)
    sums = np.zeros([processes, length, processes], np.int64)
    for rank in range(processes):
        sums[rank, :, rank] = 1
    results = np.zeros_like(sums)

    def exchange(state: np.ndarray, summing: bool) -> None:
        last_received = [-1] * processes
        part = [m for m in messages if m.summing == summing]
        for number, now in itertools.groupby(part, lambda m: m.round):
            together, before = list(now), state.copy()
            assert all(last_received[m.sender] < number for m in together)
            for m in together:
                got = before[m.sender, m.begin : m.end]
                kept = state[m.receiver, m.begin : m.end] if summing else 0
                state[m.receiver, m.begin : m.end] = kept + got
            for m in together:
                last_received[m.receiver] = max(last_received[m.receiver], number)

    exchange(sums, True)
    for rank, (begin, end) in enumerate(owned):
        results[rank, begin:end] = sums[rank, begin:end]
    exchange(results, False)
    first = min((m.round for m in messages if not m.summing), default=0)
    assert all(m.round < first for m in messages if m.summing) or not first
    return results


@pytest.mark.parametrize("processes", range(1, 34))
def test_every_element_of_every_rank_is_summed_once(processes):
    """C2, any p: lengths around p, around the alignment of 32 and around both."""
    p = processes
    for length in sorted({0, 1, 7, 31, 33, p - 1, p, p + 1, 32 * p - 1, 32 * p + 1}):
        for halvings in HALVINGS:
            assert (simulate(length, p, halvings) == 1).all(), (length, halvings)


@pytest.mark.parametrize("processes", range(1, 34))
def test_messages(processes):
    """None is empty; between two ranks at most one in each direction and phase."""
    for length in (1, 32 * processes, 5000):
        for halvings in HALVINGS:
            messages = halving_doubling.plan(length, processes, halvings).messages
            assert all(0 <= m.begin < m.end <= length for m in messages)
            keys = [(m.sender, m.receiver, m.summing) for m in messages]
            assert len(set(keys)) == len(keys)
            assert all(m.sender != m.receiver for m in messages)


@pytest.mark.parametrize(("processes", "rounds"), [(2, 2), (4, 4), (8, 6), (16, 8)])
def test_powers_of_two_take_2_log2_p_rounds_and_2_p_minus_1_of_p_elements(
    processes, rounds
):
    length = 32 * processes * 3
    messages = halving_doubling.plan(length, processes).messages
    assert {m.round for m in messages} == set(range(rounds))
    for rank in range(processes):
        sent = sum(m.end - m.begin for m in messages if m.sender == rank)
        received = sum(m.end - m.begin for m in messages if m.receiver == rank)
        assert sent == received == 2 * length * (processes - 1) // processes


@pytest.mark.parametrize("processes", [3, 5, 6, 7, 9, 12, 15, 21, 31, 33])
def test_other_p_take_the_rounds_of_the_power_below_and_at_most_2_buffers(processes):
    """Blocks hand their sums over in rounds that the larger block needs anyway."""
    length = 32 * 96 * 16
    messages = halving_doubling.plan(length, processes).messages
    power = processes.bit_length() - 1
    assert max(m.round for m in messages) + 1 == 2 * power
    for rank in range(processes):
        sent = sum(m.end - m.begin for m in messages if m.sender == rank)
        assert sent <= 2 * length


def test_without_halvings_there_are_half_the_rounds():
    """p = 8: 3 rounds of the whole buffer; with one halving 4, of 1/2, 1/2, 1/2."""
    whole = halving_doubling.plan(1024, 8, 0).messages
    assert {m.round for m in whole} == {0, 1, 2}
    assert {m.end - m.begin for m in whole} == {1024}
    half = halving_doubling.plan(1024, 8, 1).messages
    assert {m.round for m in half} == {0, 1, 2, 3}
    assert {m.end - m.begin for m in half} == {512}


def cases_of(processes: int, lengths: dict[str, list[int]]) -> dict[str, dict]:
    """Cases by name: each dtype and its lengths, and random numbers of each wire."""
    ranks = list(range(processes))
    cases = {
        f"{dtype} {length}": {"ranks": ranks, "dtype": dtype, "length": length}
        for dtype in DTYPES
        for length in lengths[dtype]
    }
    for halvings, wire in (
        (None, None),
        (None, "bfloat16"),
        (0, None),
        (0, "float16"),
        (1, "bfloat16"),
    ):
        cases[f"random {halvings} {wire}"] = {
            "ranks": ranks,
            "dtype": "float32",
            "length": 777,
            "wire": wire,
            "halvings": halvings,
            "random": True,
        }
    return {f"{processes} {name}": case for name, case in cases.items()}


LENGTHS = {dtype: [0, 1, 7, 1_000_003] for dtype in DTYPES}
TWO = cases_of(2, LENGTHS)
# The first 2 to 8 of eight processes.
EIGHT = {
    **{k: v for p in range(2, 9) for k, v in cases_of(p, LENGTHS).items()},
    "far": {"ranks": [6, 1, 4], "dtype": "float32", "length": 500},
}


# Of a model of 100 MiB, each gradient 4 MiB: alone, so again, 12 a bucket, all.
BUCKETS = [0, 2**20, 50 * 2**20, 2**30]


def of_ring(processes: int) -> dict[str, dict]:
    """TensorFlow's, whole numbers."""
    return {
        f"ring {name}": {**case, "ring": True}
        for name, case in cases_of(processes, LENGTHS).items()
        if not case.get("random")
    }


def rounds_of(processes: int, rounds: int, buckets: int = 3, **more) -> dict:
    """C1 on the first processes."""
    return {
        "ranks": list(range(processes)),
        "rounds": rounds,
        "buckets": buckets,
        **more,
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes ended with."""
    rounds = {
        "1000 rounds": rounds_of(2, 1000),
        "1000 rounds of ring": rounds_of(2, 1000, ring=True),
        "50 buckets": rounds_of(2, 20, 50),
    }
    layout = {"cases": TWO | of_ring(2), "rounds": rounds, "buckets": BUCKETS}
    return reductions.run(tmp_path_factory.mktemp("two"), 2, layout)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """What eight processes ended with."""
    rounds = {f"rounds {p}": rounds_of(p, 100) for p in range(3, 9)}
    layout = {"cases": EIGHT | of_ring(8), "rounds": rounds}
    return reductions.run(tmp_path_factory.mktemp("eight"), 8, layout)


def wrong(cases: dict[str, dict], ranks: list[dict]) -> list[str]:
    """The cases that did not come out right.

    Whole numbers exactly; random ones closely; with the same bits everywhere, which
    those of a wire dtype can hold.
    """
    assert cases
    found = []
    for name, case in cases.items():
        results = [ranks[rank][name] for rank in reductions.ranks_of(case)]
        total, wire = reductions.total(case), case.get("wire")
        right = all(np.array_equal(result, results[0]) for result in results)
        if case.get("random"):
            # Half a unit for each of the at most 5 times that it is rounded.
            unit = {None: 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[wire]
            size = sum(abs(reductions.values(case, r)) for r in case["ranks"])
            right &= (abs(results[0] - total) <= 5 * unit / 2 * size).all()
        else:
            right &= np.array_equal(results[0], total)
        right &= not wire or np.array_equal(results[0], rounded(results[0], wire))
        if not right:
            found.append(name)
    return found


def test_two_processes(two):
    """C2: p = 2; every dtype, 0, 1, 7 and 1M elements."""
    assert wrong(TWO, two) == []


def test_tensorflows_ring(two, eight):
    """C2: p = 2 and 8, as `AllReduce` calls it."""
    assert wrong(of_ring(2), two) == []
    assert wrong(of_ring(8), eight) == []


@pytest.mark.parametrize(("halvings", "wire"), [(None, "bfloat16"), (0, "float16")])
def test_what_travels_is_rounded_and_sums_are_made_in_float32(two, halvings, wire):
    """By hand: an owner rounds the sum of its own and the other's rounded part.

    Without halving both make the sum, of what both of them have rounded.
    """
    name = f"2 random {halvings} {wire}"
    mine, other = (reductions.values(TWO[name], r).astype(np.float32) for r in (0, 1))
    for begin, end in halving_doubling.plan(777, 2, halvings).owned:
        own = mine if halvings is None else rounded(mine, wire)
        expected = rounded(own + rounded(other, wire), wire)[begin:end]
        np.testing.assert_array_equal(two[0][name][begin:end], expected)
        mine, other = other, mine


@pytest.mark.parametrize("processes", range(2, 9))
def test_the_first_of_eight_processes(eight, processes):
    """C2: p = 2 ... 8; every dtype; all buckets under way at once."""
    cases = {n: c for n, c in EIGHT.items() if n.startswith(f"{processes} ")}
    assert wrong(cases, eight) == []


def test_ranks_in_any_order(eight):
    """Not the first ones, and not in ascending order."""
    assert wrong({"far": EIGHT["far"]}, eight) == []


def test_a_thousand_rounds_leave_nothing_behind(two):
    """C1: 50 tensors, ranks late at random: exact, and no threads, memory, files."""
    for result in two:
        assert result["1000 rounds of ring"][0] == 0
        wrong, threads, memory, files, *later = result["1000 rounds"]
        assert wrong == 0
        assert later[0] <= threads + 30
        assert later[1] <= memory + 10_000  # KiB, after 800 rounds
        assert later[2] == files
        assert result["50 buckets"][0] == 0


@pytest.mark.parametrize("processes", range(3, 9))
def test_rounds_of_many_processes(eight, processes):
    """C1: p = 3 ... 8."""
    for result in eight[:processes]:
        assert result[f"rounds {processes}"][0] == 0


@pytest.mark.parametrize("size", BUCKETS)
def test_the_size_of_buckets_bounds_memory(two, size):
    """C3: right sums, and a peak below three times the model, whatever the size.

    Above what is held before the step, in the middle one of five steps: the bucket, the
    parts that come and their sums, and what gRPC copies.
    """
    for result in two:
        wrong, kibibytes = result[f"buckets of {size}"]
        assert wrong == 0
        assert kibibytes < 3 * 100 * 1024
