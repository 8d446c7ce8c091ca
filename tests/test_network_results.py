"""Results of several networks in one file."""

import json

import pytest
import tool_runs

network_results = tool_runs.load("network_results")


def entry(network="a", processes=2, elements=8, seconds=1.0, algorithm="ring"):
    sizes = [{"elements": elements, "seconds": {algorithm: seconds}}]
    return {"network": network, "processes": processes, "sizes": sizes}


def test_a_network_and_its_processes_are_replaced_by_a_new_run():
    old = [entry("a", 2, 1), entry("b", 2, 2)]
    new = entry("a", 2, 3)
    assert network_results.merge(old, new) == [new, old[1]]
    assert network_results.merge(old, entry("a", 4, 3))[1] == entry("a", 4, 3)


def test_files_of_both_benchmarks_are_read():
    for name in ("bench_allreduce", "bench_overlap"):
        path = tool_runs.TOOLS / "results" / f"{name}.json"
        runs = json.loads(path.read_text())["runs"]
        assert network_results.load(path) == runs
        assert runs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("{}", "got one without a list of runs"),
        ("[]", "got one without a list of runs"),
        ('{"runs": {}}', "got one without a list of runs"),
        ('{"runs": [1]}', "got no object in run 0"),
        ('{"runs": [{"processes": 2}]}', "got no network in run 0"),
        ([entry(), entry(processes="2")], "got no number of processes in run 1"),
        ([{**entry(), "sizes": 3}], "got no list of sizes"),
        ([entry(elements=0)], "got a size without elements"),
        ([entry(seconds=0.0)], "got 0.0 seconds of ring, which must be more than 0"),
        ([entry(seconds=float("nan"))], "got nan seconds of ring"),
        ([entry(seconds="1")], "got '1' seconds of ring"),
        ([entry(algorithm="tree")], "got an algorithm 'tree', which is none of ring, "),
        ([{**entry(), "seconds": {"compute": 1.0}}], "got no over_larger in run 0"),
    ],
)
def test_what_is_no_such_file_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "old.json"
    path.write_text(text if isinstance(text, str) else json.dumps({"runs": text}))
    with pytest.raises(ValueError, match="old.json must be a JSON file of") as refused:
        network_results.load(path)
    assert message in str(refused.value)


def test_a_folder_is_refused_and_no_file_is_no_entry(monkeypatch, tmp_path):
    monkeypatch.setattr(network_results.machine, "RESULTS", tmp_path)
    assert network_results.kept("old") == []
    (tmp_path / "old.json").mkdir()
    with pytest.raises(ValueError, match="Is a directory"):
        network_results.kept("old")


@pytest.mark.parametrize("sizes", [{}, {"sizes": []}])
def test_what_holds_no_measurement_is_neither_kept_nor_drawn(
    monkeypatch, tmp_path, sizes
):
    monkeypatch.setattr(network_results.machine, "RESULTS", tmp_path)
    empty = {"network": "b", "processes": 2, **sizes}
    path = tmp_path / "old.json"
    text = json.dumps({"runs": [empty]})
    path.write_text(text)
    drawn = []
    with pytest.raises(ValueError, match="a result must hold sizes or seconds"):
        network_results.keep("old", {**empty, "network": "c"}, None)
    assert path.read_text() == text
    network_results.keep("old", entry(), lambda entries, _: drawn.extend(entries))
    assert [e["network"] for e in drawn] == ["a"]
    assert [e["network"] for e in json.loads(path.read_text())["runs"]] == ["a", "b"]
