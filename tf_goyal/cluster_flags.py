"""--worker_hosts and --task_index: a cluster from flags, the same for all processes.

    --worker_hosts=run-[0-3].run.default.svc:2222

names the four pods of a Kubernetes Indexed Job `run` behind a headless Service `run`,
and --worker_hosts=run-w-0-[0-3].run:2222 those of a JobSet `run` with one Job `w`. The
rank is the place in the list. Where --task_index is not given it is found out:

* in a pod of an Indexed Job or JobSet (JOB_COMPLETION_INDEX is set), from the pod's own
  name (HOSTNAME) if the list has it once, which is right for a JobSet of several Jobs
  too; else it is the index of the pod in its Job;
* in a Slurm step it is SLURM_PROCID.
"""

from collections.abc import Mapping

from tf_goyal import host_list, host_port


def place(
    worker_hosts: str, task_index: int, environ: Mapping[str, str]
) -> tuple[tuple[str, ...], int, str]:
    """Who trains together, and which of them this process is.

    Args:
        worker_hosts: host:port of every process, as host_list.py reads it.
        task_index: rank of this process; -1: find it out.
        environ: the environment variables.

    Returns:
        host:port of every process in rank order, this process' rank, and where the
        rank comes from.

    Raises:
        ValueError: an address is none or is there twice, or the rank is not known or
            not in the list.
    """
    workers = tuple(host_list.expand(worker_hosts, "--worker_hosts"))
    host_port.check(
        "--worker_hosts", [(f"address {i}", worker) for i, worker in enumerate(workers)]
    )
    source, rank = _rank(workers, task_index, environ)
    if not 0 <= rank < len(workers):
        allowed = "0" if len(workers) == 1 else f"from 0 to {len(workers) - 1}"
        raise ValueError(
            f"{source} must be {allowed}, since --worker_hosts lists {len(workers)}, "
            f"got {rank}"
        )
    return workers, rank, source


def _rank(
    workers: tuple[str, ...], task_index: int, environ: Mapping[str, str]
) -> tuple[str, int]:
    """Where the rank comes from, and the rank."""
    if task_index != -1:
        return "--task_index", task_index
    if "JOB_COMPLETION_INDEX" in environ:
        mine = _places(workers, environ.get("HOSTNAME", ""))
        if len(mine) == 1:
            return "HOSTNAME", mine[0]
        return "JOB_COMPLETION_INDEX", _number(environ, "JOB_COMPLETION_INDEX")
    if "SLURM_STEP_ID" in environ and "SLURM_PROCID" in environ:
        return "SLURM_PROCID", _number(environ, "SLURM_PROCID")
    raise ValueError(
        "--worker_hosts needs --task_index, this process' place in it from 0, since "
        "there is neither JOB_COMPLETION_INDEX (Kubernetes) nor SLURM_PROCID (srun) to "
        "take it from"
    )


def _places(workers: tuple[str, ...], hostname: str) -> list[int]:
    """The ranks on this host, which may be listed with more of its domain or less."""
    name = hostname.lower()
    hosts = [host_port.endpoint(worker, "--worker_hosts")[0] for worker in workers]
    return [
        rank
        for rank, host in enumerate(hosts)
        if f"{host}.".startswith(f"{name}.") or name.startswith(f"{host}.")
    ]


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{name} must be a whole number, got {host_port.shown(text)}")
    return int(text)
