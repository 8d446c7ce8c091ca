"""Who takes part in a run: TF_CONFIG to `Cluster`, and `Cluster` to a strategy.

TF_CONFIG is a JSON object in an environment variable, the same for all processes
but for `task`:

    {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]},
     "task": {"type": "worker", "index": 0}}

Ranks count the chief first, then the workers in their order: here a is 0, b 1, c 2.

Everything but `local_devices` and `strategy` is pure Python, so that a wrong cluster is
refused before TensorFlow starts.
"""

import ipaddress
import json
import os
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

if typing.TYPE_CHECKING:
    import tensorflow as tf

TRAINING_ROLES = ("chief", "worker")
ROLES = (*TRAINING_ROLES, "evaluator")


@dataclass(frozen=True)
class Cluster:
    """The processes of a run that train together, as one of them sees it.

    Attributes:
        workers: host:port of every process in rank order, chief first; empty when
            this process trains alone and nobody named it.
        rank: this process' place in `workers`.
        notes: what the log should say about how the description was read.
    """

    workers: tuple[str, ...] = ()
    rank: int = 0
    notes: tuple[str, ...] = ()

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


def from_environment(environ: Mapping[str, str], evaluates: bool = False) -> Cluster:
    """The cluster that TF_CONFIG describes; without it this process alone.

    Args:
        environ: the environment variables.
        evaluates: whether an evaluator's task is welcome; it works alone.

    Raises:
        ValueError: TF_CONFIG is not a cluster that can train, or this process has
            no place in it.
    """
    text = environ.get("TF_CONFIG", "").strip()
    description = _parse_json(text) if text else {}
    notes = tuple(
        f"TF_CONFIG: {name} is not read"
        for name in description
        if name not in ("cluster", "task", "environment")
    )
    if not set(description) - {"environment"}:
        return Cluster()
    for name in ("cluster", "task"):
        if name not in description:
            raise ValueError(
                f'TF_CONFIG must have "cluster" and "task", but {name} is missing: '
                "add it, or unset TF_CONFIG to train in this process alone"
            )
    task = description["task"]
    if evaluates and isinstance(task, dict) and task.get("type") == "evaluator":
        return Cluster(notes=notes)
    roles = _roles(description["cluster"])
    role, index, read_as = _task(task, roles)
    workers = roles.get("chief", ()) + roles.get("worker", ())
    rank = index + (len(roles.get("chief", ())) if role == "worker" else 0)
    return Cluster(workers, rank, notes + read_as)


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


def _parse_json(text: str) -> dict[str, Any]:
    """TF_CONFIG as a dictionary."""
    try:
        description = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"TF_CONFIG is not valid JSON at line {error.lineno}, column "
            f"{error.colno}: {error.msg}, near {text[error.pos : error.pos + 20]!r}"
        ) from None
    if not isinstance(description, dict):
        raise ValueError(f"TF_CONFIG must be a JSON object, got {_shown(description)}")
    return description


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"TF_CONFIG has {_shown(twice)} twice in one object: keep one")
    return values


def _roles(cluster: Any) -> dict[str, tuple[str, ...]]:
    """`cluster` of TF_CONFIG, checked: the addresses of each role."""
    if not isinstance(cluster, dict):
        raise ValueError(
            "TF_CONFIG: cluster must be an object from roles to lists of host:port, "
            f"got {_shown(cluster)}"
        )
    seen: dict[tuple[str, int], str] = {}
    for role, addresses in cluster.items():
        field = f"cluster.{role}"
        if role == "ps":
            raise ValueError(
                "TF_CONFIG: cluster.ps is not supported, since synchronous "
                "all-reduce has no parameter servers: leave it out (roles: "
                f"{', '.join(ROLES)})"
            )
        if role not in ROLES:
            raise ValueError(
                f"TF_CONFIG: the roles of cluster must be among {', '.join(ROLES)}, "
                f"got {_shown(role)}"
            )
        if isinstance(addresses, dict):
            raise ValueError(
                f"TF_CONFIG: {field} must list every process, but is a sparse "
                f"cluster, {_shown(addresses)}: every worker must know all the others"
            )
        if not isinstance(addresses, list):
            raise ValueError(
                f"TF_CONFIG: {field} must be a list of host:port, got "
                f"{_shown(addresses)}"
            )
        if not addresses:
            raise ValueError(
                f"TF_CONFIG: {field} must list at least one host:port, got an empty "
                "list"
            )
        for i, address in enumerate(addresses):
            here = f"{field}[{i}]"
            endpoint = _endpoint(address, here)
            if endpoint in seen:
                raise ValueError(
                    f"TF_CONFIG: every process needs an address of its own, but "
                    f"{seen[endpoint]} and {here} are both {_shown(address)}"
                )
            seen[endpoint] = here
    if len(cluster.get("chief", ())) > 1:
        raise ValueError(
            "TF_CONFIG: cluster.chief must list one host:port, got "
            f"{len(cluster['chief'])}: {_shown(cluster['chief'])}"
        )
    if not set(cluster) & set(TRAINING_ROLES):
        raise ValueError(
            "TF_CONFIG: cluster must have a worker (or a chief), got the roles "
            f"{_shown(list(cluster))}"
        )
    return {role: tuple(addresses) for role, addresses in cluster.items()}


def _endpoint(address: Any, field: str) -> tuple[str, int]:
    """host:port in a form in which equal addresses are equal.

    Hosts are names, IPv4 addresses, or IPv6 addresses in brackets: [::1]:2222.
    """
    if not isinstance(address, str):
        raise ValueError(f"TF_CONFIG: {field} must be host:port, got {_shown(address)}")
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", address)
    named = re.fullmatch(r"([A-Za-z0-9._-]+)(?::([^:]*))?", address)
    match = bracketed or named
    if not match:
        raise ValueError(
            f"TF_CONFIG: {field} must be host:port, an IPv6 address in brackets "
            f"([::1]:2222), got {_shown(address)}"
        )
    host, port = match.groups()
    if bracketed:
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise ValueError(
                f"TF_CONFIG: {field} must have an IPv6 address in its brackets, got "
                f"{_shown(address)}"
            ) from None
    digits = port or ""
    if not (re.fullmatch(r"[0-9]{1,5}", digits) and 1 <= int(digits) <= 65535):
        raise ValueError(
            f"TF_CONFIG: {field} must end in a port from 1 to 65535, got "
            f"{_shown(address)}"
        )
    return host.lower(), int(digits)


def _task(
    task: Any, roles: Mapping[str, tuple[str, ...]]
) -> tuple[str, int, tuple[str, ...]]:
    """`task` of TF_CONFIG, checked: role, index, notes for the log."""
    if not isinstance(task, dict):
        raise ValueError(
            'TF_CONFIG: task must be an object with "type" and "index", got '
            f"{_shown(task)}"
        )
    for name in ("type", "index"):
        if name not in task:
            raise ValueError(
                f"TF_CONFIG: task must have a type and an index, but task.{name} is "
                f"missing: got {_shown(task)}"
            )
    role, index = task["type"], task["index"]
    if role == "evaluator":
        raise ValueError(
            'TF_CONFIG: task.type "evaluator" does not train: start this process '
            "with python -m tf_goyal.evaluate"
        )
    training = [name for name in roles if name in TRAINING_ROLES]
    if role not in training:
        raise ValueError(
            "TF_CONFIG: task.type must be a training role of cluster "
            f"({', '.join(training)}), got {_shown(role)}"
        )
    notes: tuple[str, ...] = ()
    if isinstance(index, str) and re.fullmatch(r"[+-]?[0-9]{1,9}", index.strip()):
        notes = (
            f'TF_CONFIG: task.index came as the text "{index}", read as {int(index)}',
        )
        index = int(index)
    count = len(roles[role])
    if type(index) is not int or not 0 <= index < count:
        allowed = "0" if count == 1 else f"a whole number from 0 to {count - 1}"
        raise ValueError(
            f"TF_CONFIG: task.index must be {allowed}, since cluster.{role} lists "
            f"{count}, got {_shown(index)}"
        )
    return role, index, notes


def _shown(value: Any) -> str:
    """A piece of TF_CONFIG as it was written, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


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
