"""A Slurm step from srun's variables: one node, several, block and cyclic, GPUs."""

import pytest
from cluster_environments import slurm_step

from tf_goyal.cluster import Cluster, from_environment


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(ValueError) as caught:
        from_environment(environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


# What srun -n 2 of Slurm 22.05 sets on one node, as far as it is read.
ONE_NODE = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "vm",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NODELIST": "vm",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_NODEID": "0",
}


@pytest.mark.parametrize("rank", [0, 1])
def test_two_tasks_on_one_node(rank):
    """Job 1, step 0: port 10000 + 16."""
    local = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
    cluster = from_environment({**ONE_NODE, **local})
    assert cluster.workers == ("vm:10016", "vm:10017")
    assert cluster.rank == rank
    assert cluster.notes == (
        "Slurm: ports from 10016, by SLURM_JOB_ID=1 and SLURM_STEP_ID=0",
    )


def test_a_step_is_read_rather_than_its_job():
    """srun -n 2 in a job of 3 nodes and 8 tasks."""
    environ = slurm_step(
        1, "n[1-2]", "1(x2)", 1, 0, NTASKS="8", JOB_NODELIST="n[0-2]", JOB_NUM_NODES="3"
    )
    cluster = from_environment(environ)
    assert cluster.workers == ("n1:10112", "n2:10112")


# Nodes a, b, c with 3, 1 and 2 tasks: node and number on it of ranks 0, 1 ...
BLOCK = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1)]
CYCLIC = [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("c", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("distribution", "order"),
    [
        (None, BLOCK),
        ("*", BLOCK),
        ("block", BLOCK),
        ("block:cyclic", BLOCK),
        ("block,Pack", BLOCK),
        ("cyclic", CYCLIC),
        ("cyclic:block", CYCLIC),
        ("Cyclic,NoPack", CYCLIC),
    ],
)
@pytest.mark.parametrize("rank", range(6))
def test_distribution(distribution, order, rank):
    """7 · 16 = 112: the port of each node's first task is 10112."""
    node, local = order[rank]
    others = {} if distribution is None else {"DISTRIBUTION": distribution}
    environ = slurm_step(rank, "a,b,c", "3,1,2", "abc".index(node), local, **others)
    cluster = from_environment(environ)
    assert cluster.workers == tuple(f"{node}:{10112 + at}" for node, at in order)
    assert cluster.rank == rank


@pytest.mark.parametrize("name", ["plane", "plane=2", "arbitrary", "Plane", "new"])
def test_other_distributions(name):
    message = refusal(slurm_step(0, "a,b", "1(x2)", 0, 0, DISTRIBUTION=name))
    assert f"SLURM_DISTRIBUTION={name}" in message
    assert "--distribution=block" in message


@pytest.mark.parametrize(
    ("node", "local", "others"),
    [
        (1, 0, {}),  # cyclic, though nobody said so
        (0, 0, {}),
        (0, 1, {"DISTRIBUTION": "cyclic"}),
        (2, 1, {}),
    ],
)
def test_a_task_that_is_elsewhere(node, local, others):
    """Better no training than one whose ranks listen where nobody looks."""
    message = refusal(slurm_step(1, "a,b", "2(x2)", node, local, **others))
    assert "SLURM_PROCID=1" in message
    assert f"SLURM_NODEID is {node} and SLURM_LOCALID {local}" in message
    assert "--distribution=block" in message


@pytest.mark.parametrize(
    ("nodes", "counts", "workers"),
    [
        ("gpu[08-10]", "1(x3)", ["gpu08", "gpu09", "gpu10"]),
        ("a,b,c", "1(x2),1", ["a", "b", "c"]),
        ("a,b,c", "1,1(x1),1", ["a", "b", "c"]),
        ("r[0-1]n[1-2]", "1(x4)", ["r0n1", "r0n2", "r1n1", "r1n2"]),
    ],
)
def test_node_lists(nodes, counts, workers):
    cluster = from_environment(slurm_step(0, nodes, counts, 0, 0))
    assert [worker.split(":")[0] for worker in cluster.workers] == workers


def ports(job: int, step: int, counts: str) -> list[int]:
    environ = slurm_step(0, "a", counts, 0, 0, JOB_ID=str(job), STEP_ID=str(step))
    return [int(worker.split(":")[1]) for worker in from_environment(environ).workers]


@pytest.mark.parametrize("tasks", [1, 2, 8, 64, 4096])
def test_ports_of_neighbours_differ(tasks):
    """Steps of a job, and jobs one after another, that share a node."""
    assert ports(7, 0, str(tasks)) == ports(7, 0, str(tasks))
    taken = [set(ports(job, 0, str(tasks))) for job in (5, 6, 7, 8, 9)]
    assert len(set.union(*taken)) == 5 * tasks
    assert not taken[2] & set(ports(7, 1, str(tasks)))


@pytest.mark.parametrize(("job", "other"), [(2, 3), (15, 16), (1000, 1001)])
def test_ports_of_neighbours_with_other_numbers_of_tasks_differ(job, other):
    for tasks in range(1, 17):
        for others in range(1, 17):
            near = ports(job, 0, str(tasks)) + ports(other, 0, str(others))
            assert len(set(near)) == tasks + others


@pytest.mark.parametrize(("tasks", "first"), [(16, 10112), (17, 10119)])
def test_nodes_with_many_tasks(tasks, first):
    """7 · 16 and 7 · 17."""
    assert ports(7, 0, str(tasks)) == list(range(first, first + tasks))


@pytest.mark.parametrize("tasks", [1, 3, 4096])
@pytest.mark.parametrize("job", [0, 1, 22767, 22768, 2**32 - 1])
def test_ports_stay_below_those_of_the_system(tasks, job):
    found = ports(job, 4294967290, str(tasks))
    assert 10000 <= min(found) <= max(found) < 32768


NAMES = "STEP_NODELIST STEP_TASKS_PER_NODE STEP_NUM_TASKS PROCID NODEID LOCALID".split()


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_that_is_missing(name):
    environ = slurm_step(0, "a,b", "1(x2)", 0, 0)
    for value in (None, ""):
        broken = {**environ, f"SLURM_{name}": value}
        if value is None:
            del broken[f"SLURM_{name}"]
        assert refusal(broken).startswith(f"SLURM_{name} must be set in a Slurm step")


@pytest.mark.parametrize("name", [*NAMES[2:], "JOB_ID", "STEP_ID"])
@pytest.mark.parametrize("text", ["-1", "x", "1.0", "0x1", "²", "1" * 11])
def test_a_variable_that_is_no_number(name, text):
    message = refusal(slurm_step(0, "a,b", "1(x2)", 0, 0, **{name: text}))
    assert message == f'SLURM_{name} must be a whole number, got "{text}"'


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "0",
        "1(x0)",
        "1(x2",
        "1,,1",
        "1(2)",
        "-1",
        "4097",
        "1(x65537)",
        "4096(x17)",
        ",".join(["1(x99999)"] * 1000),
    ],
)
def test_task_counts_that_are_none(text):
    environ = slurm_step(0, "a,b", "1(x2)", 0, 0, STEP_TASKS_PER_NODE=text)
    message = refusal(environ)
    assert message.startswith("SLURM_STEP_TASKS_PER_NODE must be counts")
    assert len(message) < 250


@pytest.mark.parametrize(
    "other",
    [
        {"STEP_NODELIST": "a"},
        {"STEP_NODELIST": "a,b,c"},
        {"STEP_NUM_TASKS": "1"},
        {"STEP_NUM_TASKS": "3"},
        {"STEP_TASKS_PER_NODE": "2,1"},
    ],
)
def test_variables_that_contradict_each_other(other):
    """As they do in a heterogeneous step, whose parts know only their own nodes."""
    message = refusal(slurm_step(0, "a,b", "1(x2)", 0, 0, **other))
    assert "must agree" in message
    assert "heterogeneous" in message


def test_a_rank_beyond_the_tasks():
    message = refusal(slurm_step(2, "a,b", "1(x2)", 1, 0))
    assert message == "SLURM_PROCID must be less than SLURM_STEP_NUM_TASKS=2, got 2"


def test_a_node_list_that_is_none():
    message = refusal(slurm_step(0, "a[1-2", "1(x2)", 0, 0))
    assert message.startswith("SLURM_STEP_NODELIST must be")


def test_a_batch_script_without_srun():
    """It runs once: alone if the job has one task, else by mistake."""
    batch = {
        "SLURM_JOB_ID": "3",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_TASKS_PER_NODE": "2",
    }
    assert from_environment(batch) == Cluster()
    assert from_environment({**batch, "SLURM_NTASKS": "1"}) == Cluster()
    for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES"):
        message = refusal({**batch, name: "2"})
        assert f"{name}=2" in message
        assert "start it with srun" in message


def test_a_batch_script_of_one_task_on_two_nodes_counts_tasks():
    batch = {"SLURM_JOB_ID": "3", "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "2"}
    assert from_environment(batch) == Cluster()


def gpus(visible: str | None, on_node: str | None, counts: str = "2") -> dict[str, str]:
    environ = slurm_step(0, "a", counts, 0, 0)
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    if on_node is not None:
        environ["SLURM_GPUS_ON_NODE"] = on_node
    return environ


@pytest.mark.parametrize(
    ("visible", "on_node", "counts"),
    [
        ("0", "2", "2"),  # bound: --gpus-per-task=1
        ("0,1", "4", "2"),
        ("2,3", "4", "2"),
        ("GPU-5d1", "2", "2"),
        ("0,1", "2", "1"),  # one task has them all
        ("0,1", "1", "1"),
        (None, None, "2"),  # no GPUs
        ("0,1", None, "2"),  # not Slurm's
        ("-1", "1", "2"),  # CPU wanted
        ("", "1", "2"),
        ("NoDevFiles", "1", "2"),
    ],
)
def test_gpus_of_its_own(visible, on_node, counts):
    assert from_environment(gpus(visible, on_node, counts)).rank == 0


@pytest.mark.parametrize(
    ("visible", "on_node"),
    [("0,1", "2"), ("0", "1"), ("0,1,2", "4"), (None, "2"), ("GPU-5d1,GPU-77a", "2")],
)
def test_tasks_that_share_gpus(visible, on_node):
    message = refusal(gpus(visible, on_node))
    assert "--gpus-per-task" in message
    assert f"CUDA_VISIBLE_DEVICES={visible or ''}" in message
    assert f"SLURM_GPUS_ON_NODE={on_node}" in message
