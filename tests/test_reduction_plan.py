import pytest

from tf_goyal import reduction_plan
from tf_goyal.cost_model import Duration


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"),
    [
        (0, [[0], [1], [2], [3]]),
        (1, [[0], [1], [2], [3]]),
        (3, [[0], [1, 2], [3]]),  # 4 | 2 + 2 | 8
        (4, [[0], [1, 2], [3]]),
        (5, [[0, 1], [2, 3]]),
        (8, [[0, 1, 2], [3]]),
        (9, [[0, 1, 2, 3]]),
        (1000, [[0, 1, 2, 3]]),
    ],
)
def test_buckets_are_full_when_they_hold_enough(bucket_bytes, expected):
    """C3: 0, between, larger than everything."""
    assert reduction_plan.fill([4, 2, 2, 8], bucket_bytes) == expected
    buckets = plan([4, 2, 2, 8], bucket_bytes=bucket_bytes)
    assert [bucket.positions for bucket in buckets] == expected
    assert sum(bucket.bytes for bucket in buckets) == 16


def test_no_tensors_need_no_bucket():
    assert reduction_plan.fill([], 8) == []


@pytest.mark.parametrize(
    ("gradients_from", "expected"),
    [
        (0, [[0, 1, 2], [3, 4]]),
        (1, [[0], [1, 2, 3], [4]]),
        (2, [[0, 1], [2, 3, 4]]),
        (5, [[0, 1, 2], [3, 4]]),
    ],
)
def test_statistics_and_gradients_never_share_a_bucket(gradients_from, expected):
    """4-byte statistics and 2-byte gradients could not travel as one tensor."""
    buckets = plan([4] * 5, bucket_bytes=12, gradients_from=gradients_from)
    assert [bucket.positions for bucket in buckets] == expected
    assert [bucket.bytes for bucket in buckets] == [
        4 * len(group) for group in expected
    ]


def plan(sizes, bucket_bytes=None, cost=None, algorithm=str, ready=None, **more):
    return reduction_plan.plan(
        sizes,
        ready or [1.0] * len(sizes),
        bucket_bytes=bucket_bytes,
        algorithm=algorithm,
        cost=cost,
        in_flight=2,
        **more,
    )


@pytest.mark.parametrize(("size", "algorithm"), [(7, "small"), (8, "large")])
def test_each_bucket_has_its_algorithm(size, algorithm):
    def choose(size):
        return "large" if size >= 8 else "small"

    (bucket,) = plan([size], bucket_bytes=1, algorithm=choose)
    assert bucket == ([0], size, algorithm)


def test_8_mb_where_nothing_was_measured():
    mega = 2**20
    buckets = plan([5 * mega, 3 * mega - 1, 1, 8 * mega, 1])
    assert [bucket.positions for bucket in buckets] == [[0, 1, 2], [3], [4]]


@pytest.mark.parametrize(
    ("ready", "expected"),
    [([0.25, 0.5, 1.0], [[0, 1], [2]]), ([1.0, 1.0, 1.0], [[0, 1, 2]])],
)
def test_the_last_bucket_is_small_where_it_was_measured(ready, expected):
    """What is ready last is not hidden: it travels alone."""

    def cost(size):  # all 108 ms, each bucket 48 ms and 1 ms for 1,000 bytes
        return Duration(0.048 + size * 1e-6, size * 1e-6, 0.048)

    # Backward is taken to last 108 ms. As one bucket all is there after 108 + 108; with
    # the last tensor alone after 108 + 58, and the others are there at 54 + 98. Where
    # all is ready at the end two buckets are no earlier: 108 + 50 + 58.
    buckets = plan([30_000, 20_000, 10_000], cost=cost, ready=ready)
    assert [bucket.positions for bucket in buckets] == expected
