"""A checkpoint of a run, as evaluation and export find it."""

import json
import re
import shutil

import pytest

from tf_goyal import datasets, trained


def test_load_takes_the_newest_complete_checkpoint(trained_run, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained_run / "checkpoints", run / "checkpoints")
    variables = run / "checkpoints" / "step-14" / "variables.npz"
    variables.write_bytes(variables.read_bytes()[:-1])

    found = trained.load(str(run))
    assert found.step == 12
    assert found.settings.model_dir == str(run)
    assert found.settings.model == "resnet20"
    assert found.labels == [str(digit) for digit in range(10)]
    assert found.epoch == 12 * 128 / 1500
    assert "step-14" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"step-14.*is broken"):
        trained.load(str(run), 14)


@pytest.mark.parametrize("lost", ["metadata", "flags", "derived", "labels"])
def test_a_manifest_without_the_run_is_passed_over(trained_run, tmp_path, capsys, lost):
    """One of a form that has no checksum of its own, or of another program."""
    run = tmp_path / "run"
    shutil.copytree(trained_run / "checkpoints", run / "checkpoints")
    path = run / "checkpoints" / "step-14" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("manifest_sha256", None)
    for part in (manifest, manifest["metadata"], manifest["metadata"]["derived"]):
        if lost in part:
            del part[lost]
            break
    path.write_text(json.dumps(manifest))
    assert trained.load(str(run)).step == 12
    # checkpoint.py itself asks for "metadata".
    why = "is broken: manifest.json" if lost == "metadata" else "has a damaged manifest"
    why = f"step-14 {why}: KeyError('{lost}')"
    assert why in capsys.readouterr().err
    with pytest.raises(ValueError, match=re.escape(why)):
        trained.load(str(run), 14)


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("derived", "labels"), [0, 1], "expected str instance, int found"),
        (("derived", "labels"), 3, "can only join an iterable"),
        (("derived", "train_images"), 0, "division by zero"),
        (("flags", "image_size"), "16", "image_size"),
        (("flags", "no_such_flag"), 1, "no_such_flag"),
    ],
)
def test_a_manifest_of_odd_values_is_named(trained_run, tmp_path, place, value, says):
    run = tmp_path / "run"
    shutil.copytree(trained_run / "checkpoints", run / "checkpoints")
    path = run / "checkpoints" / "step-14" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("manifest_sha256", None)
    manifest["metadata"][place[0]][place[1]] = value
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="step-14 has a damaged manifest") as refused:
        trained.load(str(run), 14)
    assert says in str(refused.value)
    assert trained.load(str(run)).step == 12


def test_data_of_other_classes_is_refused(trained_run):
    found = trained.load(str(trained_run))
    data = datasets.load("digits")
    trained.check_labels(found, data)
    fewer = datasets.Dataset("digits", data.train, data.validation, data.labels[:9])
    with pytest.raises(ValueError, match=r"10 \(0, 1, 2 \.\.\.\).*with 9 .*--data_dir"):
        trained.check_labels(found, fewer)
