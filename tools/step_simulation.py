"""One training step of a cluster, simulated: what runs when, and what nobody hides.

Backward runs and makes gradients. A bucket leaves when its last gradient is there and
fewer than `in_flight` buckets are under way, in order. It goes through three phases
(§4): sum inside the server, all-reduce between the servers, hand out inside the server.
All servers do the same at the same time, so one of them is simulated. Everything that
runs goes at full speed until together they want more of something (the link, the way
inside the server, the processors) than there is; then those that want it share it.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tf_goyal import cost_model, reduction_plan
from tf_goyal.cost_model import Cost, Network
from tf_goyal.gradient_order import Gradient

# What things share. Waiting for latency and software shares nothing.
_LINK, _INSIDE, _PROCESSORS = range(3)
_TINY = 1e-12  # seconds; rounding


@dataclasses.dataclass(frozen=True)
class Work:
    """What a device does in a step, without communication.

    Attributes:
      forward: seconds.
      backward: seconds.
      rest: seconds of everything else: input that is waited for, the update.
      gradients: in the order in which they become ready.
    """

    forward: float
    backward: float
    rest: float
    gradients: Sequence[Gradient]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What it runs on, and how.

    Attributes:
      servers: each with `network.members` devices.
      network: what messages cost; `inside_bandwidth` here is bytes/s in which a
        server's devices add a buffer up, or all get the sum.
      algorithm: between servers: "ring", "halving_doubling", "doubling", or "auto" for
        the best of them for each bucket.
      bucket_bytes: as the trainer's --bucket_mb: a bucket is closed when it holds at
        least as much; 0: every gradient alone; None: those of `cost_model.buckets`.
      in_flight: buckets under way at the same time, at most.
      element_bytes: of a gradient's number on its way: 4, or 2 for bfloat16.
      straggling: standard deviation of a server's work, as a share of it. All wait for
        the slowest.
      compute_on_host: the devices are the host's processors, which also do the copying.
    """

    servers: int
    network: Network
    algorithm: str = "auto"
    bucket_bytes: int | None = None
    in_flight: int = 4
    element_bytes: int = 4
    straggling: float = 0.0
    compute_on_host: bool = False


class Bucket(NamedTuple):
    """One bucket's way; times in seconds from the start of the step."""

    bytes: int
    algorithm: str
    ready: float
    sent: float
    reduced: float


class Step(NamedTuple):
    """What a simulated step took, in seconds.

    Attributes:
      seconds: all of it.
      slowest: by how much the slowest server's work is longer than the usual.
      exposed: by how much longer the step is than the slowest server's work:
        communication that nothing hid, or that took processors from backward.
      buckets: in order.
    """

    seconds: float
    slowest: float
    exposed: float
    buckets: list[Bucket]


class _Flow:
    """Something that runs: phases of (seconds at full speed, shares of resources)."""

    def __init__(self, phases: list[tuple[float, dict[int, float]]]):
        self._phases = [phase for phase in phases if phase[0] > 0.0]
        self.left = self._phases[0][0] if self._phases else 0.0

    @property
    def shares(self) -> dict[int, float]:
        return self._phases[0][1] if self._phases else {}

    @property
    def done(self) -> bool:
        return not self._phases

    def advance(self, seconds: float) -> None:
        self.left -= seconds
        if self._phases and self.left <= _TINY:
            self._phases.pop(0)
            self.left = self._phases[0][0] if self._phases else 0.0


def _speeds(shares: list[dict[int, float]]) -> list[float]:
    """Max-min fair speeds, 1 at most (Bertsekas and Gallager, "Data Networks", §6.5.2).

    All speeds rise together until something is used up; whoever uses it stays there.
    """
    speeds = [1.0] * len(shares)
    rising = set(range(len(shares)))
    while rising:
        levels = {1.0: set()}
        for what in (_LINK, _INSIDE, _PROCESSORS):
            users = {i for i in rising if shares[i].get(what)}
            if users:
                used = sum(
                    speeds[i] * share.get(what, 0.0)
                    for i, share in enumerate(shares)
                    if i not in rising
                )
                level = (1.0 - used) / sum(shares[i][what] for i in users)
                levels[level] = users
        level = min(levels)
        if level >= 1.0:
            break
        for i in levels[level]:
            speeds[i] = level
        rising -= levels[level]
    return speeds


def slowest_of(servers: int) -> float:
    """By how many standard deviations the slowest of some servers is behind the mean.

    The expected largest of normally distributed values (Blom 1958): 0 of 1, 2.07 of 32.
    """
    return statistics.NormalDist().inv_cdf((servers - 0.375) / (servers + 0.25))


def simulate(work: Work, cluster: Cluster) -> Step:
    """Simulates one step."""
    sizes = [g.elements * cluster.element_bytes for g in work.gradients]
    stretch = 1.0 + cluster.straggling * slowest_of(cluster.servers)
    slowed = dataclasses.replace(
        work,
        forward=work.forward * stretch,
        backward=work.backward * stretch,
        rest=work.rest * stretch,
    )
    ready = [slowed.forward + slowed.backward * g.ready for g in work.gradients]
    groups = bucket_positions(sizes, ready, cluster)
    totals = [sum(sizes[position] for position in group) for group in groups]
    last = [ready[group[-1]] for group in groups]

    end = slowed.forward + slowed.backward
    on_host = {_PROCESSORS: 1.0} if cluster.compute_on_host else {}
    compute = _Flow([(end, on_host)])
    flying: dict[int, _Flow] = {}
    made, sent, reduced = {}, {}, {}
    now = 0.0
    while not compute.done or len(reduced) < len(groups):
        # Let go what is ready.
        while len(made) < len(groups) and end - compute.left >= last[len(made)] - _TINY:
            made[len(made)] = now
        while len(sent) < len(made) and len(flying) < cluster.in_flight:
            flying[len(sent)] = _Flow(_phases(totals[len(sent)], cluster))
            sent[len(sent)] = now
        # On to whatever happens next.
        running = [flow for flow in (compute, *flying.values()) if not flow.done]
        speeds = _speeds([flow.shares for flow in running])
        times = [flow.left / speed for flow, speed in zip(running, speeds)]
        if len(made) < len(groups):
            times.append((last[len(made)] - (end - compute.left)) / speeds[0])
        step = min(times, default=0.0)
        now += step
        for flow, speed in zip(running, speeds):
            flow.advance(step * speed)
        for number in [n for n, flow in flying.items() if flow.done]:
            reduced[number] = now
            del flying[number]
    return Step(
        seconds=now + slowed.rest,
        slowest=(stretch - 1.0) * (work.forward + work.backward + work.rest),
        exposed=now - end,
        buckets=[
            Bucket(total, algorithm_for(total, cluster), made[n], sent[n], reduced[n])
            for n, total in enumerate(totals)
        ],
    )


def algorithm_for(size: int, cluster: Cluster) -> str:
    """What goes between the servers for a bucket of `size` bytes."""
    if cluster.servers == 1:
        return "none"
    if cluster.algorithm != "auto":
        return cluster.algorithm
    return cost_model.best(size, cluster.servers, _between(cluster.network))


def bucket_positions(
    sizes: Sequence[int], ready: Sequence[float], cluster: Cluster
) -> list[list[int]]:
    """The buckets, as positions in `sizes`."""
    if cluster.bucket_bytes is None:

        def seconds(size):
            same = dataclasses.replace(cluster, algorithm=algorithm_for(size, cluster))
            phases = _phases(size, same)
            busy = [
                sum(alone * shares.get(what, 0.0) for alone, shares in phases)
                for what in (_LINK, _INSIDE, _PROCESSORS)
            ]
            alone, idle = (
                sum(alone for alone, _ in each) for each in (phases, _phases(0, same))
            )
            return cost_model.Duration(alone, max(busy), idle)

        return cost_model.buckets(sizes, ready, seconds, cluster.in_flight)
    return reduction_plan.fill(sizes, cluster.bucket_bytes)


def _phases(size: int, cluster: Cluster) -> list[tuple[float, dict[int, float]]]:
    """The three phases of a bucket."""
    network = cluster.network
    within = Cost()
    if network.members > 1:
        within = Cost(network.message_seconds, copying=size / network.inside_bandwidth)
    between = Cost()
    if cluster.servers > 1:
        reduce = cost_model.ALGORITHMS[algorithm_for(size, cluster)]
        between = reduce(size, cluster.servers, _between(network))
    outer = (within.seconds, _shares(within, {_INSIDE: within.copying}))
    shared = {_LINK: between.link, _PROCESSORS: between.copying}
    if not cluster.compute_on_host:
        del shared[_PROCESSORS]
    return [outer, (between.seconds, _shares(between, shared)), outer]


def _shares(cost: Cost, busy: dict[int, float]) -> dict[int, float]:
    return {what: s / cost.seconds for what, s in busy.items() if cost.seconds}


def _between(network: Network) -> Network:
    return dataclasses.replace(network, members=1, inside_bandwidth=math.inf)
