"""The two tables of Mask R-CNN: what is run, what is not run again, what they show."""

import json

import pytest
import tool_runs

tables = tool_runs.load("detection_tables")


def outcome(ap=1.0, diverged=False, rate=0.01, **settings):
    found = {f"{kind} {n}": ap for kind in ("box", "mask") for n in ("AP", "AP50")}
    return {
        "ap": None if diverged else found,
        "diverged": diverged,
        "schedule": {"rate": rate},
        "settings": settings,
    }


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """Commands leave what the real ones do: a list of them."""
    commands = []

    def run(command, log):
        commands.append([str(part) for part in command])
        written = dict(
            part[2:].split("=", 1) for part in commands[-1] if part.startswith("--")
        )
        if "make_digits_coco" in str(command[1]):
            (tables.Path(written["out"]) / "annotations").mkdir(parents=True)
        elif "tf_goyal.export" in command:
            folder = tables.Path(written["model_dir"]) / "export" / "backbone"
            folder.mkdir(parents=True, exist_ok=True)
            about = {"evaluation": {"top1_error": 2.5}, "weights_sha256": "abc"}
            (folder / "metadata.json").write_text(json.dumps(about))
        elif "mask_rcnn" in str(command[1]):
            folder = tables.Path(written["model_dir"])
            folder.mkdir()
            images, linear = int(written["images_per_step"]), "linear"
            scale = images / 2 if written["lr_scaling"] == linear else 1
            settings = {
                **written,
                "images_per_step": images,
                "images_seen": int(written["images_seen"]),
                "image_size": 128,
                "base_lr": 0.01,
                "base_images": 2,
                "rois": 32,
                "detections": 20,
                "anchor_size": 4.0,
                "flip": False,
                "backbone_sha256": "abc",
            }
            diverged = scale == 4
            found = outcome(10.0 * images, diverged, 0.01 * scale, **settings)
            (folder / "metrics.json").write_text(json.dumps(found))

    monkeypatch.setattr(tables, "run", run)
    monkeypatch.setattr(tool_runs.load("machine"), "RESULTS", tmp_path / "results")
    return commands


def test_everything_is_run_once(faked, monkeypatch, tmp_path):
    """4 backbones, and a detector for each; 7 for b, since the base is shared."""
    flags = [f"--work={tmp_path / 'work'}", "--garden_python=/bin/sh"]
    assert tool_runs.run(tables, monkeypatch, *flags) == 0
    detectors = [c for c in faked if c[1].endswith("mask_rcnn.py")]
    assert len(detectors) == 4 + 7
    assert len([c for c in faked if "tf_goyal.train" in c]) == 5  # of b again, done
    result = json.loads((tmp_path / "results" / "detection.json").read_text())
    assert result["table_a"][2] == "| 64 | 2.50 | 40.0 | 40.0 |"
    assert result["table_b"][2:] == [
        "| 1 | 0.005 | 10.0 | 10.0 | 0.01 | 10.0 | 10.0 |",
        "| 2 | 0.01 | 20.0 | 20.0 | 0.01 | 20.0 | 20.0 |",
        "| 4 | 0.02 | 40.0 | 40.0 | 0.01 | 40.0 | 40.0 |",
        "| 8 | 0.04 | diverged | diverged | 0.01 | 80.0 | 80.0 |",
    ]
    assert str(tmp_path) not in json.dumps([result["a"], result["b"]])  # no paths
    assert (tmp_path / "results" / "detection.png").stat().st_size > 1000
    faked.clear()
    assert tool_runs.run(tables, monkeypatch, *flags) == 0
    assert not [c for c in faked if c[1].endswith(("mask_rcnn.py", "coco.py"))]


def test_other_settings_are_not_taken_for_these(faked, monkeypatch, tmp_path, capsys):
    flags = [f"--work={tmp_path / 'work'}", "--garden_python=/bin/sh"]
    assert tool_runs.run(tables, monkeypatch, *flags) == 0
    assert tool_runs.run(tables, monkeypatch, *flags, "--images_seen=3200") == 2
    assert "other settings of images_seen" in capsys.readouterr().err


def test_what_is_needed_is_named(monkeypatch, tmp_path, capsys):
    assert tool_runs.run(tables, monkeypatch) == 2
    assert "--work" in capsys.readouterr().err
    missing = [f"--work={tmp_path}", "--garden_python=/none"]
    assert tool_runs.run(tables, monkeypatch, *missing) == 2
    assert "tools/detection/setup" in capsys.readouterr().err


def test_a_command_that_fails_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="ended with 3:\\nout of order"):
        tables.run(
            ["sh", "-c", "echo out of order; exit 3"], tmp_path / "logs" / "a.log"
        )
