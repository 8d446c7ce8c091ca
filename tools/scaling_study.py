"""Simulated steps of many clusters: more servers, other links, other settings."""

import dataclasses
import itertools
from typing import Any

import step_simulation
from step_simulation import Cluster, Work

MB = 2**20
# What `settings` tries.
_BUCKET_MB = (0, 2, 8, 32, None)
_IN_FLIGHT = (1, 4)


def scale(work: Work, cluster: Cluster, worker_batch: int) -> list[dict[str, Any]]:
    """1, 2, 4 ... servers, up to those of `cluster`, and as many as it has."""
    counts = [2**i for i in range(cluster.servers.bit_length())]
    rows = []
    for servers in sorted({*counts, cluster.servers}):
        step = step_simulation.simulate(
            work, dataclasses.replace(cluster, servers=servers)
        )
        devices = servers * cluster.network.members
        # §5.5: throughput per server against that of a single one.
        alone = rows[0]["step_seconds"] if rows else step.seconds
        rows.append(
            {
                "devices": devices,
                "servers": servers,
                "step_seconds": step.seconds,
                "slowest_seconds": step.slowest,
                "exposed_seconds": step.exposed,
                "efficiency": alone / step.seconds,
                "images_per_second": devices * worker_batch / step.seconds,
                "buckets": len(step.buckets),
                "last_bucket_bytes": step.buckets[-1].bytes,
                "algorithms": sorted({bucket.algorithm for bucket in step.buckets}),
            }
        )
    return rows


def settings(work: Work, cluster: Cluster) -> list[dict[str, Any]]:
    """Other settings on the same cluster, the quickest step first.

    Of steps within 0.2 % of the quickest the plainer setting comes first: float32,
    fewer buckets under way, fewer buckets.
    """
    found = []
    for algorithm, mb, in_flight, element_bytes in itertools.product(
        ("ring", "halving_doubling", "auto"), _BUCKET_MB, _IN_FLIGHT, (4, 2)
    ):
        tried = dataclasses.replace(
            cluster,
            algorithm=algorithm,
            bucket_bytes=None if mb is None else mb * MB,
            in_flight=in_flight,
            element_bytes=element_bytes,
        )
        step = step_simulation.simulate(work, tried)
        found.append(
            {
                "allreduce": algorithm,
                "bucket_mb": "auto" if mb is None else mb,
                "in_flight": in_flight,
                "bytes_per_gradient": element_bytes,
                "step_seconds": step.seconds,
                "exposed_seconds": step.exposed,
                "efficiency": _alone(work, tried).seconds / step.seconds,
                "buckets": len(step.buckets),
            }
        )
    near = 1.002 * min(s["step_seconds"] for s in found)
    return sorted(
        found,
        key=lambda s: (
            max(near, s["step_seconds"]),
            -s["bytes_per_gradient"],
            s["in_flight"],
            s["buckets"],
        ),
    )


def curves(work: Work, cluster: Cluster) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What the plot shows: efficiency by link, exposed communication by setting."""
    network = cluster.network
    links = {}
    for factor in (0.1, 0.2, 0.3, 1.0):
        speed = dataclasses.replace(network, bandwidth=factor * network.bandwidth)
        name = f"{8e-9 * speed.bandwidth:g} Gbit/s"
        links[name] = scale(work, dataclasses.replace(cluster, network=speed), 1)
    looks = {
        "ring, each gradient alone": ("ring", 0, 4),
        "ring, 8 MB buckets": ("ring", 8 * MB, 4),
        "halving-doubling, each alone": ("halving_doubling", 0, 4),
        "halving-doubling, 8 MB buckets": ("halving_doubling", 8 * MB, 4),
        "auto": ("auto", None, 4),
        "auto, bfloat16": ("auto", None, 2),
    }
    by_setting = {}
    for name, (algorithm, bucket_bytes, element_bytes) in looks.items():
        tried = dataclasses.replace(
            cluster,
            algorithm=algorithm,
            bucket_bytes=bucket_bytes,
            element_bytes=element_bytes,
        )
        by_setting[name] = scale(work, tried, 1)
    return {"links": links, "settings": by_setting}


def _alone(work: Work, cluster: Cluster) -> step_simulation.Step:
    """A step of one of its servers."""
    return step_simulation.simulate(work, dataclasses.replace(cluster, servers=1))
