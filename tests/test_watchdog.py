import signal
import subprocess
import sys
import threading
import time

import pytest

from tf_goyal.watchdog import READY, Watchdog

LONG = 30.0  # seconds; nothing here should take so long


class Graph:
    """Counts as a step's graph would."""

    def __init__(self, **counts):
        self.counts = {READY: 0, **counts}
        self.looks = 0
        self.looked = threading.Condition()

    def __call__(self):
        with self.looked:
            self.looks += 1
            self.looked.notify_all()
        return dict(self.counts)

    def wait_for_looks(self, count):
        with self.looked:
            goal = self.looks + count
            assert self.looked.wait_for(lambda: self.looks >= goal, LONG)


def barked(graph, prepare):
    """What a watchdog of 0.1 s says once `prepare(watchdog)` has been called."""
    said, there = [], threading.Event()

    def bark(why):
        said.append(why)
        there.set()

    with Watchdog(0.1, graph, bark) as watchdog:
        prepare(watchdog)
        assert there.wait(LONG)
    return said[0]


def test_the_missing_message_is_named():
    """Step 8 is the second one here: a came twice, b and c once."""
    graph = Graph(a=1, b=1, c=1)
    graph.counts[READY] = 1

    def prepare(watchdog):
        watchdog.begins(7)
        watchdog.ends()
        watchdog.begins(8)
        graph.counts.update({READY: 2, "a": 2})

    why = barked(graph, prepare)
    assert why.startswith("step 8: ")
    assert "missing: b and 1 more" in why and "--collective_timeout" in why


def test_one_that_only_sends_still_waits_for_a_peer():
    graph = Graph(a=0)

    def prepare(watchdog):
        watchdog.begins(1)
        graph.counts.update({READY: 1, "a": 1})

    assert "a peer does not take what was sent to it" in barked(graph, prepare)


def test_tensorflows_algorithms_tell_nothing():
    graph = Graph()

    def prepare(watchdog):
        watchdog.begins(1)
        graph.counts[READY] = 1

    assert "do not say from whom" in barked(graph, prepare)


def test_a_sum_outside_of_the_steps_is_watched():
    """An evaluation ends in one; the next call of the same is another wait."""
    graph, there = Graph(), threading.Event()

    def prepare(watchdog):
        total = watchdog.watched("the sum", lambda wait: there.wait(wait))
        total(0)
        threading.Thread(target=total, args=(LONG,), daemon=True).start()

    why = barked(graph, prepare)
    there.set()
    assert why.startswith("the sum: got nothing for 0.1 s")


@pytest.mark.parametrize("state", ["computes", "between steps", "messages come", "off"])
def test_quiet_where_nothing_hangs(state):
    """Twenty looks, more than two timeouts."""
    graph, said, threads = Graph(a=0), [], set(threading.enumerate())
    with Watchdog(0 if state == "off" else 0.5, graph, said.append) as watchdog:
        watchdog.begins(1)
        if state == "off":
            assert set(threading.enumerate()) <= threads and graph.looks == 0
            return
        if state != "computes":
            graph.counts.update({READY: 1, "a": 1})
        if state == "between steps":
            watchdog.ends()
        for _ in range(20):
            if state == "messages come":
                graph.counts["a"] += 1
            graph.wait_for_looks(1)
    assert said == []


def test_time_in_which_it_was_stopped_itself_does_not_count():
    """As silence.py: stopped for 3 s, it gives its peer the rest of its 2 s."""
    script = """
import threading, time
from tf_goyal.watchdog import Watchdog

with Watchdog(2.0, dict, lambda why: print("barked", flush=True)) as watchdog:
    end = threading.Event()
    print("ready", flush=True)
    watchdog.watched("the sum", lambda: end.wait(1.0))()
    print("done", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGSTOP)
            time.sleep(3.0)
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate(timeout=LONG)
        finally:
            process.kill()
    assert output == "done\n"
