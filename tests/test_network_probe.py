"""What --allreduce=auto goes by; measuring itself is in test_train_peers.py."""

import pytest

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


def test_cost_is_what_there_is_and_what_grows():
    assert TIMES.cost(1024) == pytest.approx((1e-3, 0.0))
    assert TIMES.cost(4096) == pytest.approx((6e-3, 2e-3))  # the ring's
