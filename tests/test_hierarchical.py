"""Sums inside hosts and between them, over real processes (C1, C2)."""

import numpy as np
import pytest
import reductions

from tf_goyal import halving_doubling, hierarchical

HOSTS = {
    "one host": [[0, 1, 2, 3, 4]],
    "one rank a host": [[0], [1], [2], [3], [4]],
    "uneven": [[0, 3, 4], [1], [2]],
    "two of two": [[0, 1], [2, 3]],
    "one rank": [[4]],
}
CASES = {
    f"{name} {dtype} {length} {wire}": {
        "hosts": hosts,
        "dtype": dtype,
        "length": length,
        "wire": wire,
        "random": wire != "None",
    }
    for name, hosts in HOSTS.items()
    for dtype, length, wire in (
        *((dtype, 7, "None") for dtype in ("float32", "bfloat16", "float16", "int64")),
        ("float32", 0, "None"),
        ("float32", 1, "None"),
        *((d, 1_000_003, "None") for d in ("float32", "bfloat16", "float16", "int64")),
        ("float32", 777, "float32"),
        ("float32", 777, "bfloat16"),
    )
}
for case in CASES.values():
    if case["wire"] in ("None", "float32"):
        case["wire"] = None


@pytest.mark.parametrize("size", range(1, 18))
def test_the_tree_of_a_host(size):
    """Everybody but the first has one parent, that of the position minus a bit."""
    found = [(c, i) for i in range(size) for c in hierarchical.children(i, size)]
    assert sorted(found) == [(c, c & (c - 1)) for c in range(1, size)]


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """What five processes ended with."""
    rounds = {"rounds": {"hosts": HOSTS["uneven"], "rounds": 1000, "buckets": 3}}
    folder = tmp_path_factory.mktemp("five")
    return reductions.run(folder, 5, {"cases": CASES, "rounds": rounds})


@pytest.mark.parametrize("hosts", HOSTS)
def test_hosts(five, hosts):
    """C2: exact sums of whole numbers; of random ones the same bits everywhere."""
    for name, case in CASES.items():
        if not name.startswith(f"{hosts} "):
            continue
        results = [five[rank][name] for rank in reductions.ranks_of(case)]
        for result in results:
            np.testing.assert_array_equal(result, results[0], name)
        expected = reductions.total(case)
        if not case["random"]:
            np.testing.assert_array_equal(results[0], expected, name)
        between = len(case["hosts"]) > 1
        if case["wire"] and between:  # only there it is rounded
            halves = reductions.rounded(results[0], case["wire"])
            np.testing.assert_array_equal(results[0], halves)
        tolerance = 0.1 if case["wire"] and between else 1e-5
        np.testing.assert_allclose(results[0], expected, atol=tolerance)


def test_what_travels_between_hosts_is_rounded(five):
    """By hand: float32 inside; an owner adds the rounded part of the other host."""
    name = "two of two float32 777 bfloat16"
    x = [reductions.values(CASES[name], rank).astype(np.float32) for rank in range(4)]
    own, other = x[0] + x[1], x[2] + x[3]
    for begin, end in halving_doubling.plan(777, 2).owned:
        total = own + reductions.rounded(other, "bfloat16")
        expected = reductions.rounded(total, "bfloat16")[begin:end]
        np.testing.assert_array_equal(five[0][name][begin:end], expected)
        own, other = other, own


def test_rounds(five):
    """C1: 50 tensors, ranks late at random."""
    for result in five:
        assert result["rounds"][0] == 0
