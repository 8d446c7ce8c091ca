"""TensorFlow between processes: its proxies, its lock and its port."""

import json
import socket

import pytest

from tf_goyal import coordination
from tf_goyal.launch import free_ports


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "a,::1"),
        ({"no_proxy": "localhost"}, "localhost,a,::1"),
        ({"no_proxy": "x", "no_grpc_proxy": "y,z"}, "y,z,a,::1"),
    ],
)
def test_grpc_goes_to_the_other_processes_without_a_proxy(before, after):
    """http_proxy is for stores, and stays so: no_proxy is not changed."""
    environ = {"http_proxy": "http://127.0.0.1:9", **before}
    coordination.avoid_proxies(["a", "::1", "a"], environ)
    expected = {"http_proxy": "http://127.0.0.1:9", **before, "no_grpc_proxy": after}
    assert environ == expected


def test_one_process_has_no_way_to_go():
    environ = {}
    coordination.avoid_proxies(["a"], environ)
    assert environ == {}


# Rank 1 of two starts its server, and rank 0 is not there.
STARTS = """
import json, os, signal, sys, threading, time, types
from tf_goyal import asked, cluster, coordination, start, train
workers = json.loads(sys.argv[1])
members = cluster.Cluster(tuple(workers), 1)
os.environ["http_proxy"] = "http://127.0.0.1:9"
coordination.avoid_proxies(["127.0.0.1"] * 2, os.environ)
start.tensorflow()
coordination.configure(2, start_timeout=30, peer_timeout=5)
from tensorflow.python.eager import context
service = context.context().coordination_service
assert service.heartbeat_timeout_in_ms > 24 * 3600 * 1000  # a suspended job goes on
settings = types.SimpleNamespace(start_timeout=30)
asked = asked.Asked()
others = types.SimpleNamespace(wait_for_loss=lambda _: None)

def tick():
    for _ in range(40):
        time.sleep(0.1)
    print("the other thread went on", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

with train._starting(settings, members, asked, others):
    if sys.argv[2] == "tick":
        threading.Thread(target=tick).start()
    cluster.strategy(members)
"""


def test_other_threads_go_on_while_the_server_waits(python):
    """F1, F2: a lost peer is heard of, and SIGTERM ends the process.

    The server waits for rank 0 for 30 s, and TensorFlow would keep Python's lock;
    the thread is done after 4.
    """
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    done = python("-c", STARTS, json.dumps(workers), "tick")
    assert (done.returncode, done.stdout) == (143, "the other thread went on\n")
    assert done.stderr.splitlines()[-1] == (
        "asked to stop by a signal: there is nothing to save"
    )


def test_a_port_that_was_taken_meanwhile_is_named(python):
    """S6, after the rendezvous: TensorFlow's error says neither which nor why."""
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        workers = [f"127.0.0.1:{free_ports(1)[0]}"]
        workers.append(f"127.0.0.1:{thief.getsockname()[1]}")
        done = python("-c", STARTS, json.dumps(workers), "")
    assert done.returncode == 1  # flags.run makes it one line, and 2
    assert done.stderr.splitlines()[-1] == (
        f"ValueError: the port of {workers[1]} must be free for TensorFlow's server, "
        "but another process took it since the processes met: start again, or give "
        "this process another port"
    )
