import numpy as np
import pytest

from tf_goyal import image_order


def orders(n, epochs, seed=0) -> np.ndarray:
    """int64 [len(epochs), n]: the records of whole epochs."""
    positions = np.concatenate([e * n + np.arange(n) for e in epochs])
    return image_order.shuffled(n, seed).records_at(positions).reshape(-1, n)


@pytest.mark.parametrize("n", [1, 2, 7, 1500, 65_536, 65_537])
def test_every_epoch_is_a_permutation(n):
    for order in orders(n, [0, 1, 255]):
        assert np.array_equal(np.sort(order), np.arange(n))


def test_positions_are_exact_beyond_float64():
    n = 1500
    last = (2**63 - 1) // n - 1
    order, next_order = orders(n, [last - 1, last])
    assert np.array_equal(np.sort(order), np.arange(n))
    assert np.array_equal(np.sort(next_order), np.arange(n))
    assert not np.array_equal(order, next_order)


def test_order_is_fixed():
    """Another order would make old checkpoints go on with other data."""
    assert orders(7, [0, 1]).tolist() == [[0, 2, 1, 5, 4, 3, 6], [5, 3, 2, 4, 1, 0, 6]]
    big = [0, 1, 1_281_166, 1_281_167]
    assert image_order.shuffled(1_281_167, 1).records_at(big).tolist() == [
        293997,
        912910,
        527182,
        1264405,
    ]


def test_seeds_and_epochs_differ_in_all_their_bits():
    """`tf.random.experimental.index_shuffle` takes only 8 bits of each."""
    seen = {orders(100, [0]).tobytes()}
    for bit in range(0, 63, 7):
        seen.add(orders(100, [0], seed=2**bit).tobytes())
        seen.add(orders(100, [0], seed=-(2**bit)).tobytes())
        if bit < 50:
            seen.add(orders(100, [2**bit]).tobytes())
    assert len(seen) == 1 + 9 + 9 + 8
    assert len({order.tobytes() for order in orders(100, range(1000))}) == 1000


@pytest.mark.parametrize("n, epochs", [(1500, 300), (65_537, 20)])
def test_orders_are_uncorrelated(n, epochs):
    """Within 5 standard deviations of independent uniform permutations."""
    order = orders(n, range(epochs))
    rank = (order - (n - 1) / 2) / np.sqrt((n**2 - 1) / 12)  # mean 0, variance 1
    across = (rank[1:] * rank[:-1]).mean(axis=1)  # record ranks, epoch to epoch
    along = (rank[:, 1:] * rank[:, :-1]).mean(axis=1)  # neighbours in one epoch
    for correlation in (across, along):
        assert abs(correlation.mean()) < 5 / np.sqrt(n * len(correlation))
        assert np.abs(correlation).max() < 5 / np.sqrt(n)
    # Fixed points, and records at the same place twice: Poisson of mean 1.
    fixed, again = order == np.arange(n), order[1:] == order[:-1]
    for same in (fixed, again):
        assert abs(same.sum() - len(same)) < 5 * np.sqrt(len(same))


def test_any_two_records_share_a_batch_equally_often():
    n, batch, epochs = 600, 60, 300
    together = np.zeros((n, n), np.float32)
    for order in orders(n, range(epochs)):
        member = np.zeros((n, n // batch), np.float32)
        member[order, np.arange(n) // batch] = 1
        together += member @ member.T
    pairs = together[np.triu_indices(n, 1)]
    chance = (batch - 1) / (n - 1)
    assert pairs.mean() == pytest.approx(epochs * chance, rel=1e-5)
    assert pairs.var() == pytest.approx(epochs * chance * (1 - chance), rel=0.02)


def test_positions_in_any_order_and_far_apart():
    """The orders of two epochs are kept; a third one replaces the farther."""
    order = image_order.shuffled(50, 3)
    positions = np.random.default_rng(0).integers(0, 50 * 9, 400)
    alone = [image_order.shuffled(50, 3).records_at([p])[0] for p in positions]
    assert order.records_at(positions).tolist() == alone
    again = [order.records_at([p])[0] for p in positions[::-1]][::-1]
    assert again == alone


# --- streaming


def streaming(parts, kn, n, seed=0):
    parts = np.array(parts)
    order = image_order.streaming(parts, seed, global_batch=kn, worker_batch=n)
    return order, int(parts.sum())


@pytest.mark.parametrize(
    ("parts", "kn", "n"),
    [
        ([7], 4, 2),
        ([24], 24, 6),
        ([3, 0, 5, 1], 4, 2),
        ([10] * 9 + [1], 8, 1),
        ([5000, 3000, 1234], 96, 32),
    ],
)
def test_streaming_has_every_record_once_an_epoch(parts, kn, n):
    """D1: for parts, workers and epochs that divide nothing."""
    order, images = streaming(parts, kn, n)
    epochs = order.records_at(np.arange(5 * images)).reshape(5, images)
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch), np.arange(images))
    assert images < 8 or len({epoch.tobytes() for epoch in epochs}) == 5


def test_streaming_depends_on_seed_epoch_and_parts_only():
    order, images = streaming([50, 50], 20, 5)
    positions = np.arange(3 * images)
    same, _ = streaming([50, 50], 20, 5)
    expected = order.records_at(positions)
    np.testing.assert_array_equal(same.records_at(positions[::-1])[::-1], expected)
    for other in (streaming([50, 50], 20, 5, seed=1), streaming([30, 70], 20, 5)):
        assert not np.array_equal(other[0].records_at(positions), expected)


def test_a_streaming_worker_reads_its_part_nearly_in_sequence():
    """80,000 records, 4 workers: 8 streams of 2,500 each, within 1,024 of the front."""
    images, kn, n = 80_000, 400, 100
    order, _ = streaming([10_000] * 8, kn, n)
    everything = order.records_at(np.arange(images))
    worker = np.arange(images) % kn // n
    for w in range(4):
        records = everything[worker == w]
        assert len(records) == 20_000
        # Two shards, or parts of three.
        assert len(np.unique(records // 10_000)) <= 3
        place = np.searchsorted(np.sort(records), records)  # in the worker's piece
        stream = place // 2_500
        for s in range(8):
            mine = place[stream == s] % 2_500
            assert len(mine) == 2_500
            assert np.abs(mine - np.arange(2_500)).max() < 1_024
            assert not np.array_equal(mine, np.arange(2_500))
        # All streams advance together.
        front = stream[:1_000]
        assert (np.bincount(front, minlength=8) > 60).all()


def test_streaming_workers_have_equal_parts():
    order, images = streaming([999] * 3, 32, 4)  # 2,997 = 93 steps of 32, and 21
    order.records_at(np.arange(images))
    sizes = np.bincount(np.arange(images) % 32 // 4)
    assert sizes.tolist() == [376] * 5 + [373] + [372] * 2
