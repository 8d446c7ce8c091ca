"""What --allreduce=auto goes by; measuring itself is in test_train_peers.py."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import network_probe
from tf_goyal.network_probe import Measured

TIMES = Measured(
    {
        "ring": {1024: 4e-3, 2048: 4e-3, 4096: 6e-3},
        "halving_doubling": {1024: 1e-3, 2048: 5e-3, 4096: 9e-3},
    }
)


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        (1, 1e-3),
        (1023, 1e-3),
        (1024, 1e-3),
        (1536, 3e-3),
        (2048, 5e-3),
        (4096, 9e-3),
        (8192, 18e-3),
    ],
)
def test_seconds_between_and_beyond_what_was_measured(size, seconds):
    assert TIMES.of("halving_doubling", size) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("size", "best"),
    [
        (1, "halving_doubling"),
        (1791, "halving_doubling"),  # 4 ms both at 1024 + 3 / 4 * 1024
        (1793, "ring"),
        (10**9, "ring"),
    ],
)
def test_the_quickest_is_taken(size, best):
    assert TIMES.best(size) == best


@pytest.mark.parametrize(
    ("halved", "size", "best"),
    [
        (1.049, 2048, "halving_doubling"),
        (1.049, 1024, "doubling"),  # that was measured
        (1.051, 2048, "doubling"),
        (0.999, 1024, "halving_doubling"),
    ],
)
def test_beyond_what_was_measured_equals_are_halved(halved, size, best):
    times = Measured({"doubling": {1024: 1.0}, "halving_doubling": {1024: halved}})
    assert times.best(size) == best


def test_cost_is_what_there_is_and_what_grows():
    assert TIMES.cost(1024) == pytest.approx((1e-3, 0.0, 1e-3))
    assert TIMES.cost(4096) == pytest.approx((6e-3, 2e-3, 4e-3))  # the ring's


PLACEMENT = types.SimpleNamespace(
    local=range(1), devices=2, local_results=lambda value: (value,)
)


@pytest.fixture
def watched(monkeypatch):
    """An all-reduce that adds up to 2.0 at once; what was called while watched."""
    during, called = [], []

    def compiled(name, size, *_):
        def run():
            called.append(name)
            assert during, f"{name} of {size} bytes is not watched"
            return tf.constant([2.0])

        return run

    def watch(what, function):
        def wrapped():
            during.append(what)
            try:
                return function()
            finally:
                during.pop()

        return wrapped

    monkeypatch.setattr(network_probe, "_compiled", compiled)
    return watch, called


ARGUMENTS = {"strategy": None, "placement": PLACEMENT, "rank": 0, "hosts": [[0], [1]]}


def test_whatever_waits_for_others_is_watched(watched):
    """S2's kind, in the middle of a start: see Watchdog."""
    watch, called = watched
    measured = network_probe.measure(
        ["ring", "doubling"],
        device_sum=lambda rows: 2 * rows[0],
        watched=watch,
        **ARGUMENTS,
    )
    assert set(measured.seconds) == {"ring", "doubling"}
    assert list(measured.seconds["ring"]) == list(network_probe._SIZES)
    # One that does not count, one that says how many, and the most of a quick one.
    assert called.count("ring") == len(network_probe._SIZES) * (2 + 9)
    # In turns, after one each.
    assert called[:6] == ["ring", "doubling"] * 3


@pytest.mark.parametrize(
    ("slow", "sizes"),
    [(0.5, 6), (0.51, 1)],  # seconds that a ring of any size takes
)
def test_what_is_slow_keeps_nothing_else_from_large_buffers(watched, slow, sizes):
    watch, _ = watched

    def device_sum(rows):  # of two devices, in ns: what is said here counts
        return np.array([2 * slow * 1e9, 2e6])[-len(rows[0]) :]

    measured = network_probe.measure(
        ["ring", "doubling"], device_sum=device_sum, watched=watch, **ARGUMENTS
    )
    assert list(measured.seconds["ring"]) == list(network_probe._SIZES)[:sizes]
    assert list(measured.seconds["doubling"]) == list(network_probe._SIZES)
    assert {measured.best(size) for size in (1, 2**20, 2**30)} == {"doubling"}


def test_nothing_larger_is_measured_where_all_are_slow(watched):
    watch, _ = watched
    measured = network_probe.measure(
        ["ring", "doubling"],
        device_sum=lambda rows: np.full(len(rows[0]), 2 * 0.51e9),
        watched=watch,
        **ARGUMENTS,
    )
    assert [list(times) for times in measured.seconds.values()] == [[1024], [1024]]


@pytest.mark.parametrize(("devices", "right"), [(1, False), (2, True), (3, False)])
def test_an_algorithm_that_adds_up_wrongly_is_found(watched, devices, right):
    """Issue 5's one-tensor probe of the all-reduce that was chosen."""
    watch, _ = watched
    placement = types.SimpleNamespace(
        devices=devices, local_results=lambda value: (value,)
    )
    arguments = {**ARGUMENTS, "placement": placement, "watched": watch}
    if right:
        network_probe.check(["ring"], **arguments)
    else:
        with pytest.raises(RuntimeError, match=f"--allreduce=ring adds 1 .* {devices}"):
            network_probe.check(["ring"], **arguments)
