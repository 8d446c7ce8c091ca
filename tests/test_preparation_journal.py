"""The journal of a preparation, cut off, damaged or gone."""

import importlib

import pytest
from preparation import finish_within, refused

pytest_plugins = ["preparation_fixtures"]
preparation_journal = importlib.import_module("preparation_journal")


def journal_line(file):
    """Of a shard of 3 bytes with one image that was left out."""
    return {
        "file": file,
        "records": 1,
        "bytes": 3,
        "sha256": "",
        "per_class": {"0": 1},
        "left_out": [{"image": "a/a.JPEG", "reason": "empty"}],
        "converted": [],
    }


def test_the_journal_forgets_a_line_that_was_cut_off(tmp_path):
    shard = journal_line("a")
    (tmp_path / "a").write_bytes(b"abc")
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    journal.add(journal_line("gone"))
    journal.close()
    with open(tmp_path / "preparation.jsonl", "a") as file:
        file.write('{"file": "b"')
    for _ in range(2):
        journal = preparation_journal.Journal(tmp_path, {"size": 1})
        journal.add(shard)
        journal.close()
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    assert journal.done == {"a": shard}
    journal.remove()
    preparation_journal.Journal(tmp_path, {"size": 2}).close()  # begins anew


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_shard_of_another_size_is_not_done(tmp_path, size):
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    journal.add(journal_line("a"))
    journal.close()
    (tmp_path / "a").write_bytes(bytes(size))
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    assert set(journal.done) == ({"a"} if size == 3 else set())


@pytest.mark.parametrize(
    "damaged", [b"garbage", b"{}", b"[]", b"", b"\xff", b"7", b'"file"', b"[" * 9999]
)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_damaged_line_of_the_journal_is_named(tmp_path, damaged, number):
    path = tmp_path / "preparation.jsonl"
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    journal.add(journal_line("a"))
    journal.add(journal_line("b"))
    journal.close()
    lines = path.read_bytes().splitlines()
    lines[number - 1] = damaged
    whole = b"\n".join([*lines, b'{"cut'])
    path.write_bytes(whole)
    mend = "empty this file" if number == 1 else "remove this line"
    with pytest.raises(ValueError, match=f"{path}, line {number}: .*: {mend}"):
        preparation_journal.Journal(tmp_path, {"size": 1})
    assert path.read_bytes() == whole
    del lines[number - 1]
    whole = b"\n".join([*lines, b'{"cut'])
    path.write_bytes(b"" if number == 1 else whole)
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"abc")
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    assert set(journal.done) == {1: set(), 2: {"b"}, 3: {"a"}}[number]


@pytest.mark.parametrize("name", ["records", "left_out", "sha256"])
def test_a_line_of_the_journal_that_lacks_something_is_damaged(tmp_path, name):
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    wrong = {"records": 2, "left_out": [{"image": "a/a.JPEG"}], "sha256": None}
    journal.add({**journal_line("a"), name: wrong[name]})
    journal.close()
    with pytest.raises(ValueError, match="line 2: must be as this tool wrote it"):
        preparation_journal.Journal(tmp_path, {"size": 1})


def test_a_damaged_journal_is_a_refusal(like, tmp_path, capsys):
    (tmp_path / "preparation.jsonl").write_text("[]\n")
    error = refused(capsys, f"--data_dir={tmp_path}", *like.flags)
    assert f"{tmp_path}/preparation.jsonl, line 1: " in error


def test_a_lock_on_a_journal_that_is_gone_is_none(tmp_path, monkeypatch):
    path = tmp_path / "preparation.jsonl"
    path.write_text('{"size": 2}\n')
    finish_within(monkeypatch, preparation_journal.fcntl, "flock", path.unlink)
    journal = preparation_journal.Journal(tmp_path, {"size": 1})
    assert path.read_text() == '{"size": 1}\n'
    path.unlink()
    journal.remove()
