"""Seconds of an all-reduce by hand, the choices made by them, and measured ones."""

import dataclasses
import json
import math

import pytest
from tool_runs import TOOLS, load

from tf_goyal import cost_model
from tf_goyal.cost_model import Cost, Duration, Network

# A latency of 100, software of 10, 1 per byte on the link, 0.1 per byte for copying.
ROUND = Network(latency=100.0, bandwidth=1.0, message_seconds=10.0, copy_seconds=0.1)

# Hosts emulated on a machine of two cores: what PLATFORM's and the bench's runs there
# have in common.
SOFTWARE = {
    "message_seconds": 2e-4,
    "copy_seconds": 2e-9,
    "start_seconds": 1.5e-3,
    "cores": 2,
}


def test_ring_by_hand():
    """Four ranks, 40 bytes: six messages of 10, and two questions."""
    cost = cost_model.ring(40, 4, ROUND)
    assert cost == pytest.approx(Cost(6 * 110 + 2 * 100, 6 * 10, 6 * 1))


def test_halving_doubling_by_hand():
    """Eight ranks, 80 bytes: messages of 40, 20, 10 and back; one question."""
    cost = cost_model.halving_doubling(80, 8, ROUND)
    assert cost == pytest.approx(Cost(6 * 110 + 100, 2 * 70, 2 * 7))


@pytest.mark.parametrize("p", [2, 4, 8, 16, 1024])
def test_both_send_the_same_bytes(p):
    """§4: 2 (p - 1) / p b, in 2 log2 p and in 2 (p - 1) messages."""
    link = 2 * (p - 1) / p * 1000
    ring = cost_model.ring(1000, p, ROUND)
    halving_doubling = cost_model.halving_doubling(1000, p, ROUND)
    assert ring.link == pytest.approx(link)
    assert halving_doubling.link == pytest.approx(link)
    assert ring.waiting == pytest.approx(2 * (p - 1) * 110 + 200)
    assert halving_doubling.waiting == pytest.approx(2 * math.log2(p) * 110 + 100)


@pytest.mark.parametrize("name", cost_model.ALGORITHMS)
def test_one_process_sends_nothing(name):
    assert cost_model.ALGORITHMS[name](1000, 1, ROUND) == Cost()


def test_binary_blocks_of_three():
    """3 = 2 + 1: the single rank feeds both halves, 2 messages of 12 of its 24 bytes.

    It needs nobody before: 110 + 10 + 24 + 1.2 = 145.2, where the pair's one round
    takes 110 + 12 + 1.2 = 123.2.
    """
    cost = cost_model.halving_doubling(24, 3, ROUND)
    assert cost == pytest.approx(Cost(2 * 120 + 100, 2 * 24, 2 * 1.2))


def test_binary_blocks_of_seven():
    """7 = 4 + 2 + 1, 80 bytes: 1 hands to 2, which has waited; 2 hands to 4.

    1 to 2: 2 messages of 40: 120 + 80 + 4. Then 2 to 4: 2 messages of 20: 120 + 40 + 2.
    """
    cost = cost_model.halving_doubling(80, 7, ROUND)
    assert cost == pytest.approx(Cost(2 * 240 + 100, 2 * 120, 2 * 6))


def test_doubling_by_hand():
    """Eight ranks, 80 bytes: three messages of 80, no way back; one question."""
    cost = cost_model.doubling(80, 8, ROUND)
    assert cost == pytest.approx(Cost(3 * 110 + 100, 3 * 80, 3 * 8))


def test_doubling_of_three():
    """3 = 2 + 1: one hands 80 bytes to two (120 + 160 + 8) and gets 80 from one."""
    cost = cost_model.doubling(80, 3, ROUND)
    assert cost == pytest.approx(Cost(120 + 110 + 100, 160 + 80, 2 * 8))


def test_halving_once_of_four():
    """80 bytes: messages of 40 and 40, and one of 40 back."""
    cost = cost_model.halving_doubling(80, 4, ROUND, halvings=1)
    assert cost == pytest.approx(Cost(3 * 110 + 100, 3 * 40, 3 * 4))


def test_a_call_starts_once():
    network = dataclasses.replace(ROUND, start_seconds=7.0, members=2)
    plain = dataclasses.replace(network, start_seconds=0.0)
    for p in (2, 3, 8):
        for reduce in cost_model.ALGORITHMS.values():
            seconds = reduce(80, p, network).seconds - reduce(80, p, plain).seconds
            assert seconds == pytest.approx(7.0)


def test_a_block_that_is_slower_than_what_it_is_handed():
    """36 = 32 + 4, latency only: 5 rounds of 32, against 2 rounds and one message."""
    network = Network(latency=1.0, bandwidth=math.inf)
    assert cost_model.halving_doubling(1, 36, network).seconds == 2 * 5 + 1


def test_members_of_a_host_share_its_link():
    """8 ranks, 4 a host, 80 bytes: 40 and 20 stay inside; 4 times 10 go between."""
    network = Network(100.0, 1.0, 10.0, 0.0, members=4, inside_bandwidth=10.0)
    cost = cost_model.halving_doubling(80, 8, network)
    assert cost == pytest.approx(Cost(2 * (10 + 10 + 110) + 100, 2 * 40, 2 * 6))


def test_binary_blocks_of_hosts_share_their_links():
    """6 = 4 + 2 ranks, 2 a host, 80 bytes: both of a host hand 2 times 20 to the 4.

    There the pair's 40 inside, then 4 times 20 between; and the same way back.
    """
    network = Network(100.0, 1.0, 10.0, 0.0, members=2, inside_bandwidth=10.0)
    cost = cost_model.halving_doubling(80, 6, network)
    assert cost == pytest.approx(Cost(2 * (10 + 120) + 100, 2 * 80, 2 * 4))


def test_one_host_has_no_latency():
    network = Network(100.0, 1.0, 10.0, 0.0, members=4, inside_bandwidth=10.0)
    assert cost_model.ring(40, 4, network) == pytest.approx(Cost(60, 0, 6))
    assert cost_model.halving_doubling(40, 4, network) == pytest.approx(Cost(40, 0, 6))
    assert cost_model.hierarchical(40, 4, network) == pytest.approx(Cost(40, 0, 16))


def test_hierarchical_is_three_phases():
    """16 ranks, 4 a host: 80 bytes up a tree of 2 levels, between 4 hosts, down."""
    network = Network(100.0, 1.0, 10.0, 0.1, members=4, inside_bandwidth=10.0)
    between = cost_model.halving_doubling(80, 4, ROUND)
    assert cost_model.hierarchical(80, 16, network) == pytest.approx(
        between.plus(Cost(4 * 10, 0, 4 * (8 + 8)))
    )


def test_our_messages_cost_more_software():
    network = dataclasses.replace(ROUND, point_to_point=3.0)
    assert cost_model.ring(80, 8, network) == cost_model.ring(80, 8, ROUND)
    cost = cost_model.halving_doubling(80, 8, network)
    assert cost == pytest.approx(Cost(6 * 130 + 100, 2 * 70, 6 * 7))


def test_the_hosts_of_one_machine_share_its_cores():
    """With 2 cores software takes twice as long at 4 hosts, and as long at 2."""
    network = Network(100.0, 1.0, 10.0, 0.1, cores=2)
    for p, times in ((2, 1), (4, 2), (8, 4)):
        assert cost_model.ring(80, p, network).copying == pytest.approx(
            times * cost_model.ring(80, p, ROUND).copying
        )
        inside = dataclasses.replace(network, members=8)
        assert cost_model.ring(80, p, inside) == pytest.approx(
            Cost(times * 2 * (p - 1) * 10.0, 0.0, times * 2 * (p - 1) / p * 8)
        )
        software = cost_model.ring(80, p, network).waiting - 2 * p * 100.0
        assert software == pytest.approx(times * 2 * (p - 1) * 10.0)


def test_best_depends_on_size_and_p():
    """Few rounds for small buffers; for large ones and no power of two, few bytes."""
    network = Network(latency=1e-3, bandwidth=1e8)
    assert cost_model.best(1_000, 8, network) == "doubling"
    assert cost_model.best(1_000_000, 8, network) == "halving_doubling"
    assert cost_model.best(100_000_000, 7, network) == "ring"
    three_hosts = Network(1e-3, 1e8, members=2, inside_bandwidth=1e10)
    assert cost_model.best(100_000_000, 7, three_hosts) == "hierarchical"
    # Each alone on its host, nobody has a use for it.
    alone = [cost_model.best(2**i, 7, network) for i in range(30)]
    assert set(alone) == {"halving_doubling", "ring"}


def test_more_bytes_never_take_less_time():
    for p in range(2, 40):
        for reduce in cost_model.ALGORITHMS.values():
            seconds = [reduce(2**i, p, ROUND).seconds for i in range(0, 24, 4)]
            assert seconds == sorted(seconds)


def ten_and_a_byte(size):
    return Duration(alone=10.0 + size, busy=size, idle=10.0)


def finish(groups, sizes, ready, seconds):
    """When the last of some buckets is done, one after the other."""
    now = 0.0
    for group in groups:
        now = max(now, ready[group[-1]]) + seconds(sum(sizes[i] for i in group)).alone
    return now


def partitions(n):
    """All ways to cut n positions into buckets."""
    for cuts in range(2 ** (n - 1)):
        groups = [[0]]
        for i in range(1, n):
            if cuts >> (i - 1) & 1:
                groups.append([])
            groups[-1].append(i)
        yield groups


@pytest.mark.parametrize(
    "sizes, ready",
    [
        ([40, 3, 3, 30, 20, 1, 1, 8], [1, 2, 3, 50, 60, 90, 100, 130]),
        ([5] * 8, [10, 20, 30, 40, 50, 60, 70, 80]),
        ([100, 1, 1, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5, 6, 300]),
        ([1] * 8, [0] * 8),
    ],
)
def test_no_other_buckets_are_done_earlier(sizes, ready):
    groups = cost_model.buckets(sizes, ready, ten_and_a_byte)
    assert [i for group in groups for i in group] == list(range(8))
    assert finish(groups, sizes, ready, ten_and_a_byte) == min(
        finish(other, sizes, ready, ten_and_a_byte)
        for other in partitions(8)
        if not too_small(other, sizes)
    )
    assert not too_small(groups, sizes)


def too_small(groups, sizes):
    """Whether a bucket but the last takes more than half of its time to wait."""
    return any(sum(sizes[i] for i in group) < 10 for group in groups[:-1])


@pytest.mark.parametrize(
    ("first", "buckets"), [(9, [[0, 1], [2]]), (10, [[0], [1], [2]])]
)
def test_a_bucket_is_worth_its_latency(first, buckets):
    """10 of waiting: 9 bytes wait for the next tensor, 10 travel alone."""
    ready = [0, 1000, 2000]
    assert cost_model.buckets([first, 500, 1], ready, ten_and_a_byte) == buckets


def test_the_last_bucket_is_small():
    """Nothing hides it: only what is ready last is in it."""
    ready = [0, 10, 20, 30, 1000]
    groups = cost_model.buckets([100] * 4 + [1], ready, ten_and_a_byte)
    assert groups[-1] == [4]


def test_latency_makes_buckets_larger_and_company_smaller():
    sizes, ready = [10] * 30, list(range(0, 300, 10))

    def count(wait, in_flight):
        def seconds(size):
            return Duration(wait + size, size, wait)

        return len(cost_model.buckets(sizes, ready, seconds, in_flight))

    assert count(50.0, 1) < count(50.0, 8) <= count(0.0, 1)


def test_the_last_sum_counts_and_not_the_last_turn():
    """Four in flight. The first keeps the link busy until 1 + 10, the last takes 9: 20.

    Together 2 + 19 = 21, though a third could start earlier: at 2 + 11 = 13, against
    11 + 9 / 4 = 13.25.
    """
    groups = cost_model.buckets(
        [10, 1], [1, 2], lambda size: Duration(8 + size, size, 8), 4
    )
    assert groups == [[0], [1]]


def test_no_tensors_make_no_buckets():
    assert cost_model.buckets([], [], ten_and_a_byte) == []


def test_fit_finds_the_costs_again():
    known = Network(1e-3, 1.25e8, cores=2)
    truth = Network(
        1e-3, 1.25e8, 7e-4, 3e-9, point_to_point=1.7, start_seconds=2e-3, cores=2
    )
    measured = [
        {
            "algorithm": name,
            "p": p,
            "bytes": size,
            "seconds": cost_model.ALGORITHMS[name](size, p, truth).seconds,
        }
        for name in ("ring", "halving_doubling", "doubling")
        for p in (2, 4, 8)
        for size in (1024, 65536, 4194304)
    ]
    fitted = cost_model.fit(measured, known)
    assert fitted.message_seconds == pytest.approx(7e-4)
    assert fitted.copy_seconds == pytest.approx(3e-9)
    assert fitted.start_seconds == pytest.approx(2e-3)
    assert fitted.point_to_point == 1.7
    assert (fitted.latency, fitted.bandwidth) == (1e-3, 1.25e8)


def test_fit_never_goes_below_zero():
    """Measured quicker than the link allows: software that costs nothing."""
    measured = [
        {"algorithm": "ring", "p": 2, "bytes": size, "seconds": size * 5e-9}
        for size in (10**6, 10**7)
    ]
    fitted = cost_model.fit(measured, Network(0.0, 1.25e8))
    assert (fitted.message_seconds, fitted.copy_seconds) == (0.0, 0.0)


def test_fit_needs_two():
    with pytest.raises(ValueError, match="two all-reduces or more must be measured"):
        cost_model.fit([], ROUND)


@pytest.mark.parametrize(
    "algorithm, floats, seconds",
    [
        ("ring", 256, 0.084),
        ("ring", 16_384, 0.084),
        ("ring", 262_144, 0.107),
        ("halving_doubling", 256, 0.043),
        ("halving_doubling", 16_384, 0.043),
    ],
)
def test_eight_emulated_hosts(algorithm, floats, seconds):
    """Measured with 5 ms one way and no limit; to within 20 %."""
    network = Network(5e-3, math.inf, **SOFTWARE)
    found = cost_model.ALGORITHMS[algorithm](4 * floats, 8, network).seconds
    assert found == pytest.approx(seconds, rel=0.2)


def test_a_model_between_two_emulated_hosts():
    """ResNet-50's gradients at 1 Gbit/s without latency: measured 1.02 s."""
    network = Network(0.0, 1.25e8, **SOFTWARE)
    found = cost_model.ring(4 * 25_557_032, 2, network).seconds
    assert found == pytest.approx(1.02, rel=0.2)


def test_the_rings_latencies_are_twice_p():
    """TensorFlow 2.21's ring, 256 floats, 4 hosts: 14.8 ms at 1 ms, 46.8 ms at 5 ms.

    That is 8.0 latencies: 2 (p - 1) messages, and a question in each of two passes.
    """
    near, far = (
        cost_model.ring(1024, 4, Network(latency, math.inf, **SOFTWARE)).seconds
        for latency in (1e-3, 5e-3)
    )
    assert near == pytest.approx(0.0148, rel=0.2)
    assert far == pytest.approx(0.0468, rel=0.2)
    assert far - near == pytest.approx(0.0468 - 0.0148, rel=0.01)


STORED = TOOLS / "results" / "bench_allreduce.json"
EMULATED = {
    "1 ms, 1 Gbit/s": Network(1e-3, 1.25e8, cores=2),
    "5 ms": Network(5e-3, math.inf, cores=2),
    "10 ms": Network(10e-3, math.inf, cores=2),
}


def test_all_stored_networks_are_compared():
    names = {run["network"] for run in json.loads(STORED.read_text())["runs"]}
    assert names == {*EMULATED, "loopback"}


@pytest.mark.parametrize("name", EMULATED)
def test_stored_measurements(name):
    """Emulated hosts on two cores, each algorithm, size and p: to within 20 %."""
    network, measured = EMULATED[name], load("scaling").measurements(STORED, name)
    fitted = cost_model.fit(measured, network)
    wrong = {}
    for each in measured:
        reduce = cost_model.ALGORITHMS[each["algorithm"]]
        ratio = reduce(each["bytes"], each["p"], fitted).seconds / each["seconds"]
        if not 0.8 <= ratio <= 1.2:
            wrong[each["algorithm"], each["p"], each["bytes"]] = ratio
    assert not wrong, fitted
