"""Results of several networks in one file."""

import tool_runs

network_results = tool_runs.load("network_results")


def test_a_network_and_its_processes_are_replaced_by_a_new_run():
    def entry(network, processes, sizes):
        return {"network": network, "processes": processes, "sizes": sizes}

    old = [entry("a", 2, 1), entry("b", 2, 2)]
    assert network_results.merge(old, entry("a", 2, 3)) == [entry("a", 2, 3), old[1]]
    assert network_results.merge(old, entry("a", 4, 3))[1] == entry("a", 4, 3)
