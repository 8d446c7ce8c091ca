"""What is held back while TensorFlow starts: a stand-in for it, in real processes."""

import pytest

# Says what C code and Python say to stderr, then ends as the module variable has it.
STAND_IN = """
import os, sys, threading
os.write(2, b"a greeting\\n")
def leave():
    print("rank 1 is lost", file=sys.stderr, flush=True)
    os._exit(138)
{end}
"""
LEAVES = "t = threading.Thread(target=leave); t.start(); t.join()"
FAILS = "raise ImportError('no kernel')"
STARTS = """
class config:
    list_physical_devices = staticmethod(lambda: [])
print("from Python", file=sys.stderr)
"""
SCRIPT = """
import sys
before = sys.stderr
from tf_goyal import start
start.tensorflow()
assert sys.stderr is before
print("afterwards", file=sys.stderr)
"""


@pytest.fixture
def outcome(python, tmp_path):
    """The exit code and stderr of a start that ends so."""

    def run(end):
        (tmp_path / "tensorflow.py").write_text(STAND_IN.format(end=end))
        path = f"{tmp_path}:."
        done = python("-c", SCRIPT, environment={"PYTHONPATH": path}, seconds=180.0)
        return done.returncode, done.stderr

    return run


def test_a_greeting_is_held_back(outcome):
    assert outcome(STARTS) == (0, "from Python\nafterwards\n")


def test_a_process_that_another_thread_ends_says_why(outcome):
    """F1, in the seconds of the import: os._exit asks nobody."""
    assert outcome(LEAVES) == (138, "rank 1 is lost\n")


def test_a_start_that_fails_shows_everything(outcome):
    code, error = outcome(FAILS)
    assert code == 1
    assert error.startswith("a greeting\n") and error.endswith("no kernel\n")
