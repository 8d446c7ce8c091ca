"""Processes that hear of each other until the end: real ones, really killed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tf_goyal import peers
from tf_goyal.launch import free_ports

DEADLINE = 180.0  # seconds
PROCESS = Path(__file__).with_name("peer_process.py")


class Process:
    """One `peer_process.py`, whose lines are read as they come."""

    def __init__(self, rank, workers, peer_timeout, start_timeout):
        self.lines, self._came = [], threading.Condition()
        root = str(PROCESS.parent.parent)
        self.process = subprocess.Popen(
            [sys.executable, PROCESS]
            + [str(each) for each in (rank, peer_timeout, start_timeout, *workers)],
            env={**os.environ, "PYTHONPATH": root},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self._came:
                self.lines.append(line.strip())
                self._came.notify_all()

    def wait_for(self, text):
        """Waits for a line with a text in it."""
        with self._came:
            found = self._came.wait_for(
                lambda: [line for line in self.lines if text in line], DEADLINE
            )
            assert found, (text, self.lines)
            return found[0]

    def tell(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def send(self, number):
        self.process.send_signal(number)

    def code(self):
        return self.process.wait(DEADLINE)


@pytest.fixture
def three(request):
    """Ranks 0, 1, 2 that have met; a peer may be silent for 2 s, or as marked.

    Marked with two numbers the second is the start timeout, else 60 s.
    """
    seconds, start_timeout = getattr(request, "param", 2), 60
    if isinstance(seconds, tuple):
        seconds, start_timeout = seconds
    workers = [f"127.0.0.1:{port}" for port in free_ports(3)]
    ranks = [Process(rank, workers, seconds, start_timeout) for rank in range(3)]
    try:
        for each in ranks:
            each.wait_for("met")
        yield ranks, workers
    finally:
        for each in ranks:
            with contextlib.suppress(ProcessLookupError):
                each.send(signal.SIGCONT)
                each.process.kill()
            each.process.wait()


def test_everybody_gets_everybodys_value_in_order(three):
    ranks, _ = three
    for each in reversed(ranks):
        each.tell("gather")
    for each in ranks:
        each.wait_for("gathered ['from 0', 'from 1', 'from 2']")
        each.tell("bye")
    assert [each.code() for each in ranks] == [0, 0, 0]


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("three", [60], indirect=True)
def test_a_killed_process_is_named_on_all_the_others(three, killed):
    """F1: kill -9 of the chief or of another; long before --peer_timeout."""
    ranks, workers = three
    ranks[killed].send(signal.SIGKILL)
    for each in (each for rank, each in enumerate(ranks) if rank != killed):
        assert each.code() == 138
        each.wait_for(
            f"a peer was lost: rank {killed} of 3 ({workers[killed]}): connection "
            "closed"
        )


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_process_that_falls_silent_is_named_on_all_the_others(three, stopped):
    """SIGSTOP for ever: nothing closes. The stopped one leaves when it comes back."""
    ranks, workers = three
    ranks[stopped].send(signal.SIGSTOP)
    for each in (each for rank, each in enumerate(ranks) if rank != stopped):
        assert each.code() == 138
        each.wait_for(
            f"a peer was lost: rank {stopped} of 3 ({workers[stopped]}): silent for 2 s"
        )
    ranks[stopped].send(signal.SIGCONT)
    assert ranks[stopped].code() == 138


@pytest.mark.parametrize("stopped", [0, 1])
@pytest.mark.parametrize("three", [60], indirect=True)
def test_a_stall_shorter_than_the_limit_is_survived(three, stopped):
    ranks, _ = three
    ranks[stopped].send(signal.SIGSTOP)
    time.sleep(7)  # more than an interval of 5 s
    ranks[stopped].send(signal.SIGCONT)
    for each in ranks:
        each.tell("gather")
    for each in ranks:
        each.wait_for("gathered")
        each.tell("bye")
    assert [each.code() for each in ranks] == [0, 0, 0]


def test_a_process_does_not_judge_by_the_time_it_was_stopped_itself(three):
    """All are stopped for longer than the limit, as a laptop or a VM is: all go on."""
    ranks, _ = three
    for each in ranks:
        each.send(signal.SIGSTOP)
    time.sleep(4)
    for each in ranks:
        each.send(signal.SIGCONT)
    time.sleep(1)
    for each in ranks:
        each.tell("gather")
        each.wait_for("met")
    for each in ranks:
        each.wait_for("gathered")
        each.tell("bye")
    assert [each.code() for each in ranks] == [0, 0, 0]


@pytest.mark.parametrize("first", [0, 2])
def test_a_goodbye_is_no_loss_and_nobody_waits(three, first):
    """F8: one is done long before the others."""
    ranks, _ = three
    ranks[first].tell("bye")
    assert ranks[first].code() == 0
    time.sleep(3)  # longer than a silence may be
    for each in ranks:
        if each is not ranks[first]:
            each.tell("bye")
            assert each.code() == 0
    assert not any("lost" in line for each in ranks for line in each.lines)


@pytest.mark.parametrize("asked", [0, 1])
def test_the_wish_to_stop_reaches_all(three, asked):
    """F2; after it nobody is missed."""
    ranks, workers = three
    ranks[asked].tell("stop")
    for each in (each for rank, each in enumerate(ranks) if rank != asked):
        each.wait_for(f"stopped by rank {asked} of 3 ({workers[asked]})")
    ranks[asked].send(signal.SIGKILL)
    time.sleep(3)
    for each in (each for rank, each in enumerate(ranks) if rank != asked):
        each.tell("bye")
        assert each.code() == 0


@pytest.mark.parametrize("refusing", [0, 1])
def test_a_refusal_ends_all(three, refusing):
    """Those that gather raise; one that does something else is ended."""
    ranks, workers = three
    others = [each for rank, each in enumerate(ranks) if rank != refusing]
    others[0].tell("gather")
    ranks[refusing].tell("refuse")
    why = f"rank {refusing} of 3 ({workers[refusing]}) does not start: of no wish"
    assert others[0].code() == 1  # a Refused that nobody catches there
    assert why in others[0].wait_for("rendezvous.Refused")
    assert others[1].code() == 2
    others[1].wait_for(why)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_input_ends_all_alike(three, failing):
    """With 3 everywhere, which is no reason to start again."""
    ranks, workers = three
    ranks[failing].tell("fail")
    for each in (each for rank, each in enumerate(ranks) if rank != failing):
        assert each.code() == 3
        name = f"rank {failing} of 3 ({workers[failing]})"
        each.wait_for(f"{name} says: no record is good")


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("three", [(60, 20)], indirect=True)
def test_one_that_lives_and_never_gets_ready_is_named(three, late):
    """S2's kind: its storage hangs, say, behind the rendezvous."""
    ranks, workers = three
    others = [each for rank, each in enumerate(ranks) if rank != late]
    for each in others:
        each.tell("gather")
    name = f"rank {late} of 3 ({workers[late]})"
    for each in others:
        assert each.code() == 1  # a ValueError that nobody catches there
        each.wait_for(f"{name} lives, but is not ready --start_timeout=20 s")


def test_one_process_has_nobody_to_meet():
    def meet(*workers):
        return peers.meet(workers, 0, token=b"", start_timeout=1, peer_timeout=1)

    with pytest.raises(ValueError, match="as it was"), meet():
        raise ValueError("as it was")
    with meet("127.0.0.1:1") as alone:
        assert alone.gather({"a": 1}) == [{"a": 1}]
        alone.ask_to_stop()
        alone.tell_lost("nobody")


def test_the_limit_of_open_files_is_raised_as_far_as_needed():
    code = (
        "import resource, sys; from tf_goyal import peers\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, most))\n"
        "peers._allow_files(50); a = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "peers._allow_files(200); b = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "print(a, b, most)"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROCESS.parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    before, after, most = map(int, done.stdout.split())
    assert (before, after) == (100, min(200, most) if most > 0 else 200)
