"""How long an all-reduce takes, and so: which algorithm, and which buckets.

A message of b bytes takes `latency + message_seconds + b / bandwidth + b copy_seconds`:
Thakur, Rabenseifner and Gropp (2005), "Optimization of Collective Communication
Operations in MPICH", §3, where these are alpha + b beta + b gamma. TensorFlow's
receivers ask for a message before they get it. Where they ask early, only the first
message of a pass waits for the question, which is one latency more.

No TensorFlow in here: the trainer's --allreduce=auto and tools/scaling.py share it.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class Network:
    """What messages cost.

    Attributes:
      latency: seconds that a message is under way between two hosts, one way.
      bandwidth: bytes/s of a host's link, in each direction.
      message_seconds: seconds of software for each message, whatever its size.
      copy_seconds: seconds per byte received, for copying it out and adding it.
      members: processes of one host; consecutive ranks share a host.
      inside_bandwidth: bytes/s of a message between two of them.
      point_to_point: how many times as much software as a message of TensorFlow's ring,
        which is a single op, one of ours takes, made of several.
      start_seconds: seconds before the first message: those of a call, if each
        all-reduce is a call of its own. Buckets of a step are not.
      cores: processor cores that all hosts together have. Only finite where hosts are
        emulated on one machine: all software is slower there when there are more.
    """

    latency: float
    bandwidth: float
    message_seconds: float = 0.0
    copy_seconds: float = 0.0
    members: int = 1
    inside_bandwidth: float = math.inf
    point_to_point: float = 1.0
    start_seconds: float = 0.0
    cores: float = math.inf


class Cost(NamedTuple):
    """Seconds of one all-reduce, by what they keep busy.

    Attributes:
      waiting: latency and software. Others can go on meanwhile.
      link: the host's link.
      copying: the host's processors.
    """

    waiting: float = 0.0
    link: float = 0.0
    copying: float = 0.0

    @property
    def seconds(self) -> float:
        """All of them, one after the other."""
        return self.waiting + self.link + self.copying

    def plus(self, *others: "Cost") -> "Cost":
        """One after the other."""
        return Cost(
            self.waiting + sum(other.waiting for other in others),
            self.link + sum(other.link for other in others),
            self.copying + sum(other.copying for other in others),
        )


def ring(size: float, p: int, network: Network) -> Cost:
    """TensorFlow's ring: reduce-scatter and all-gather in p - 1 rounds each (§4).

    2 (p - 1) messages of size / p. Of consecutive ranks on a host only the last sends
    over its link, but each round takes as long as its slowest message. In each of the
    two passes the first message waits for its question.

    Args:
      size: bytes to reduce.
      p: processes.
      network: what messages cost.
    """
    if p == 1:
        return Cost()
    messages, total = 2 * (p - 1), 2 * (p - 1) / p * size
    start = _start(p, network)
    if p <= network.members:
        return start.plus(_inside(messages, total, p, network))
    questions = Cost(2 * network.latency)
    return start.plus(_between(messages, total, p, network), questions)


def halving_doubling(
    size: float, p: int, network: Network, halvings: int | None = None
) -> Cost:
    """Recursive halving, then doubling, by binary blocks (§4; Thakur et al., §4.5).

    A block of q = 2^i ranks takes 2 i messages, in round r of size / 2^r between ranks
    2^(r - 1) apart. Any p is a sum of such blocks. Each reduces and scatters on its
    own; then the smallest hands its sums to the next larger one, which adds them and
    hands on, and all goes the same way back (Rabenseifner 2004, "Optimization of
    Collective Reduction Operations"; the two additional steps of §4). What counts is
    the slowest way to the largest block's sums and the slowest way back.

    Args:
      size: bytes to reduce.
      p: processes.
      network: what messages cost; all members of a host share its link in the rounds
        that go between hosts.
      halvings: rounds that halve; the others exchange all they have and need no way
        back. None: all rounds.
    """
    if p == 1:
        return Cost()
    times, members = network.point_to_point, network.members
    one_host = p <= members

    def rounds(sizes):
        """Messages of these sizes, the first between near ranks."""
        near = (members - 1).bit_length()
        stay, go = sizes[:near], sizes[near:]
        return _inside(len(stay), sum(stay), p, network, times).plus(
            _between(len(go), sum(go), p, network, times, members)
        )

    def handed(part, messages, senders):
        """Several to or from one rank; the other ranks only copy one part."""
        first = (
            _inside(1, part, p, network, times)
            if one_host
            else _between(1, part, p, network, times, messages * senders)
        )
        software = times * network.message_seconds * _crowd(p, network)
        return first.plus(Cost((messages - 1) * software))

    there, smaller = Cost(), 0
    ways: list[tuple[Cost, Cost]] = []  # of each block: to it from the larger, within
    for block in (2**i for i in range(p.bit_length()) if p >> i & 1):
        depth = block.bit_length() - 1
        halved = depth if halvings is None else min(halvings, depth)
        parts = [size / 2**r for r in range(1, halved + 1)]
        part = size / 2**halved
        scattered = rounds([*parts, *[part] * (depth - halved)])
        if smaller:
            senders = min(members, smaller)
            up = there.plus(handed(part, block // smaller, senders))
            scattered = max(scattered, up, key=_seconds)
            down = handed(part, max(1, 2**halved // smaller), senders)
            ways[-1] = down, ways[-1][1]
        there, smaller = scattered, block
        ways.append((Cost(), rounds(parts)))
    down, backs = Cost(), []
    for handed_down, gathered in reversed(ways):
        down = down.plus(handed_down)
        backs.append(down.plus(gathered))
    question = Cost(0.0 if one_host else network.latency)
    return _start(p, network).plus(there, max(backs, key=_seconds), question)


def doubling(size: float, p: int, network: Network) -> Cost:
    """`halving_doubling` without halving: log2 p messages of the whole buffer."""
    return halving_doubling(size, p, network, halvings=0)


def hierarchical(size: float, p: int, network: Network) -> Cost:
    """The three phases of §4: inside each host, between hosts, inside again.

    Inside, m members hand their sums up a binomial tree, and the total down: ceil(log2
    m) messages of the whole buffer, one after another.

    Args:
      size: bytes to reduce.
      p: processes.
      network: what messages cost.
    """
    levels = (min(p, network.members) - 1).bit_length()
    within = _inside(2 * levels, 2 * levels * size, p, network, network.point_to_point)
    hosts = math.ceil(p / network.members)
    alone = dataclasses.replace(network, members=1, start_seconds=0.0)
    start = _start(p, network)
    return start.plus(halving_doubling(size, hosts, alone), within)


def _seconds(cost: Cost) -> float:
    return cost.seconds


def _start(p: int, network: Network) -> Cost:
    if p == 1:
        return Cost()
    return Cost(network.start_seconds * _crowd(p, network))


def _crowd(p: int, network: Network) -> float:
    """By how much software is slower where all hosts share a machine's cores."""
    return max(1.0, p / network.cores)


def _inside(
    messages: int, total: float, p: int, network: Network, times: float = 1.0
) -> Cost:
    """Messages of `total` bytes, one after another, between members of a host."""
    copying = times * network.copy_seconds * _crowd(p, network)
    return Cost(
        messages * times * network.message_seconds * _crowd(p, network),
        copying=total * (copying + 1 / network.inside_bandwidth),
    )


def _between(
    messages: int,
    total: float,
    p: int,
    network: Network,
    times: float = 1.0,
    flows: int = 1,
) -> Cost:
    """The same between hosts, each with `flows` of them over its link at a time."""
    copying = times * network.copy_seconds * _crowd(p, network)
    return Cost(
        messages
        * (network.latency + times * network.message_seconds * _crowd(p, network)),
        flows * total / network.bandwidth,
        total * copying,
    )


ALGORITHMS: dict[str, Callable[[float, int, Network], Cost]] = {
    "ring": ring,
    "halving_doubling": halving_doubling,
    "doubling": doubling,
    "hierarchical": hierarchical,
}


def best(size: float, p: int, network: Network) -> str:
    """The quickest of `ALGORITHMS` for `size` bytes and p processes."""
    names = [n for n in ALGORITHMS if n != "hierarchical" or network.members > 1]
    return min(names, key=lambda name: ALGORITHMS[name](size, p, network).seconds)


class Duration(NamedTuple):
    """Seconds of a bucket's all-reduce.

    Attributes:
      alone: while no other is under way.
      busy: how much of it what all share (the link) is busy.
      idle: how much of it an empty one would take, too: latency and software.
    """

    alone: float
    busy: float
    idle: float


def buckets(
    sizes: Sequence[int],
    ready: Sequence[float],
    seconds: Callable[[int], Duration],
    in_flight: int = 1,
) -> list[list[int]]:
    """Buckets whose last sum is there as early as can be.

    A bucket starts when its last tensor is ready and its turn has come; the next one's
    comes when this one is no longer in its way. Of the first i tensors, with those of
    j .. i - 1 as the last bucket:

        turn(i) = min over j of max(turn(j), ready[i - 1]) + way(bytes of j .. i - 1)
        way = max(busy, alone / in_flight)

    Large buckets save latency where backward hides them; the last becomes small because
    nothing hides it. No other bucket is so small that most of its time is latency and
    software, which takes processors from backward. Of equally early ways the one with
    the fewest buckets.

    Args:
      sizes: bytes of each tensor, in the order in which they become ready.
      ready: when each is ready, seconds, ascending.
      seconds: bytes of a bucket -> how long its all-reduce takes.
      in_flight: buckets that may be under way at the same time.

    Returns:
      Lists of positions in `sizes`; together each position once, in order.

    >>> def seconds(size):
    ...     return Duration(alone=1.0 + size, busy=size, idle=1.0)
    >>> buckets([6, 6, 2], [1.0, 8.0, 20.0], seconds)
    [[0, 1], [2]]
    """
    ends = [0, *np.cumsum(sizes).tolist()]
    # Of the first i tensors: turn(i), when the last sum is there, in how many buckets,
    # and where the last one begins; None where no bucket can end there.
    found: list[tuple[float, float, int, int] | None] = [(0.0, 0.0, 0, 0)]
    for i in range(1, len(ends)):
        ways = []
        last = i == len(ends) - 1
        for j, before in enumerate(found):
            alone, busy, idle = seconds(ends[i] - ends[j])
            if not before or (alone < 2 * idle and not last):
                continue
            turn, done, count, _ = before
            begin = max(turn, ready[i - 1])
            ways.append(
                (
                    begin + max(busy, alone / in_flight),
                    max(done, begin + alone),
                    count + 1,
                    j,
                )
            )
        best = min(ways, key=lambda way: way[1:] if last else way, default=None)
        found.append(best)
    groups: list[list[int]] = []
    i = len(sizes)
    while i:
        begin = found[i][3]  # there: the last bucket may be of any size
        groups.insert(0, list(range(begin, i)))
        i = begin
    return groups


def fit(measurements: Sequence[dict[str, Any]], network: Network) -> Network:
    """The network with the software's costs that explain measured all-reduces best.

    Least squares of the relative error, no cost below 0.

    Args:
      measurements: objects with "algorithm" (of `ALGORITHMS`), "p", "bytes" and
        "seconds".
      network: all that is known. With latency 0 and infinite bandwidth the fit's
        `message_seconds` and `copy_seconds` stand for everything.

    Returns:
      `network` with new `message_seconds`, `copy_seconds` and `start_seconds`, and with
      a new `point_to_point` if both TensorFlow's ring and algorithms of ours were
      measured.

    Raises:
      ValueError: there are fewer than two measurements.
    """
    if len(measurements) < 2:
        raise ValueError(
            "two all-reduces or more must be measured to fit a network, got "
            f"{len(measurements)}"
        )
    rings = {m["algorithm"] == "ring" for m in measurements}
    steps = _POINT_TO_POINT if len(rings) == 2 else [network.point_to_point]
    fits = [
        _fit(measurements, dataclasses.replace(network, point_to_point=float(times)))
        for times in steps
    ]
    return min(fits, key=lambda error_and_network: error_and_network[0])[1]


# What `fit` tries: 0.5, 0.6 ... 4.
_POINT_TO_POINT = np.arange(5, 41) / 10
# What `fit` looks for, and units of a handy size.
_FITTED = {"message_seconds": 1e-3, "copy_seconds": 1e-9, "start_seconds": 1e-3}


def _fit(
    measurements: Sequence[dict[str, Any]], network: Network
) -> tuple[float, Network]:
    """Squared error and network for a given `point_to_point`."""

    def predicted(**software):
        changed = dataclasses.replace(network, **software)
        return np.array(
            [
                ALGORITHMS[m["algorithm"]](m["bytes"], m["p"], changed).seconds
                for m in measurements
            ]
        )

    measured = np.array([m["seconds"] for m in measurements])
    nothing = dict.fromkeys(_FITTED, 0.0)
    base = predicted(**nothing)
    # Linear in all of them, and exactly so where p is a power of two.
    slopes = np.stack(
        [predicted(**{**nothing, name: unit}) - base for name, unit in _FITTED.items()],
        1,
    )
    slopes, rest = slopes / measured[:, None], 1.0 - base / measured
    solutions = []
    for used in itertools.product((False, True), repeat=len(_FITTED)):
        costs = np.zeros(len(_FITTED))
        costs[list(used)] = np.linalg.lstsq(slopes[:, used], rest, rcond=None)[0]
        if (costs >= 0.0).all():
            solutions.append((float(np.sum((slopes @ costs - rest) ** 2)), *costs))
    error, *costs = min(solutions)
    found = {
        name: float(cost * unit)
        for cost, (name, unit) in zip(costs, _FITTED.items(), strict=True)
    }
    return error, dataclasses.replace(network, **found)
