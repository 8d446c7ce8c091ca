"""A process that is asked to stop, by real signals. No TensorFlow."""

import contextlib
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, os, sys, time
from tf_goyal.asked import Asked

asked = Asked()
asked.tell(lambda: os.write(1, b"tells others\\n"))

def hang():
    # As in TensorFlow: no handler of Python's runs meanwhile.
    mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
"""


@contextlib.contextmanager
def process(code):
    """Runs SCRIPT and more; it says "ready" when it may be signalled."""
    running = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout.readline() == "ready\n"
        yield running
    finally:
        running.kill()
        running.wait()


def outcome(running):
    output, errors = running.communicate(timeout=180)
    return running.returncode, output, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_before_there_is_something_to_save_it_leaves_at_once(number):
    """F2's kind: during the start."""
    with process("print('ready', flush=True); time.sleep(60)") as running:
        running.send_signal(number)
        assert outcome(running) == (
            143,
            "tells others\n",
            "asked to stop by a signal: there is nothing to save\n",
        )


def test_what_has_begun_is_finished():
    code = """
with asked.finishing():
    print("ready", flush=True)
    while not asked.to_stop:
        time.sleep(0.01)
    time.sleep(0.5)
    print("saved", flush=True)
sys.exit(143)
"""
    with process(code) as running:
        running.send_signal(signal.SIGTERM)
        code, output, errors = outcome(running)
    assert (code, errors) == (143, "")
    assert sorted(output.splitlines()) == ["saved", "tells others"]


def test_a_process_that_hangs_with_nothing_to_save_leaves_at_once():
    """F2's kind: in TensorFlow's start, which waits for all its servers."""
    with process("print('ready', flush=True); hang()") as running:
        running.send_signal(signal.SIGTERM)
        assert outcome(running) == (
            143,
            "tells others\n",
            "asked to stop by a signal: there is nothing to save\n",
        )


def test_a_process_that_hangs_leaves_when_its_grace_is_over():
    """F2's kind: in a collective that no one answers."""
    code = """
asked.grace_seconds = 0.5
with asked.finishing():
    print("ready", flush=True)
    hang()
"""
    with process(code) as running:
        running.send_signal(signal.SIGTERM)
        code, output, errors = outcome(running)
    assert (code, output) == (143, "tells others\n")
    assert "not done after --grace_seconds=0.5: leaves as it is" in errors


def test_without_a_grace_it_takes_its_time():
    code = """
with asked.finishing():
    print("ready", flush=True)
    time.sleep(1.5)
print(asked.to_stop)
"""
    with process(code) as running:
        running.send_signal(signal.SIGTERM)
        code, output, _ = outcome(running)
    assert code == 0
    assert output.splitlines() == ["tells others", "True"]


def test_by_another_process():
    code = """
import threading
threading.Timer(0.1, lambda: asked.by("rank 1 (b:2222)")).start()
print("ready", flush=True)
time.sleep(60)
"""
    with process(code) as running:
        code, output, errors = outcome(running)
    assert code == 143
    assert output == "tells others\n"
    assert errors == "asked to stop by rank 1 (b:2222): there is nothing to save\n"


def test_a_second_ctrl_c_interrupts():
    code = """
with asked.finishing():
    print("ready", flush=True)
    while not asked.to_stop:
        time.sleep(0.01)
    os.write(1, b"once\\n")
    time.sleep(60)
"""
    with process(code) as running:
        running.send_signal(signal.SIGINT)
        said = [running.stdout.readline() for _ in range(2)]
        assert sorted(said) == ["once\n", "tells others\n"]
        running.send_signal(signal.SIGINT)
        code, _, errors = outcome(running)
    assert code != 143
    assert "KeyboardInterrupt" in errors


@pytest.mark.parametrize("first", ["with asked.finishing():", "if True:"])
def test_a_handler_that_somebody_else_installs_does_not_stay(first):
    """As TensorFlow's coordination service does when it starts, in C."""
    code = f"""
ctypes.CDLL(None).signal(15, 1)  # ignored
{first}
    time.sleep(0.5)
    print("ready", flush=True)
    while not asked.to_stop:
        time.sleep(0.01)
    time.sleep(0.5)  # saving, while the others are told
sys.exit(143)
"""
    with process(code) as running:
        running.send_signal(signal.SIGTERM)
        code, output, _ = outcome(running)
    assert (code, output) == (143, "tells others\n")
