"""The plot of tools/scaling.py."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import paper_cluster
from step_simulation import Cluster


def draw(shown: dict[str, Any], cluster: Cluster, output: Path) -> None:
    """Writes the PNG of `curves`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(11, 4.4), layout="constrained"
    )

    def plot(axis, curves, value, scale):
        # Curves may hide each other: the first are wide, the last ones thin.
        for i, (name, rows) in enumerate(curves.items()):
            axis.plot(
                [row["devices"] for row in rows],
                [scale * row[value] for row in rows],
                marker="osv^D*"[i],
                markersize=4,
                linewidth=1 + 0.8 * (len(curves) - 1 - i),
                alpha=0.8,
                label=name,
            )

    plot(left, shown["links"], "efficiency", 100)
    same = zip(
        dataclasses.astuple(cluster.network), dataclasses.astuple(paper_cluster.NETWORK)
    )
    if all(math.isclose(ours, papers) for ours, papers in same):
        at = [8 * servers for servers in paper_cluster.MEASURED]
        left.plot(
            at,
            [100 * e for e in paper_cluster.MEASURED.values()],
            "k*",
            ms=10,
            zorder=9,
            label="the paper",
        )
    spread = f"a server's work varies by {100 * cluster.straggling:g} %"
    left.set_title(f"Efficiency against one server; {spread}", fontsize=10)
    left.set_ylabel("efficiency (%)")
    left.set_ylim(0, 102)
    plot(right, shown["settings"], "exposed_seconds", 1e3)
    link = 8e-9 * cluster.network.bandwidth
    right.set_title(
        f"Communication that nothing hides, {link:g} Gbit/s, "
        f"{1e6 * cluster.network.latency:g} µs",
        fontsize=10,
    )
    right.set_ylabel("ms per step")
    right.set_yscale("log")
    right.yaxis.set_major_formatter("{x:g}")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.tick_params("x", labelrotation=30)
        axis.set_xlabel(f"devices, {cluster.network.members} per server")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(output, dpi=120)
    pyplot.close(figure)
