"""Complete or absent."""

import errno
import hashlib
import json
import os

import keras
import numpy as np
import pytest

from tf_goyal import arrays_file, checkpoint, files

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


@pytest.mark.parametrize("file", ["variables.npz", "manifest.json"])
def test_nor_do_broken_ones_between(tmp_path, file):
    """F3: step 2 was cut: the last two are 1 and 3, and the broken one stays."""
    save(tmp_path, 1)
    path = save(tmp_path, 2) / file
    path.write_bytes(path.read_bytes()[:-1])
    save(tmp_path, 3, keep=2)
    assert checkpoint.steps(tmp_path) == [1, 2, 3]
    save(tmp_path, 4, keep=2)
    assert checkpoint.steps(tmp_path) == [2, 3, 4]


def test_some_are_kept_for_good(tmp_path):
    """They do not count among the newest, and a restart decides the same."""
    for step in range(1, 8):
        checkpoint.save(
            tmp_path, step, VARIABLES, {}, keep=2, keeps=lambda step: step % 3 == 0
        )
    assert checkpoint.steps(tmp_path) == [3, 5, 6, 7]


def test_an_old_one_that_cannot_be_removed_is_told(tmp_path, monkeypatch, capsys):
    """The one that was written counts. So with what a killed save left."""
    save(tmp_path, 1)
    (checkpoint.folder(tmp_path) / ".step-2-abcd").mkdir()

    def busy(path):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(files, "remove_tree", busy)
    save(tmp_path, 2, keep=1)
    assert checkpoint.load_latest(tmp_path)[1]["step"] == 2
    error = capsys.readouterr().err
    assert "cannot remove the old checkpoint" in error
    assert ".step-2-abcd, left by a killed save: " in error


@pytest.mark.parametrize("name", ["step-007", "step-x", "step-"])
def test_other_folders_are_no_checkpoints(tmp_path, name):
    (checkpoint.folder(str(tmp_path)) / name).mkdir(parents=True)
    (checkpoint.folder(str(tmp_path)) / "step-8").write_text("a file")
    assert checkpoint.steps(str(tmp_path)) == []


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[1]", "null", "12", "[" * 100_000, "\xff"]
)
def test_f3_a_manifest_that_says_nothing_is_a_broken_checkpoint(tmp_path, text, capsys):
    """F3: whatever it holds, the older one is used and this one named and left."""
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    (path / "manifest.json").write_bytes(text.encode("latin-1"))
    assert checkpoint.load_latest(str(tmp_path))[1]["step"] == 1
    error = capsys.readouterr().err
    assert f"passed over: checkpoint {path} is broken: manifest.json" in error
    assert error.count("\n") == 1 and path.exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "of version 2, this program reads 1"),
        ({"manifest_sha256": "a"}, "its own SHA-256 is not 'a', as it says"),
        ({"manifest_sha256": 7}, "its own SHA-256 is not 7, as it says"),
        ({"version": None}, "of version None"),
        ({"step": 3}, "of step 3"),
        ({"step": True}, "its step is True"),
        ({"step": "2"}, "its step is '2'"),
        ({"metadata": []}, "its metadata is"),
        ({"variables": None}, "its variables is None"),
        ({"variables": {}}, "differ in"),
        ({"bytes": 5}, "should have 5"),
        ({"sha256": "../other"}, "should be ../other"),
    ],
)
def test_f3_a_manifest_that_says_otherwise(tmp_path, change, why):
    path = save(tmp_path, 2)
    told = json.loads((path / "manifest.json").read_text())
    del told["manifest_sha256"]  # older ones lack it
    (path / "manifest.json").write_text(json.dumps(told | change))
    with pytest.raises(ValueError, match=why):
        checkpoint.load(path)


def test_f3_a_byte_of_the_manifest_flipped_anywhere_changes_nothing_unseen(tmp_path):
    """F3: what is loaded is what was saved, the metadata too; the last of its bits."""
    path = save(tmp_path, 2)
    _, told = checkpoint.load(path)
    content, missed = (path / "manifest.json").read_bytes(), 0
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1
        (path / "manifest.json").write_bytes(flipped)
        try:
            _, found = checkpoint.load(path)
        except ValueError:
            continue
        missed += 1  # in the name of the checksum, or of the space between
        names = ("step", "bytes", "sha256", "variables", "metadata")
        assert [found[name] for name in names] == [told[name] for name in names]
    assert missed <= len("manifest_sha256") + content.count(b" ")


def test_a_manifest_is_read_alone(tmp_path):
    path = save(tmp_path, 2)
    (path / "variables.npz").unlink()
    assert checkpoint.manifest(path)["metadata"] == {"epoch": 1.5}
    for file in path.iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=f"{path} is not complete: it has no manifest"):
        checkpoint.manifest(path)


def test_an_older_version_without_its_fields_is_read(tmp_path):
    path = save(tmp_path, 2)
    told = json.loads((path / "manifest.json").read_text())
    del told["version"], told["bytes"], told["manifest_sha256"]
    (path / "manifest.json").write_text(json.dumps(told))
    np.savez(path / "variables.npz", **VARIABLES)
    content = (path / "variables.npz").read_bytes()
    told["sha256"] = hashlib.sha256(content).hexdigest()
    (path / "manifest.json").write_text(json.dumps(told))
    assert checkpoint.load(path)[0]["model/a"] == 0.5
    save(tmp_path, 3, keep=1)
    assert checkpoint.steps(tmp_path) == [3]


@pytest.mark.parametrize(
    ("at_most", "step"), [(None, 9), (10, 9), (9, 9), (8, 5), (5, 5), (4, None)]
)
def test_the_newest_up_to_a_step(tmp_path, at_most, step):
    for saved in (5, 9):
        save(tmp_path, saved)
    found = checkpoint.load_latest(tmp_path, at_most=at_most)
    assert (found and found[1]["step"]) == step


def test_the_newest_whole_one_up_to_a_step(tmp_path):
    """What a stopped run may say is good: not a cut one, nor one of another run."""
    for step in (10, 20, 30):
        save(tmp_path, step)
    for at_most, step in ((9, None), (10, 10), (29, 20), (30, 30)):
        assert checkpoint.newest_whole(tmp_path, at_most) == step
    cut = checkpoint.folder(tmp_path) / "step-30" / "variables.npz"
    os.truncate(cut, cut.stat().st_size - 1)
    assert checkpoint.newest_whole(tmp_path, 30) == 20
    assert checkpoint.newest_whole(tmp_path / "none", 30) is None


def test_an_unusable_one_is_passed_over(tmp_path, capsys):
    for saved in (5, 9):
        save(tmp_path, saved)
    found = checkpoint.load_latest(
        tmp_path, unusable=lambda told: "is odd" if told["step"] == 9 else ""
    )
    assert found[1]["step"] == 5
    assert "step-9 is odd" in capsys.readouterr().err


def test_steps_sort_as_numbers(tmp_path):
    for step in (9, 10, 100):
        save(tmp_path, step)
    assert checkpoint.steps(str(tmp_path)) == [9, 10, 100]


def test_a_step_that_ran_again_replaces_its_checkpoint(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 1, variables={"model/a": np.float32([9.0])})
    assert checkpoint.load_latest(str(tmp_path))[0]["model/a"] == 9.0
    assert os.listdir(checkpoint.folder(tmp_path)) == ["step-1"]


def test_f6_the_disk_fills_up_while_writing(tmp_path, monkeypatch):
    """F6: the checkpoint that was there stays, nothing half-written does."""
    save(tmp_path, 1)

    def full(file, _):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays_file, "write", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert os.listdir(checkpoint.folder(str(tmp_path))) == ["step-1"]
    assert checkpoint.load_latest(str(tmp_path))[1]["step"] == 1


def test_what_the_disk_gives_back_is_compared(tmp_path, monkeypatch):
    """A disk that loses a byte is found out while the older checkpoint is there."""
    save(tmp_path, 1)
    write = arrays_file.write

    def lossy(file, arrays):
        write(file, arrays)
        file._file.seek(100)
        file._file.write(b"!")

    monkeypatch.setattr(arrays_file, "write", lossy)
    with pytest.raises(OSError, match=r"variables.npz was written as .* read back"):
        save(tmp_path, 2)
    assert os.listdir(checkpoint.folder(tmp_path)) == ["step-1"]


def test_f3_what_a_killed_save_left_is_no_checkpoint_and_goes(tmp_path, capsys):
    """F3: kill -9 during a save. It is not removed silently."""
    save(tmp_path, 1)
    abandoned = checkpoint.folder(str(tmp_path)) / ".step-2-abcd"
    abandoned.mkdir()
    (abandoned / "variables.npz").write_bytes(b"half")
    assert checkpoint.load_latest(str(tmp_path))[1]["step"] == 1
    save(tmp_path, 3)
    assert not abandoned.exists()
    assert f"removed {abandoned}" in capsys.readouterr().err


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


def test_f3_a_file_cut_anywhere_is_broken(tmp_path):
    """F3: a checkpoint file cut off behind each of its bytes."""
    path = save(tmp_path, 2)
    for name in ("variables.npz", "manifest.json"):
        content = (path / name).read_bytes()
        for size in range(len(content)):
            (path / name).write_bytes(content[:size])
            with pytest.raises(ValueError, match="broken"):
                checkpoint.load(path)
        (path / name).write_bytes(content)
    checkpoint.load(path)


def test_f3_a_byte_flipped_anywhere_is_broken(tmp_path):
    """F3: in the variables, a bit of each byte."""
    file = save(tmp_path, 2) / "variables.npz"
    content = file.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        with pytest.raises(ValueError, match="SHA-256"):
            checkpoint.load(file.parent)


def test_all_broken_is_an_error_and_not_a_new_start(tmp_path):
    (save(tmp_path, 1) / "manifest.json").unlink()
    with pytest.raises(ValueError, match="put a whole one there.* remove the folder"):
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


KERNEL, BIAS = "model/small/head/kernel", "model/small/head/bias"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda arrays: arrays.pop(KERNEL), f"has nothing for variable {KERNEL}"),
        (
            lambda arrays: arrays.update({BIAS: np.zeros(3, np.float32)}),
            rf"float32 of shape \(3,\) for variable {BIAS}, which needs float32 of "
            r"shape \(2,\)",
        ),
        (
            lambda arrays: arrays.update({BIAS: np.zeros(2)}),
            rf"float64 of shape \(2,\) for variable {BIAS}, which needs float32 of",
        ),
        (
            lambda arrays: arrays.update({"model/extra": np.zeros(2)}),
            "1 variables that the model lacks, the first is model/extra",
        ),
    ],
)
def test_what_does_not_fit_is_named(change, named):
    """A variable that is missing, misshapen, of another type, or nobody's."""
    target = model()
    arrays = checkpoint.arrays_of("model", target.variables)
    arrays[BIAS] = np.full([2], 7.0, np.float32)
    change(arrays)
    with pytest.raises(ValueError, match=named):
        checkpoint.assign("model", target.variables, arrays)
    assert target.get_weights()[1].tolist() == [0, 0]  # nothing was assigned


def test_what_has_another_prefix_is_for_somebody_else():
    target = model()
    arrays = checkpoint.arrays_of("model", target.variables)
    arrays[BIAS] = np.full([2], 7.0, np.float32)
    checkpoint.assign("model", target.variables, arrays | {"optimizer/x": np.zeros(2)})
    assert target.get_weights()[1].tolist() == [7, 7]
