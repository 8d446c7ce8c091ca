"""Processes of train that do not get as far as TensorFlow, or only just."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from training import DEADLINE, ROOT, recipe, started

from tf_goyal.launch import free_ports

# As `python -m tf_goyal.train`, but TensorFlow cannot be imported.
WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from tf_goyal import flags, train
flags.run(train.main)
"""


@contextlib.contextmanager
def process(arguments, rank, workers, **environment):
    """One process of train without TensorFlow, in a cluster of `workers`."""
    task = {"type": "worker", "index": rank}
    cluster = json.dumps({"cluster": {"worker": workers}, "task": task})
    started_one = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_CONFIG": cluster,
            **environment,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield started_one
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started_one.pid, signal.SIGKILL)
        started_one.wait()


def outcomes(workers, *arguments, environments=None):
    """(exit code, output) of a process for each list of flags."""
    environments = environments or [{}] * len(arguments)
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(process(each, rank, workers, **environment))
            for rank, (each, environment) in enumerate(
                zip(arguments, environments, strict=True)
            )
        ]
        outputs = [each.communicate(timeout=DEADLINE)[0] for each in processes]
    return [(p.returncode, text) for p, text in zip(processes, outputs, strict=True)]


def local(count):
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def test_a_missing_worker_is_named_in_time(data, tmp_path):
    """S2: worker 0 of 3 alone; host:port and the reason of both others, exit 2."""
    workers = [*local(2), "no-such-host.invalid:2222"]
    begun = time.monotonic()
    ((code, output),) = outcomes(
        workers, recipe(data, tmp_path / "run", start_timeout=3)
    )
    assert code == 2, output
    assert f"rank 1 ({workers[1]}): refused" in output
    assert "rank 2 (no-such-host.invalid:2222): name not resolved" in output
    assert "--start_timeout=3 s" in output
    assert time.monotonic() - begun > 3
    assert not (tmp_path / "run").exists()


def test_a_taken_port_is_named(data, tmp_path):
    """S6: one line, exit 2, and the other is told; long before --start_timeout."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        flags = recipe(data, tmp_path / "run", start_timeout=10 * DEADLINE)
        workers = [f"127.0.0.1:{port}", *local(1)]
        (code, output), (told, others_output) = outcomes(workers, flags, flags)
    assert (code, told) == (2, 2), others_output
    assert len(output.strip().splitlines()) == 1
    assert f"port {port} of" in output and "taken by another process" in output
    assert f"rank 0 ({workers[0]}) does not start: " in others_output
    assert "taken by another process" in others_output


def test_every_difference_is_told_to_all(data, tmp_path):
    """S7: names and values of the ranks, on all of them, before TensorFlow."""
    workers = local(3)
    flags = recipe(data, tmp_path / "run")
    other = recipe(data, tmp_path / "other", global_batch=64, allreduce="ring")
    for code, output in outcomes(workers, flags, other, flags):
        assert code == 2, output
        assert (
            f"--global_batch is 32 on ranks 0 ({workers[0]}), 2 ({workers[2]}), 64 on "
            f"rank 1 ({workers[1]})"
        ) in output
        assert '--allreduce is "halving_doubling" on ranks 0' in output
        assert len(output.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_what_one_process_refuses_ends_all(data, tmp_path):
    """A data set that only rank 1 lacks: nobody waits for --start_timeout."""
    workers = local(2)
    flags = recipe(data, tmp_path / "run")
    (code, output), (code_1, output_1) = outcomes(
        workers, flags, recipe(tmp_path / "nowhere", tmp_path / "run")
    )
    assert (code, code_1) == (2, 2)
    assert "/nowhere" in output_1
    assert f"rank 1 ({workers[1]}) does not start: " in output and "/nowhere" in output


def test_a_folder_that_rank_0_cannot_write_ends_all(data, tmp_path):
    """F6's kind: found by the trial write, and told to all."""
    (tmp_path / "file").write_text("")
    flags = recipe(data, tmp_path / "file" / "run")
    for code, output in outcomes(local(2), flags, flags):
        assert code == 2, output
        assert "a trial write" in output


@pytest.mark.parametrize("rank", [0, 1])
def test_members_of_two_runs_do_not_mix(data, tmp_path, rank):
    """Part 9: other run tokens, at the same addresses."""
    workers = local(2)

    def one(rank, seconds):
        flags = recipe(data, tmp_path / "run", start_timeout=seconds)
        return process(flags, rank, workers, TF_GOYAL_RUN_TOKEN="ab"[rank] * 16)

    with one(1 - rank, 10 * DEADLINE):  # it outlives the other
        _connect(workers[1 - rank])
        with one(rank, 3) as mine:
            output = mine.communicate(timeout=DEADLINE)[0]
    assert mine.returncode == 2, output
    other = workers[1 - rank]
    assert f"({other}): a process with another run token is there" in output
    assert "aaaa" not in output and "bbbb" not in output


def test_asked_to_stop_while_waiting(data, tmp_path):
    """F2, before there is anything to save: 143 at once."""
    with process(recipe(data, tmp_path / "run"), 0, local(2)) as waiting:
        time.sleep(1.5)
        waiting.send_signal(signal.SIGTERM)
        assert waiting.communicate(timeout=DEADLINE)[0] is not None
    assert waiting.returncode in (143, -signal.SIGTERM)  # or before Python was there


@pytest.mark.parametrize(("here", "asked"), [((0, 1), 0), ((0, 1), 1), ((1, 2), 2)])
def test_one_that_is_asked_to_stop_while_waiting_tells_the_others(
    data, tmp_path, here, asked
):
    """F2: one of three is missing, or rank 0; SIGTERM to one other is enough."""
    workers = local(3)
    flags = recipe(data, tmp_path / "run")
    with contextlib.ExitStack() as stack:
        waiting = []
        for rank in here:
            waiting.append(stack.enter_context(process(flags, rank, workers)))
            _connect(workers[rank])
        time.sleep(1.0)
        waiting[here.index(asked)].send_signal(signal.SIGTERM)
        outputs = [each.communicate(timeout=60)[0] for each in waiting]
    assert [each.returncode for each in waiting] == [143, 143], outputs
    for rank, output in zip(here, outputs, strict=True):
        who = "a signal" if rank == asked else f"rank {asked} ({workers[asked]})"
        assert f"asked to stop by {who}: there is nothing to save" in output


@pytest.mark.parametrize("asked", [0, 1])
def test_one_that_is_asked_to_stop_before_it_meets_tells_the_others(
    data, tmp_path, asked
):
    """F2: while it reads its data, which takes long."""
    slow = shutil.copytree(data, tmp_path / "slow")
    (slow / "labels.txt").unlink()
    os.mkfifo(slow / "labels.txt")
    workers = local(2)
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(process(flags, rank, workers))
            for rank, flags in enumerate(
                recipe(slow if rank == asked else data, tmp_path / "run")
                for rank in range(2)
            )
        ]
        _connect(workers[1 - asked])
        for _ in range(20 * DEADLINE):
            with contextlib.suppress(OSError):  # ENXIO: nobody reads yet
                writer = os.open(slow / "labels.txt", os.O_WRONLY | os.O_NONBLOCK)
                stack.callback(os.close, writer)
                break
            time.sleep(0.05)
        processes[asked].send_signal(signal.SIGTERM)
        outputs = [each.communicate(timeout=60)[0] for each in processes]
    assert [each.returncode for each in processes] == [143, 143], outputs
    who = f"rank {asked} ({workers[asked]})"
    assert f"asked to stop by {who}: there is nothing" in outputs[1 - asked]


def _connect(address):
    """Returns when somebody listens there."""
    host, port = address.split(":")
    for _ in range(20 * DEADLINE):
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), 1).close()
            return
        time.sleep(0.05)


# Elsewhere the injected resolver of test_rendezvous.py shows S8.
@pytest.mark.skipif(
    not shutil.which("unshare")
    or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode,
    reason="an /etc/hosts of one's own needs the right to unshare mounts",
)
def test_a_name_that_is_known_only_later(data, tmp_path):
    """S8: a real /etc/hosts, in which the other's name appears after some seconds.

    Without TensorFlow: both get as far as its import, which fails, and then one may
    see the other leave.
    """
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    port, other = free_ports(2)
    workers = [f"127.0.0.1:{port}", f"late-worker:{other}"]
    flags = recipe(data, tmp_path / "run")
    command = shlex.join([sys.executable, "-c", WITHOUT_TENSORFLOW, *flags])
    script = f"mount --bind {hosts} /etc/hosts && exec {command}"
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in (0, 1):
            task = {"type": "worker", "index": rank}
            config = {"cluster": {"worker": workers}, "task": task}
            one = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", script],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "TF_CONFIG": json.dumps(config),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(one.wait)
            stack.callback(one.kill)
            processes.append(one)
        time.sleep(2.5)
        assert [one.poll() for one in processes] == [None, None]
        with hosts.open("a") as file:
            file.write("127.0.0.1 late-worker\n")
        outputs = [one.communicate(timeout=DEADLINE)[0] for one in processes]
    met = "import of tensorflow halted|ModuleNotFound|a peer was lost: rank"
    for output in outputs:
        assert re.search(met, output), output


def test_a_run_by_flags_alone(data, tmp_path):
    """No TF_CONFIG: --worker_hosts, --task_index, and a token's file."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    hosts = ",".join(local(2))
    flags = recipe(
        data,
        tmp_path / "run",
        steps=2,
        worker_hosts=hosts,
        expected_workers=2,
        run_token_file=token,
    )
    ranks = [[*flags, f"--task_index={rank}"] for rank in (0, 1)]
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(started("tf_goyal.train", r)) for r in ranks]
        outputs = [each.communicate(timeout=DEADLINE)[0] for each in processes]
    assert [each.returncode for each in processes] == [0, 0], outputs
