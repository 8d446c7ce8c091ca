"""The fixtures of the tests of the preparation, each made once for all of them."""

import pytest
from preparation import Like, prepare


@pytest.fixture(scope="session")
def like(tmp_path_factory):
    return Like(tmp_path_factory.mktemp("like"))


@pytest.fixture(scope="session")
def prepared(like, tmp_path_factory):
    """The shards of the archives: 7 and 1."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    assert prepare(f"--data_dir={folder}", "--train_shards=7", *like.flags) == 0
    return folder
