"""The picture of a step: a tiny recording, and what is read from one."""

import json

import pytest
from tool_runs import TOOLS, load, run


@pytest.fixture
def plot(monkeypatch, tmp_path):
    """The tool, which writes its result to `tmp_path`."""
    monkeypatch.setattr(load("machine"), "RESULTS", tmp_path)
    return load("plot_step")


def test_a_tiny_recording(plot, monkeypatch, tmp_path):
    """Two processes; each bucket goes through its phases in their order."""
    written = ["--model=resnet20", "--image_size=16", "--batch=1", "--steps=3"]
    written += ["--allreduce=halving_doubling", "--bucket_mb=0.25", "--deadline=600"]
    assert run(plot, monkeypatch, *written) == 0
    recording = json.loads((tmp_path / "step.json").read_text())
    assert len(recording["ranks"]) == 2
    for step in recording["ranks"]:
        assert len(step["buckets"]) > 2
        for bucket in step["buckets"]:
            times = plot.phases(bucket)
            assert list(times.values()) == sorted(times.values())
            assert 0 < times["first"] and times["applied"] < step["end"]
        tensors = [tensor for b in step["buckets"] for tensor in b["tensors"]]
        gradients = [tensor for tensor in tensors if tensor["applied"] is not None]
        assert gradients[-1]["name"].endswith("kernel")
        assert len({t["name"] for t in tensors}) == len(tensors) > len(gradients) > 50
    assert (tmp_path / "step.png").stat().st_size > 20_000
    again = tmp_path / "again.png"
    path = tmp_path / "step.json"
    assert run(plot, monkeypatch, f"--recording={path}", f"--output={again}") == 0
    assert again.read_bytes() == (tmp_path / "step.png").read_bytes()


def test_phases_and_what_is_exposed(plot):
    """By hand: backward ends at 3 s, the reduction at 5 s."""
    statistics = {"name": "bn/moving_mean", "ready": 1.0, "applied": None}
    late = {"name": "head/kernel", "ready": 2.0, "applied": 4.5}
    last = {"name": "stem_conv/kernel", "ready": 3.0, "applied": 6.0}
    first = {"sent": 1.5, "reduced": 2.5, "tensors": [statistics]}
    second = {"sent": 3.5, "reduced": 5.0, "tensors": [late, last]}
    assert list(plot.phases(first).values()) == [1.0, 1.0, 1.5, 2.5, 2.5]
    assert list(plot.phases(second).values()) == [2.0, 3.0, 3.5, 5.0, 6.0]
    assert plot.exposed({"buckets": [first, second]}) == (3.0, 5.0)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("--processes=1", "--processes must be at least 2, got 1"),
        ("--recording=nowhere.json", "--recording must be a JSON file of this tool"),
        ("--recording=/", "--recording must be a JSON file of this tool, got /: "),
        ("--output=x.json", "--output must be a file that ends in .png, in a folder"),
        ("--output=nowhere/x.png", "--output must be a file that ends in .png, in a"),
    ],
)
def test_refused(plot, monkeypatch, capsys, written, message):
    assert run(plot, monkeypatch, written) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{}", "it['ranks']"),
        ("[]", "it"),
        ('{"runs": []}', "it['ranks']"),
        ('{"ranks": [{"end": 1.0, "buckets": []}]}', "it['ranks'][0]['buckets']"),
    ],
)
def test_what_is_no_recording_is_refused(
    plot, monkeypatch, capsys, tmp_path, text, place
):
    path = tmp_path / "other.json"
    path.write_text(text)
    assert run(plot, monkeypatch, f"--recording={path}") == 2
    told = capsys.readouterr().err
    assert f"of this tool, got {path}, where {place} is missing" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("output", [[], ["step.png"], ["linked.png"], ["again"]])
def test_a_recording_is_not_overwritten(plot, monkeypatch, capsys, tmp_path, output):
    """Also not by default, through a link, or where Matplotlib appends .png."""
    path = tmp_path / "step.png"
    text = (TOOLS / "results" / "step.json").read_bytes()
    path.write_bytes(text)
    (tmp_path / "linked.png").hardlink_to(path)
    written = [f"--output={tmp_path / name}" for name in output]
    assert run(plot, monkeypatch, f"--recording={path}", *written) == 2
    assert "--output must " in capsys.readouterr().err
    assert path.read_bytes() == text


def test_a_recording_takes_no_output_over_it(plot, monkeypatch, capsys, tmp_path):
    """Refused before the ranks start."""
    monkeypatch.setattr(plot, "record", None)
    assert run(plot, monkeypatch, f"--output={tmp_path / 'step.json'}") == 2
    assert "--output must not be the recording itself" in capsys.readouterr().err


def test_the_kept_recording_is_one(plot):
    """tools/results/step.json."""
    path = TOOLS / "results" / "step.json"
    assert plot.read(path) == json.loads(path.read_text())
