"""Who takes part in a run: the environment to `Cluster`, `Cluster` to a strategy.

The cluster is described by flags (cluster_flags.py), by TF_CONFIG (tf_config.py), or by
srun (slurm_step.py); without any of them this process trains alone.

Everything but `local_devices` and `strategy` is pure Python, so that a wrong cluster is
refused before TensorFlow starts.
"""

import json
import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_goyal import cluster_flags, slurm_step, tf_config

if typing.TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class Cluster:
    """The processes of a run that train together, as one of them sees it.

    Attributes:
        workers: host:port of every process in rank order, chief first; empty when
            this process trains alone and nobody named it.
        rank: this process' place in `workers`.
        notes: what the log should say about how the description was read.
        evaluates: whether this process is no member but the evaluator, which works
            alone.
    """

    workers: tuple[str, ...] = ()
    rank: int = 0
    notes: tuple[str, ...] = ()
    evaluates: bool = False

    @property
    def processes(self) -> int:
        """How many processes train; evaluators are not counted."""
        return max(1, len(self.workers))

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the log and the checkpoints."""
        return self.rank == 0

    @property
    def address(self) -> str:
        """host:port of this process; empty when it trains alone unnamed."""
        return self.workers[self.rank] if self.workers else ""

    def to_tf_config(self) -> str:
        """TF_CONFIG for this process, in the form that TensorFlow reads.

        All processes are workers in it and the index is the rank, so that
        TensorFlow's messages ("/job:worker/task:1") name ranks.
        """
        if not self.workers:
            return "{}"
        return json.dumps(
            {
                "cluster": {"worker": list(self.workers)},
                "task": {"type": "worker", "index": self.rank},
            }
        )


def from_environment(
    environ: Mapping[str, str],
    *,
    worker_hosts: str = "",
    task_index: int = -1,
    expected_workers: int = 0,
    evaluates: bool = False,
) -> Cluster:
    """The cluster that flags, TF_CONFIG or Slurm describe; else this process alone.

    The first of them that is there is taken, in this order.

    Args:
        environ: the environment variables.
        worker_hosts: host:port of every process, as host_list.py reads it.
        task_index: this process' place in `worker_hosts`; -1: see cluster_flags.py.
        expected_workers: how many processes must train together; 0: any number.
        evaluates: whether an evaluator's task is welcome.

    Raises:
        ValueError: what is described is not a cluster that can train, this process has
            no place in it, or it is not as many processes as expected.
    """
    if worker_hosts:
        cluster = _from_flags(environ, worker_hosts, task_index)
    elif task_index != -1:
        raise ValueError(
            "--task_index needs --worker_hosts, in which it is the place of this "
            f"process, got --task_index={task_index} alone: give both or neither"
        )
    elif description := tf_config.parse(environ.get("TF_CONFIG", "")):
        cluster = _from_tf_config(environ, description, evaluates)
    elif slurm_step.in_step(environ):
        workers, rank, note = slurm_step.place(environ)
        cluster = Cluster(workers, rank, (note,))
    else:
        slurm_step.check_alone(environ)
        cluster = Cluster()
    if not cluster.evaluates:
        _check_expected(cluster, expected_workers)
    return cluster


def _from_flags(
    environ: Mapping[str, str], worker_hosts: str, task_index: int
) -> Cluster:
    workers, rank, source = cluster_flags.place(worker_hosts, task_index, environ)
    notes = () if task_index != -1 else (f"rank {rank} comes from {source}",)
    if environ.get("TF_CONFIG", "").strip():
        notes += ("--worker_hosts is taken, TF_CONFIG is not read",)
    if slurm_step.in_step(environ):
        notes += ("--worker_hosts is taken, Slurm's step is not read",)
    return Cluster(workers, rank, notes)


def _from_tf_config(
    environ: Mapping[str, str], description: Mapping[str, Any], evaluates: bool
) -> Cluster:
    if tf_config.evaluates(description):
        if not evaluates:
            raise ValueError(
                'TF_CONFIG: task.type "evaluator" does not train: start this process '
                "with python -m tf_goyal.evaluate"
            )
        return Cluster(notes=tf_config.notes(description), evaluates=True)
    workers, rank = tf_config.place(description)
    notes = tf_config.notes(description)
    if slurm_step.in_step(environ):
        notes += ("TF_CONFIG is taken, Slurm's step is not read",)
    return Cluster(workers, rank, notes)


def _check_expected(cluster: Cluster, expected: int) -> None:
    """Refuses another number of processes than the one expected, unless that is 0."""
    if expected in (0, cluster.processes):
        return
    found = f"the cluster has {cluster.processes}"
    if not cluster.workers:
        found = (
            "this process would be alone (1): describe the cluster by --worker_hosts, "
            "TF_CONFIG or srun"
        )
    raise ValueError(
        f"--expected_workers={expected} must be the number of processes that train "
        f"together, but {found}"
    )


def assign(virtual_workers: int, devices: int) -> list[range]:
    """Which virtual workers each device carries, for all devices of the cluster.

    With k virtual workers and R devices, device r carries [r·k//R, (r+1)·k//R):
    ⌈k/R⌉ or ⌊k/R⌋ of them. `assign(8, 3)` is ranges of 2, 3 and 3.

    Raises:
        ValueError: a device would have none.
    """
    k, total = virtual_workers, devices
    if not 1 <= total <= k:
        raise ValueError(
            f"every device needs a virtual worker, but --global_batch and "
            f"--worker_batch make {k} for {total} devices: use a larger "
            "--global_batch or lower --devices"
        )
    return [range(r * k // total, (r + 1) * k // total) for r in range(total)]


def ranks_by_host(workers: Sequence[str]) -> list[list[int]]:
    """The ranks on each host.

    Args:
      workers: host:port of every process in rank order.

    Returns:
      Lists of ranks in ascending order, hosts in the order of their first ranks.

    >>> ranks_by_host(["a:1", "b:1", "a:2"])
    [[0, 2], [1]]
    """
    hosts: dict[str, list[int]] = {}
    for rank, address in enumerate(workers):
        hosts.setdefault(address.rpartition(":")[0].lower(), []).append(rank)
    return list(hosts.values())


def local_devices(cluster: Cluster, *, allreduce: str, devices: int) -> list[str]:
    """The devices that this process of a cluster trains on; changes nothing.

    Args:
        cluster: who takes part.
        allreduce: of `config.ALLREDUCE`; "nccl" needs GPUs.
        devices: devices of this process; 0: all its GPUs, else one CPU. Without
            GPUs, N stands for N logical CPUs.

    Returns:
        TensorFlow's names: GPU:0, GPU:1 and so on, or CPU:0 and so on.

    Raises:
        ValueError: the devices or the all-reduce asked for are not there.
    """
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    if allreduce == "nccl" and not gpus:
        raise ValueError(
            "--allreduce=nccl needs GPUs, but this process sees CPUs only: use "
            "--allreduce=halving_doubling, hierarchical, ring or auto"
        )
    if gpus and devices > gpus:
        raise ValueError(
            f"--devices={devices} needs as many GPUs, but this process sees {gpus}: "
            "lower --devices"
        )
    hosts = ranks_by_host(cluster.workers)
    here = next((len(host) for host in hosts if cluster.rank in host), 1)
    if gpus and here > 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
        raise ValueError(
            f"each of the {here} processes on the host of {cluster.address} needs GPUs "
            f"of its own, but this one sees all {gpus}: set CUDA_VISIBLE_DEVICES for "
            "each (-1: none), or start one process on each host"
        )
    if cluster.processes > 1 and not gpus and devices > 1:
        raise ValueError(
            "without GPUs each process of several has one CPU as its device, got "
            f"--devices={devices}: use more processes instead"
        )
    kind = "GPU" if gpus else "CPU"
    return [f"{kind}:{i}" for i in range(devices or gpus or 1)]


def strategy(
    cluster: Cluster, allreduce: str = "auto", devices: int = 0
) -> "tf.distribute.Strategy":
    """TensorFlow's strategy for the devices of this process and the cluster's.

    Starts TensorFlow's server in a run of several processes and waits there for
    the others. Call it before any other use of TensorFlow.

    Args:
        cluster: who takes part.
        allreduce: as of `local_devices`.
        devices: as of `local_devices`; logical CPUs are made here.

    Raises:
        ValueError: the devices or the all-reduce asked for are not there.
    """
    import tensorflow as tf

    names = local_devices(cluster, allreduce=allreduce, devices=devices)
    gpus = tf.config.list_physical_devices("GPU")
    if len(names) < len(gpus):
        tf.config.set_visible_devices(gpus[: len(names)], "GPU")
    if len(names) > 1 and not gpus:
        _split_cpu(len(names))
    if cluster.processes > 1:
        os.environ["TF_CONFIG"] = cluster.to_tf_config()
        return tf.distribute.MultiWorkerMirroredStrategy()
    if len(names) == 1:
        return tf.distribute.OneDeviceStrategy(names[0])
    # Logical CPUs share their memory: adding up in one place is the quickest there,
    # and other than TensorFlow's ring it allows a second strategy in the process.
    in_place = allreduce == "auto" and not gpus
    cross_device = tf.distribute.ReductionToOneDevice() if in_place else None
    return tf.distribute.MirroredStrategy(names, cross_device_ops=cross_device)


def _split_cpu(devices: int) -> None:
    """Makes this process' CPU that many logical devices, if it is not already."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or ()) < devices:
        parts = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(cpu, parts)
