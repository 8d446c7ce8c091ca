"""The manifest of a preparation: damaged, and as a witness of damage."""

import json

from preparation import contents, prepare, refused

pytest_plugins = ["preparation_fixtures"]


def copied(folder, to):
    to.mkdir()
    for name, data in contents(folder).items():
        (to / name).write_bytes(data)
    return to


def test_a_damaged_manifest_is_named(like, prepared, tmp_path, capsys):
    folder = copied(prepared, tmp_path / "copy")
    path = folder / "manifest.json"
    whole = path.read_bytes()
    described = json.loads(whole)
    lacking = [
        {**described, "options": {"max_side": 0}},
        {**described, "options": {**described["options"], "quality": "0"}},
        {**described, "inputs": {}},
        {name: described[name] for name in described if name != "labels_sha256"},
        {**described, "splits": {**described["splits"], "test": {"shards": []}}},
        {**described, "splits": {"train": described["splits"]["train"]}},
        {**described, "classes": 4},
    ]
    for damaged in (
        b"",
        b"{}",
        b"[]",
        b"null",
        whole[: len(whole) // 2],
        b"\xff\xfe" + whole,
        *(json.dumps(one).encode() for one in lacking),
    ):
        path.write_bytes(damaged)
        for given in (["--verify"], like.flags):
            error = refused(capsys, f"--data_dir={folder}", *given)
            assert f"{path}: expected the manifest of" in error, damaged
            assert "prepare all in" in error or "prepare the data again" in error
        assert path.read_bytes() == damaged


def test_verify_finds_a_changed_byte(like, prepared, tmp_path, capsys):
    assert prepare(f"--data_dir={prepared}", "--verify") == 0
    assert "all 8 shards and labels.txt are" in capsys.readouterr().out
    copy = copied(prepared, tmp_path / "copy")
    labels = (copy / "labels.txt").read_text()
    for damaged in (labels.replace("n01440764", "n01440767"), None):
        if damaged is None:
            (copy / "labels.txt").unlink()
        else:
            (copy / "labels.txt").write_text(damaged)
        for flag in ("--verify", "--noexpect_imagenet"):
            error = refused(capsys, f"--data_dir={copy}", flag)
            assert "labels.txt" in error and "train-" not in error
    (copy / "labels.txt").write_text(labels)
    shard = copy / "train-00003-of-00007"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    assert shard.name in refused(capsys, f"--data_dir={copy}", "--verify")
    shard.unlink()
    for flag in ("--verify", "--noexpect_imagenet"):
        assert shard.name in refused(capsys, f"--data_dir={copy}", flag)
