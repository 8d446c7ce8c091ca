"""The tools that people start: what they say when something is missing; the tour."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEADLINE = 1200  # seconds; the tour installs, trains, evaluates, exports and draws


@pytest.fixture
def clone(tmp_path):
    """The files that an installation reads, in a folder with a space in its name."""
    folder = tmp_path / "a clone"
    shutil.copytree(ROOT / "tools", folder / "tools")
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in ("tf_goyal", "flags"):
        (folder / name).mkdir()
    shutil.copy(ROOT / "tf_goyal" / "__init__.py", folder / "tf_goyal")
    return folder


def start(folder, tool, **environment):
    """Starts a tool from another folder; killed at the deadline."""
    return subprocess.run(
        [folder / "tools" / tool],
        cwd=folder.parent,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


def interpreter(folder, version):
    """A "Python" of another version, as far as the tools can see."""
    path = folder / "python-old"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {version}"\nexit 1\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("tool", ["quickstart", "test"])
@pytest.mark.parametrize("version", ["3.9.18", "3.14.0"])
def test_another_python_is_named_in_one_line(clone, tool, version):
    done = start(clone, tool, PYTHON=str(interpreter(clone.parent, version)))
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"{tool}: Python 3.10 to 3.13 is needed, found Python {version}"
    )
    assert done.stderr.count("\n") == 1
    assert not (clone / ".venv").exists()


def test_a_missing_network_is_named_in_one_line(clone):
    """And the next try, with a network, starts from what is there."""
    offline = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "0",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
    }
    for _ in range(2):
        done = start(clone, "test", **offline)
        assert done.returncode == 2, done.stderr
        assert "the package index cannot be reached" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not list((clone / ".venv").glob("installed-*"))


def test_a_clone_in_the_working_folder_does_not_hide_the_package(tmp_path):
    """As for everybody who stays where "git clone" was typed."""
    for folder in ("flags", "tf_goyal", "tools"):
        (tmp_path / "tf_goyal" / folder).mkdir(parents=True)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "tf_goyal.train", "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert "--model_dir" in done.stdout


def test_quickstart():
    """The tour of the README, in this clone: error, curves, SavedModel, what next."""
    stamp = ROOT / ".venv" / "installed-test"
    if stamp.exists():  # what the tour needs is there; others are using it now
        shutil.copy(stamp, stamp.with_name("installed-plot"))
    done = start(ROOT, "quickstart")
    assert done.returncode == 0, done.stdout + done.stderr
    (said,) = [
        line for line in done.stdout.splitlines() if line.startswith("top-1 error")
    ]
    assert float(said.split()[2]) <= 4.0
    for file in ("log.jsonl", "curves.png", "saved_model"):
        (line,) = [t for t in done.stdout.splitlines() if t.rstrip().endswith(file)]
        assert Path(line.split(maxsplit=1)[1].strip()).exists()
    assert "ETA" in done.stdout and "images/s" in done.stdout and "lr" in done.stdout
    assert "--recipe=goyal_8k" in done.stdout
    curves = Path(line.split(maxsplit=1)[1].strip()).parents[1] / "curves.png"
    assert curves.read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(curves.parent)
