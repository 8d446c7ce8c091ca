"""The README's tables are those of tools/results/."""

import json

import pytest
import tool_runs

README = tool_runs.TOOLS.parent / "README.md"


def result(name):
    return json.loads((tool_runs.TOOLS / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize("network", ["1 ms, 1 Gbit/s", "loopback"])
def test_the_table_of_algorithms(network):
    """Of 8 processes, as tools/bench_allreduce.py prints it."""
    (entry,) = [
        entry
        for entry in result("bench_allreduce")["runs"]
        if (entry["network"], entry["processes"]) == (network, 8)
    ]
    assert tool_runs.load("bench_allreduce").table(entry) in README.read_text("utf-8")


def test_the_table_of_faults():
    """As tools/chaos.py prints it; and that nothing is wrong in it."""
    found = result("chaos")
    assert "\n".join(found["table"]) in README.read_text("utf-8")
    assert found["faults"] == found["same_hash"] == len(found["trainings"]) == 100
