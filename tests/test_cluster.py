"""The cluster: where its description comes from, and real strategies."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_environments import slurm_step, tf_config, worker

from tf_goyal.cluster import (
    Cluster,
    assign,
    from_environment,
    local_devices,
    ranks_by_host,
)

ROOT = Path(__file__).resolve().parent.parent
DEADLINE = 600  # seconds


def refusal(environ: dict[str, str], **flags) -> str:
    """The sentence that refuses this description."""
    with pytest.raises(ValueError) as caught:
        from_environment(environ, **flags)
    message = str(caught.value)
    assert "\n" not in message
    return message


HOSTS = "h[0-1]:1"
STEP = slurm_step(1, "n[1-2]", "1(x2)", 1, 0)


def test_flags_win_over_everything():
    """And the log says what was there besides."""
    environ = {**worker(0, "a:1", "b:1", "c:1"), **STEP}
    cluster = from_environment(environ, worker_hosts=HOSTS, task_index=0)
    assert (cluster.workers, cluster.rank) == (("h0:1", "h1:1"), 0)
    assert cluster.notes == (
        "--worker_hosts is taken, TF_CONFIG is not read",
        "--worker_hosts is taken, Slurm's step is not read",
    )


def test_a_broken_tf_config_does_not_matter_to_flags():
    cluster = from_environment({"TF_CONFIG": "{"}, worker_hosts=HOSTS, task_index=1)
    assert cluster.rank == 1


def test_tf_config_wins_over_slurm():
    cluster = from_environment({**worker(0, "a:1", "b:1", "c:1"), **STEP})
    assert (cluster.processes, cluster.rank) == (3, 0)
    assert cluster.notes == ("TF_CONFIG is taken, Slurm's step is not read",)


@pytest.mark.parametrize("text", ["", "{}", '{"environment": "cloud"}'])
def test_slurm_where_tf_config_describes_nothing(text):
    cluster = from_environment({"TF_CONFIG": text, **STEP})
    assert (cluster.processes, cluster.rank) == (2, 1)


def test_one_source_has_no_note_about_others():
    assert from_environment({}, worker_hosts=HOSTS, task_index=1).notes == ()
    assert from_environment(worker(0, "a:1")).notes == ()


def test_where_a_rank_of_its_own_comes_from_is_noted():
    environ = {"JOB_COMPLETION_INDEX": "1"}
    cluster = from_environment(environ, worker_hosts=HOSTS)
    assert cluster.notes == ("rank 1 comes from JOB_COMPLETION_INDEX",)


def test_a_task_index_without_hosts():
    for environ in ({}, worker(0, "a:1", "b:1")):
        message = refusal(environ, task_index=0)
        assert message.startswith("--task_index needs --worker_hosts")
        assert "--task_index=0" in message


@pytest.mark.parametrize(
    ("environ", "flags", "processes"),
    [
        (worker(0, "a:1"), {}, 1),
        (worker(0, "a:1", "b:1"), {}, 2),
        (worker(0, "a:1", "b:1", "c:1"), {}, 3),
        ({}, {"worker_hosts": HOSTS, "task_index": 0}, 2),
        (STEP, {}, 2),
    ],
)
def test_another_number_of_processes_than_expected(environ, flags, processes):
    assert from_environment(environ, **flags).processes == processes
    same = from_environment(environ, **flags, expected_workers=processes)
    assert same.processes == processes
    for expected in (processes - 1 or 4, processes + 1):
        message = refusal(environ, **flags, expected_workers=expected)
        assert f"--expected_workers={expected} " in message
        assert f"has {processes}" in message


def test_a_process_that_would_train_alone():
    """Where the description is missing, say in a pod with a misspelt manifest."""
    message = refusal({"JOB_COMPLETION_INDEX": "1"}, expected_workers=2)
    assert "--expected_workers=2 " in message
    assert "alone (1)" in message
    assert "--worker_hosts, TF_CONFIG or srun" in message
    assert from_environment({}, expected_workers=1) == Cluster()


@pytest.mark.parametrize("evaluators", [{}, {"evaluator": ["e:1"]}])
def test_an_evaluator_joins_nothing(evaluators):
    """S5: with or without an entry; it is none of the expected workers either."""
    environ = tf_config(
        {"worker": ["a:1", "b:1"], **evaluators}, {"type": "evaluator", "index": 0}
    )
    found = from_environment(environ, evaluates=True, expected_workers=2)
    assert found == Cluster(evaluates=True)
    assert (found.workers, found.processes) == ((), 1)


def test_a_worker_does_not_evaluate():
    """S5: TFJob starts the same command in all its pods."""
    assert not from_environment(worker(0, "a:1"), evaluates=True).evaluates
    assert not from_environment({}, evaluates=True).evaluates


def test_assign():
    assert assign(8, 3) == [range(0, 2), range(2, 5), range(5, 8)]
    assert assign(3, 3) == [range(0, 1), range(1, 2), range(2, 3)]
    assert assign(256, 1) == [range(0, 256)]


@pytest.mark.parametrize("k", [1, 2, 7, 8, 256])
def test_assign_is_a_balanced_partition(k):
    for devices in range(1, min(k, 40) + 1):
        parts = assign(k, devices)
        assert [w for part in parts for w in part] == list(range(k))
        assert {len(part) for part in parts} <= {k // devices, -(-k // devices)}


@pytest.mark.parametrize(("k", "devices"), [(2, 3), (0, 1), (1, 0), (4, -1)])
def test_assign_refuses_a_device_without_work(k, devices):
    with pytest.raises(ValueError, match=f"make {k} for {devices} devices"):
        assign(k, devices)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (["a:1"], [[0]]),
        (["a:1", "a:2", "b:1"], [[0, 1], [2]]),
        (["b:1", "a:1", "B:2", "a:3"], [[0, 2], [1, 3]]),
        (["[::1]:1", "[::1]:2", "[::2]:1"], [[0, 1], [2]]),
    ],
)
def test_ranks_by_host(workers, expected):
    """Hosts by name, in the order of their first ranks."""
    assert ranks_by_host(workers) == expected


TWO = Cluster(("a:1", "b:1"))


@pytest.mark.parametrize(
    ("cluster", "gpus", "devices", "names"),
    [
        (Cluster(), 0, 0, ["CPU:0"]),
        (Cluster(), 0, 2, ["CPU:0", "CPU:1"]),
        (Cluster(), 3, 0, ["GPU:0", "GPU:1", "GPU:2"]),
        (Cluster(), 3, 3, ["GPU:0", "GPU:1", "GPU:2"]),
        (TWO, 3, 2, ["GPU:0", "GPU:1"]),
        (TWO, 0, 0, ["CPU:0"]),
        (TWO, 0, 1, ["CPU:0"]),
    ],
)
def test_local_devices(cluster, gpus, devices, names, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["GPU"] * gpus)
    assert local_devices(cluster, allreduce="auto", devices=devices) == names


@pytest.mark.parametrize(
    ("cluster", "gpus", "allreduce", "devices", "said"),
    [
        (Cluster(), 0, "nccl", 0, "--allreduce=nccl needs GPUs"),  # S9
        (Cluster(), 3, "auto", 4, "--devices=4 needs as many GPUs"),
        (TWO, 0, "auto", 2, "one CPU as its device, got --devices=2"),
    ],
)
def test_devices_that_are_not_there(
    cluster, gpus, allreduce, devices, said, monkeypatch
):
    """S9: and what goes with them."""
    import tensorflow as tf

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["GPU"] * gpus)
    with pytest.raises(ValueError, match=said):
        local_devices(cluster, allreduce=allreduce, devices=devices)


@pytest.mark.parametrize(
    ("workers", "visible", "refused"),
    [
        (("a:1", "a:2"), None, True),
        (("b:1", "a:1", "A:2"), None, True),  # rank 1's host is a
        (("b:1", "a:1", "b:2"), None, False),
        (("a:1", "a:2"), "0", False),
    ],
)
def test_processes_of_a_host_do_not_share_gpus(workers, visible, refused, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["GPU"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    expectation = (
        pytest.raises(ValueError, match="2 processes on the host of a:.*CUDA_VISIBLE")
        if refused
        else contextlib.nullcontext()
    )
    with expectation:
        assert local_devices(Cluster(workers, 1), allreduce="auto", devices=0) == [
            "GPU:0"
        ]


# The rest starts TensorFlow, in processes of its own.

PRELUDE = """
import os, sys
from tf_goyal import cluster
me = cluster.from_environment(os.environ, worker_hosts=os.environ.get("HOSTS", ""))
assert "tensorflow" not in sys.modules

def add(strategy):
    import tensorflow as tf

    @tf.function
    def total():
        def replica():
            context = tf.distribute.get_replica_context()
            number = tf.cast(context.replica_id_in_sync_group + 1, tf.int64)
            return [context.all_reduce("SUM", x) for x in (number, tf.ones([3]))]
        return strategy.run(replica)

    results = map(strategy.experimental_local_results, total())
    number, ones = (values[0].numpy().tolist() for values in results)
    print(type(strategy).__name__, strategy.num_replicas_in_sync, number, ones)
"""


def start(environ: dict[str, str], script: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script],
        cwd=ROOT,
        env={
            **{name: os.environ[name] for name in os.environ if name != "TF_CONFIG"},
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes: subprocess.Popen) -> list[tuple[int, str, str]]:
    """Return code, stdout and stderr of each; none outlives the deadline."""
    try:
        ended = [process.communicate(timeout=DEADLINE) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [
        (process.returncode, *streams)
        for process, streams in zip(processes, ended, strict=True)
    ]


def free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind(("localhost", 0))
        return [f"localhost:{held.getsockname()[1]}" for held in sockets]
    finally:
        for held in sockets:
            held.close()


def test_one_process():
    """M1's devices: three logical CPUs, two of them, and one alone.

    S9: nccl without GPUs is refused, naming what there is.
    """
    script = """
try:
    cluster.strategy(me, "nccl")
except ValueError as error:
    print(error)
add(cluster.strategy(me, devices=3))
add(cluster.strategy(me, devices=2))
add(cluster.strategy(me))
"""
    [(code, out, err)] = finish(start(worker(0, "nowhere.invalid:1"), script))
    assert code == 0, err
    nccl, *sums = out.splitlines()
    assert nccl.startswith("--allreduce=nccl needs GPUs")
    assert "sees CPUs only" in nccl
    assert sums == [
        "MirroredStrategy 3 6 [3.0, 3.0, 3.0]",
        "MirroredStrategy 2 3 [2.0, 2.0, 2.0]",
        "OneDeviceStrategy 1 1 [1.0, 1.0, 1.0]",
    ]


def test_two_processes_described_in_two_ways():
    """S1: the chief by TF_CONFIG with an index as text, the other as a pod; 1 + 2."""
    chief, other = free_addresses(2)
    cluster = {"chief": [chief], "worker": [other], "evaluator": ["nowhere.invalid:1"]}
    script = 'add(cluster.strategy(me, "ring"))'
    processes = [
        start(tf_config(cluster, {"type": "chief", "index": "0"}), script),
        start({"HOSTS": f"{chief},{other}", "JOB_COMPLETION_INDEX": "1"}, script),
    ]
    for code, out, err in finish(*processes):
        assert code == 0, err
        assert out.strip() == "CollectiveAllReduceStrategy 2 3 [2.0, 2.0, 2.0]"
