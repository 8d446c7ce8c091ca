"""The all-reduce benchmark: a tiny run of it, and what it makes of its flags."""

import json

import pytest
from tool_runs import load, run


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The tool, which writes its result to `tmp_path`."""
    monkeypatch.setattr(load("machine"), "RESULTS", tmp_path)
    return load("bench_allreduce")


def test_a_tiny_run_is_kept_beside_an_older_one(bench, monkeypatch, tmp_path):
    older = {"network": "a", "processes": 2, "sizes": []}
    older["sizes"] = [{"elements": 8, "seconds": {"ring": 1.0}}]
    path = tmp_path / "bench_allreduce.json"
    path.write_text(json.dumps({"runs": [older]}))
    written = ["--processes=2", "--sizes=8,256", "--rounds=1", "--deadline=600"]
    written += ["--prefix=env NUMBER={number}", "--algorithms=ring,halving_doubling"]
    assert run(bench, monkeypatch, *written) == 0
    first, second = json.loads(path.read_text())["runs"]
    assert first == older
    assert (second["network"], second["processes"]) == ("loopback", 2)
    assert [size["elements"] for size in second["sizes"]] == [8, 256]
    for size in second["sizes"]:
        assert list(size["seconds"]) == ["ring", "halving_doubling"]
        assert min(size["seconds"].values()) > 0
    assert [m["bytes"] for m in second["messages"]] == [4, 4096, 2**18, 2**22]
    assert set(second["seconds_per_byte"]) == {"add", "copy"}
    assert (tmp_path / "bench_allreduce.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (["--addresses=a:1"], "--addresses must name 2 addresses"),
        (["--addresses=a:1,b:2", "--processes=2,4"], "must name 4 addresses"),
        (["--addresses={number}:{port}"], "--addresses may hold {number} in braces"),
        (["--addresses=a:{number"], "--addresses may hold {number} in braces"),
        (["--addresses=a,b"], "--addresses: the address of rank 0 must end in a port"),
        (["--prefix=echo {foo}"], "--prefix may hold {host} and {number} in braces"),
        (["--prefix=echo 'x"], "--prefix must be a command as a shell takes it"),
        (["--prefix=/nonexistent"], "--prefix must be a command that can be started"),
        (["--algorithms=ring,tree"], "--algorithms must be of ring, "),
        (["--algorithms="], "--algorithms must be of ring, "),
        (["--processes=1"], "--processes must be whole numbers from 2 on"),
        (["--processes=0"], "--processes must be whole numbers from 2 on"),
        (["--processes=2,-2"], "--processes must be whole numbers from 2 on"),
        (["--processes="], "from 2 on, separated by commas, got none"),
        (["--processes=2,x"], "from 2 on, separated by commas, got 2,x"),
        (["--sizes="], "--sizes must be whole numbers from 1 on"),
        (["--sizes=8,0"], "--sizes must be whole numbers from 1 on"),
        (["--sizes=1e6"], "--sizes must be whole numbers from 1 on"),
    ],
)
def test_refused(bench, monkeypatch, capsys, written, message):
    assert run(bench, monkeypatch, "--processes=2", *written) == 2
    told = capsys.readouterr().err
    assert message in told and "--deadline" not in told  # nobody waited for it
    assert told.count("\n") == 1


def test_a_broken_older_file_is_refused_before_the_ranks_start(
    bench, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(bench.rank_processes, "run", None)
    path = tmp_path / "bench_allreduce.json"
    path.write_text('{"runs": [')
    assert run(bench, monkeypatch) == 2
    assert (
        f"{path} must be a JSON file of bench_allreduce.py" in capsys.readouterr().err
    )
    assert path.read_text() == '{"runs": ['


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 1)), (4, (1, 4)), (7, (2, 4))])
def test_panels_stand_one_after_another(bench, monkeypatch, tmp_path, count, shape):
    """Each entry of other networks and counts has one, but for one without sizes."""
    from matplotlib import pyplot

    drawn = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    sizes = [{"elements": 256, "seconds": {"ring": 1.0}}]
    sizes += [{"elements": 2**20, "seconds": {"ring": 2.0, "doubling": 3.0}}]
    entries = [
        {"network": f"net {n}", "processes": 2 + n, "sizes": sizes}
        for n in range(count)
    ]
    output = tmp_path / "x.png"
    bench.draw([{"network": "none", "processes": 2, "sizes": []}, *entries], output)
    monkeypatch.undo()
    (figure,) = drawn
    assert figure.axes[0].get_gridspec().get_geometry() == shape
    shown = [axis.get_title() for axis in figure.axes if axis.axison]
    assert shown == [f"net {n}, {2 + n} processes" for n in range(count)]
    assert all(axis.axison for axis in figure.axes[:count])
    lines = figure.axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines] == [[1e3, 2e3], [3e3]]
    pyplot.close(figure)


def test_the_table_by_hand(bench):
    sizes = [
        {"elements": 256, "seconds": {"ring": 0.0104, "doubling": 0.004}},
        {"elements": 2**20, "seconds": {"ring": 0.05, "doubling": 0.061234}},
    ]
    sizes[0]["auto"], sizes[1]["auto"] = "doubling", "ring"
    assert bench.table({"sizes": sizes}).splitlines() == [
        "|  | 1 KiB | 4 MiB |",
        "| --- | --- | --- |",
        "| `ring` | 10.4 | **50** |",
        "| `doubling` | **4** | 61.2 |",
        "| `auto` takes | `doubling` | `ring` |",
    ]
