"""The run that started last writes; an older one finds out."""

import json
import os

import pytest

from tf_goyal.owner import FILE_NAME, Owner


def test_the_one_that_started_last_owns_the_folder(tmp_path):
    first = Owner(tmp_path / "a" / "b")
    first.check()
    second = Owner(tmp_path / "a" / "b")
    second.check()
    with pytest.raises(OSError, match=f"another run .* process {os.getpid()} on .*20"):
        first.check()
    assert os.listdir(tmp_path / "a" / "b") == [FILE_NAME]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": 1}', "[" * 100_000])
def test_a_name_that_says_nothing_is_not_ours(tmp_path, text):
    owner = Owner(tmp_path)
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(OSError, match="another run"):
        owner.check()


def test_a_folder_that_is_gone(tmp_path):
    owner = Owner(tmp_path / "run")
    (tmp_path / "run" / FILE_NAME).unlink()
    with pytest.raises(FileNotFoundError):
        owner.check()


def test_a_person_can_read_it(tmp_path):
    Owner(tmp_path)
    found = json.loads((tmp_path / FILE_NAME).read_text())
    assert found["process"] == os.getpid() and found["host"]
