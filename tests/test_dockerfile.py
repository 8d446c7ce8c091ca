"""Dockerfile and .dockerignore, read and carried out as far as it goes without Docker.

Whoever has Docker builds the image; here its files make a wheel, and its instructions
are held against the manifests.
"""

import fnmatch
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tool_runs import load

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "Dockerfile").read_text("utf-8")


def stages():
    """The instructions of each stage: lists of (name, argument)."""
    found = [[]]
    lines = [line for line in TEXT.splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, argument = line.split(maxsplit=1)
            if name == "FROM":
                found.append([])
            found[-1].append((name, argument))
    return found


def copied():
    """What the build stage takes from the clone."""
    (sources,) = [stage for stage in stages() if ("WORKDIR", "/source") in stage]
    return [
        source
        for name, argument in sources
        if name == "COPY"
        for source in argument.split()[:-1]
    ]


def let_through(name):
    """Whether .dockerignore lets a path of the clone through: the last rule wins."""
    passes = True
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").removeprefix("**/")
            parts = Path(name).parts
            at = parts if "**/" in line else parts[:1]
            if any(fnmatch.fnmatch(part, pattern) for part in at):
                passes = line.startswith("!")
    return passes


def test_the_image_has_no_root_and_no_secret():
    """Its user is the one of the manifests; only the environment is copied over."""
    *_, last = stages()
    instructions = dict(last)
    user = load("k8s_pod").USER
    assert instructions["USER"] == f"{user}:{user}" and user != 0
    assert [name for name, _ in last if name in ("USER", "ENTRYPOINT")] == [
        "USER",
        "ENTRYPOINT",
    ]
    assert instructions["COPY"] == "--from=build /opt/tf_goyal /opt/tf_goyal"
    assert not any(name == "ADD" for stage in stages() for name, _ in stage)
    assert not re.search("token|password|secret", TEXT, re.IGNORECASE)


def test_the_image_starts_training():
    *_, last = stages()
    command = re.findall('"(.*?)"', dict(last)["ENTRYPOINT"])
    assert command[:2] == ["python", "-m"]
    assert importlib.util.find_spec(command[2])
    assert "/opt/tf_goyal/bin:$PATH" in dict(last)["ENV"]


@pytest.mark.parametrize(("extra", "asked"), [("", "."), ("gpu", ".[gpu]")])
def test_the_extra_is_installed(extra, asked):
    """As the shell of the build makes it from the build argument."""
    (line,) = [v for stage in stages() for n, v in stage if n == "RUN" and "pip" in v]
    program = f'pip() {{ printf "%s\\n" "$@"; }}\n{line}'
    done = subprocess.run(
        ["sh", "-c", program],
        env={"EXTRA": extra},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1] == asked


def test_a_clone_s_other_files_stay_out():
    for name in (".git", ".venv", "runs", "tests", "tools", "Dockerfile"):
        assert not let_through(name)
    assert not let_through("tf_goyal/__pycache__/train.pyc")
    assert let_through("tf_goyal/data/digits/README.md")


def test_what_is_copied_makes_a_whole_package(tmp_path):
    """With the recipes and the embedded data."""
    for name in copied():
        assert let_through(name)
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tmp_path)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    wheel += ["--no-build-isolation", "--wheel-dir=wheels", "."]
    subprocess.run(wheel, cwd=tmp_path, check=True, timeout=600)
    (made,) = (tmp_path / "wheels").iterdir()
    packed = {name for name in zipfile.ZipFile(made).namelist()}
    tracked = [p for p in (ROOT / "tf_goyal").rglob("*") if p.is_file()]
    for path in tracked:
        if "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in packed
    for path in (ROOT / "flags").iterdir():
        if path.is_file():
            assert f"tf_goyal/recipes/{path.name}" in packed
