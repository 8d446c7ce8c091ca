"""The cluster that a Slurm job step is: what srun tells each of its tasks.

srun sets for every task, among others (22.05 and newer):

    SLURM_STEP_NODELIST=gpu[08-10]     the step's nodes
    SLURM_STEP_TASKS_PER_NODE=2(x2),1  how many tasks each of them has
    SLURM_STEP_NUM_TASKS=5             all tasks
    SLURM_PROCID=3                     this task: its rank,
    SLURM_NODEID=1, SLURM_LOCALID=1    its node, and its number there

Which node has which rank, srun does not say; it follows from --distribution: block
fills node after node, cyclic deals the tasks out. A batch script outside of srun runs
once, whatever the number of tasks.

Each task gets a port of its own: one for the step, from the job's and the step's number
so that two jobs on a node do not meet, plus its number on the node.
"""

import re
from collections.abc import Mapping

from tf_goyal import host_list, host_port
from tf_goyal.host_port import shown

# Below 32768, where Linux takes the ports of outgoing connections from.
_PORTS = range(10000, 32768)
_PORTS_APART = 16  # of jobs one after another; more where a node has more tasks
_COUNTS = "SLURM_STEP_TASKS_PER_NODE"
_MOST, _MOST_ON_A_NODE = 65536, 4096  # tasks
_GPU = re.compile("[0-9]|GPU-|MIG-")  # of CUDA_VISIBLE_DEVICES; -1 is none


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether this process is a task that srun started."""
    return "SLURM_STEP_ID" in environ


def check_alone(environ: Mapping[str, str]) -> None:
    """Refuses to be alone in a job of several tasks, as without srun.

    Raises:
        ValueError: it is such a job.
    """
    if "SLURM_JOB_ID" not in environ:
        return
    name = "SLURM_NTASKS" if "SLURM_NTASKS" in environ else "SLURM_JOB_NUM_NODES"
    tasks = _number(environ, name) if name in environ else 1
    if tasks > 1:
        raise ValueError(
            f"this Slurm job has several tasks ({name}={tasks}), but this process was "
            "not started by srun and would work alone: start it with srun (srun "
            "--ntasks=1 if it is to be alone)"
        )


def place(environ: Mapping[str, str]) -> tuple[tuple[str, ...], int, str]:
    """Which tasks the step has, and which of them this process is.

    Returns:
        host:port of every task in rank order, this task's rank, and what the log
        should say about the ports.

    Raises:
        ValueError: a variable is missing or the variables contradict each other, the
            distribution is neither block nor cyclic, or the tasks of a node share its
            GPUs.
    """
    nodes = host_list.expand(
        _text(environ, "SLURM_STEP_NODELIST"), "SLURM_STEP_NODELIST"
    )
    counts = _task_counts(environ)
    tasks, rank, node, local = (
        _number(environ, f"SLURM_{name}")
        for name in ("STEP_NUM_TASKS", "PROCID", "NODEID", "LOCALID")
    )
    if len(nodes) != len(counts) or sum(counts) != tasks:
        raise ValueError(
            f"Slurm's variables must agree, but SLURM_STEP_NODELIST has {len(nodes)} "
            f"nodes, SLURM_STEP_TASKS_PER_NODE {sum(counts)} tasks on {len(counts)}, "
            f"and SLURM_STEP_NUM_TASKS is {tasks}: heterogeneous steps are not "
            "supported, give --worker_hosts instead"
        )
    if rank >= tasks:
        raise ValueError(
            f"SLURM_PROCID must be less than SLURM_STEP_NUM_TASKS={tasks}, got {rank}"
        )
    distribution = environ.get("SLURM_DISTRIBUTION", "")
    where = _distribute(counts, distribution)
    if where[rank] != (node, local):
        raise ValueError(
            f"{_COUNTS}={shown(_text(environ, _COUNTS))} and "
            f"SLURM_DISTRIBUTION={distribution} make SLURM_PROCID={rank} task "
            f"{where[rank][1]} of node {where[rank][0]}, but SLURM_NODEID is {node} "
            f"and SLURM_LOCALID {local}: start it with srun --distribution=block"
        )
    _check_gpus(environ, counts[node])
    port = _first_port(environ, max(counts))
    workers = tuple(f"{nodes[node]}:{port + local}" for node, local in where)
    host_port.check(
        "SLURM_STEP_NODELIST",
        [(f"task {i}", worker) for i, worker in enumerate(workers)],
    )
    note = (
        f"Slurm: ports from {port}, by SLURM_JOB_ID={environ['SLURM_JOB_ID']} and "
        f"SLURM_STEP_ID={environ['SLURM_STEP_ID']}"
    )
    return workers, rank, note


def _task_counts(environ: Mapping[str, str]) -> list[int]:
    """Tasks of each node: 2(x2),1 is 2, 2, 1."""
    text = _text(environ, _COUNTS)
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", part)
        tasks, nodes = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
        total = sum(counts) + tasks * nodes
        if not (1 <= tasks <= _MOST_ON_A_NODE and 1 <= nodes and total <= _MOST):
            raise ValueError(
                f"{_COUNTS} must be counts such as 2(x3),1, of 1 to {_MOST_ON_A_NODE} "
                f"tasks a node and at most {_MOST} together, got {shown(text)}"
            )
        counts += [tasks] * nodes
    return counts


def _distribute(counts: list[int], distribution: str) -> list[tuple[int, int]]:
    """Node, and number on the node, of each task in rank order."""
    across_nodes = re.split("[:,=]", distribution.lower())[0]
    if across_nodes not in ("", "*", "block", "cyclic"):
        raise ValueError(
            "the tasks must be distributed over the nodes by srun --distribution=block "
            f"or cyclic, got SLURM_DISTRIBUTION={distribution}: give one of them"
        )
    places = [(node, local) for node, n in enumerate(counts) for local in range(n)]
    if across_nodes == "cyclic":
        places.sort(key=lambda place: (place[1], place[0]))
    return places


def _check_gpus(environ: Mapping[str, str], tasks: int) -> None:
    """Refuses tasks of a node that would all take the same GPUs.

    SLURM_GPUS_ON_NODE is the step's number on this node, CUDA_VISIBLE_DEVICES this
    task's: all of them, unless srun was told to bind them.
    """
    if tasks == 1 or "SLURM_GPUS_ON_NODE" not in environ:
        return
    total = _number(environ, "SLURM_GPUS_ON_NODE")
    visible = total
    if "CUDA_VISIBLE_DEVICES" in environ:
        names = environ["CUDA_VISIBLE_DEVICES"].split(",")
        visible = len([name for name in names if _GPU.match(name.strip())])
    if visible * tasks > total:
        raise ValueError(
            f"each of the {tasks} tasks of a node needs GPUs of its own, but this one "
            f"sees {visible} of the {total} (CUDA_VISIBLE_DEVICES="
            f"{environ.get('CUDA_VISIBLE_DEVICES', '')}, SLURM_GPUS_ON_NODE={total}): "
            "start it with srun --gpus-per-task=N, or with one task per node"
        )


def _first_port(environ: Mapping[str, str], tasks: int) -> int:
    """The port of the first task of each node; near jobs and steps have others."""
    apart = max(tasks, _PORTS_APART)
    number = _number(environ, "SLURM_JOB_ID") + 131 * _number(environ, "SLURM_STEP_ID")
    return _PORTS[number % (len(_PORTS) // apart) * apart]


def _text(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "")
    if not text:
        raise ValueError(
            f"{name} must be set in a Slurm step, but it is not: start with srun, give "
            "--worker_hosts, or unset SLURM_JOB_ID to train in this process alone"
        )
    return text


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _text(environ, name)
    if not re.fullmatch("[0-9]{1,10}", text):
        raise ValueError(f"{name} must be a whole number, got {shown(text)}")
    return int(text)
