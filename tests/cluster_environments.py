"""Environment variables that describe a cluster, as its tests need them."""

import json


def tf_config(cluster, task) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def worker(index, *addresses) -> dict[str, str]:
    return tf_config({"worker": list(addresses)}, {"type": "worker", "index": index})


def slurm_step(
    rank: int, nodes: str, counts: str, node: int, local: int, **others: str
) -> dict[str, str]:
    """What srun sets for a task of job 7, step 0; `others` without SLURM_.

    Args:
        rank: of the task.
        nodes: the node list.
        counts: tasks of each node, as srun writes them.
        node: number of the task's node.
        local: number of the task on its node.
        others: more variables, or other values.
    """
    tasks = 0
    for part in counts.split(","):
        each, _, times = part.partition("(x")
        tasks += int(each) * int(times.rstrip(")") or 1)
    values = {
        "JOB_ID": "7",
        "STEP_ID": "0",
        "STEP_NODELIST": nodes,
        "STEP_TASKS_PER_NODE": counts,
        "STEP_NUM_TASKS": str(tasks),
        "PROCID": str(rank),
        "NODEID": str(node),
        "LOCALID": str(local),
        **others,
    }
    return {f"SLURM_{name}": value for name, value in values.items()}
