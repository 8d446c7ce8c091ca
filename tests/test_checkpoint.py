"""Complete or absent."""

import hashlib
import json
import os

import keras
import numpy as np
import pytest

from tf_goyal import checkpoint

VARIABLES = {
    "model/b": np.float32([[1.0, 2.0], [3.0, 4.0]]),
    "model/a": np.float32([0.5]),
    "optimizer/iteration": np.int64(7),
}


def save(folder, step, keep=3, variables=VARIABLES):
    return checkpoint.save(str(folder), step, variables, {"epoch": 1.5}, keep=keep)


def test_what_was_saved_comes_back(tmp_path):
    arrays, manifest = checkpoint.load(save(tmp_path, 7))
    assert manifest["step"] == 7
    assert manifest["metadata"] == {"epoch": 1.5}
    assert sorted(arrays) == sorted(VARIABLES)
    for name, array in VARIABLES.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


def test_the_hash_is_over_little_endian_bytes_sorted_by_name():
    expected = hashlib.sha256(
        np.array([0.5, 1, 2, 3, 4], "<f4").tobytes() + np.array(7, "<i8").tobytes()
    ).hexdigest()
    assert checkpoint.weights_sha256(VARIABLES) == expected
    big_endian = {
        name: a.astype(a.dtype.newbyteorder()) for name, a in VARIABLES.items()
    }
    assert checkpoint.weights_sha256(big_endian) == expected


@pytest.mark.parametrize(("keep", "left"), [(1, [3]), (2, [2, 3]), (5, [1, 2, 3])])
def test_the_newest_are_kept(tmp_path, keep, left):
    for step in (1, 2, 3):
        save(tmp_path, step, keep)
    assert checkpoint.steps(str(tmp_path)) == left


def test_newer_broken_ones_do_not_push_good_ones_out(tmp_path):
    """F3: after step 9 broke, the run goes on from 1 and keeps what it writes."""
    save(tmp_path, 1)
    (save(tmp_path, 9) / "manifest.json").write_text("{}")
    save(tmp_path, 2, keep=1)
    assert checkpoint.steps(str(tmp_path)) == [2, 9]
    assert checkpoint.load_latest(str(tmp_path))[1]["step"] == 2


@pytest.mark.parametrize("name", ["step-007", "step-x", "step-"])
def test_other_folders_are_no_checkpoints(tmp_path, name):
    (checkpoint.folder(str(tmp_path)) / name).mkdir(parents=True)
    (checkpoint.folder(str(tmp_path)) / "step-8").write_text("a file")
    assert checkpoint.steps(str(tmp_path)) == []


@pytest.mark.parametrize("text", ["{}", "[1]", "null", "12"])
def test_a_manifest_that_says_nothing_is_a_broken_checkpoint(tmp_path, text):
    save(tmp_path, 1)
    (save(tmp_path, 2) / "manifest.json").write_text(text)
    assert checkpoint.load_latest(str(tmp_path))[1]["step"] == 1


def test_steps_sort_as_numbers(tmp_path):
    for step in (9, 10, 100):
        save(tmp_path, step)
    assert checkpoint.steps(str(tmp_path)) == [9, 10, 100]


def test_a_step_that_ran_again_replaces_its_checkpoint(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 1, variables={"model/a": np.float32([9.0])})
    assert checkpoint.load_latest(str(tmp_path))[0]["model/a"] == 9.0


def test_the_disk_fills_up_while_writing(tmp_path, monkeypatch):
    """F6: the checkpoint that was there stays, nothing half-written does."""
    save(tmp_path, 1)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert os.listdir(checkpoint.folder(str(tmp_path))) == ["step-1"]
    assert checkpoint.load_latest(str(tmp_path))[1]["step"] == 1


def test_what_a_killed_save_left_is_no_checkpoint_and_goes(tmp_path):
    """F3: kill -9 during a save."""
    save(tmp_path, 1)
    abandoned = checkpoint.folder(str(tmp_path)) / ".step-2-abcd"
    abandoned.mkdir()
    (abandoned / "variables.npz").write_bytes(b"half")
    assert checkpoint.load_latest(str(tmp_path))[1]["step"] == 1
    save(tmp_path, 3)
    assert not abandoned.exists()


@pytest.mark.parametrize("file", ["variables.npz", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_a_broken_one_is_named_and_the_older_used(tmp_path, capsys, file, damage):
    """F3: a checkpoint file cut in half."""
    save(tmp_path, 1)
    path = save(tmp_path, 2) / file
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "gone":
        path.unlink()
    else:
        content[
            content.index(b'"sha256": "') + 11 if file != "variables.npz" else 200
        ] ^= 1
        path.write_bytes(content)
    assert checkpoint.load_latest(str(tmp_path))[1]["step"] == 1
    assert "step-2" in capsys.readouterr().err


def test_all_broken_is_an_error_and_not_a_new_start(tmp_path):
    (save(tmp_path, 1) / "manifest.json").unlink()
    with pytest.raises(ValueError, match="remove the folder"):
        checkpoint.load_latest(str(tmp_path))


def test_none_is_none(tmp_path):
    assert checkpoint.load_latest(str(tmp_path)) is None
    assert checkpoint.steps(str(tmp_path / "not there")) == []


def test_a_manifest_is_readable_by_people(tmp_path):
    manifest = json.loads((save(tmp_path, 1) / "manifest.json").read_text())
    assert manifest["variables"]["model/b"] == {"shape": [2, 2], "dtype": "float32"}


def model():
    dense = keras.layers.Dense(2, name="head", kernel_initializer="ones")
    return keras.Sequential([keras.Input([3]), dense], name="small")


def test_variables_go_out_and_in_by_name():
    source, target = model(), model()
    source.set_weights([np.full([3, 2], 4.0), np.full([2], 5.0)])
    arrays = checkpoint.arrays_of("model", source.variables)
    assert sorted(arrays) == ["model/small/head/bias", "model/small/head/kernel"]
    checkpoint.assign("model", target.variables, arrays)
    np.testing.assert_array_equal(target.get_weights()[0], np.full([3, 2], 4.0))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda arrays: arrays.pop("model/small/head/kernel"), "head/kernel"),
        (
            lambda arrays: arrays.update({"model/small/head/bias": np.zeros(3)}),
            r"\(3,\) for variable model/small/head/bias, which has shape \(2,\)",
        ),
    ],
)
def test_a_missing_or_misshapen_variable_is_named(change, named):
    target = model()
    arrays = checkpoint.arrays_of("model", target.variables)
    arrays["model/small/head/bias"] = np.full([2], 7.0)
    change(arrays)
    with pytest.raises(ValueError, match=named):
        checkpoint.assign("model", target.variables, arrays)
    assert target.get_weights()[1].tolist() == [0, 0]  # nothing was assigned
