"""--worker_hosts and --task_index, in pods, in Slurm steps and by hand."""

import pytest
from cluster_environments import slurm_step

from tf_goyal.cluster import from_environment

JOB = "run-[0-3].run.default.svc:2222"


def rank(worker_hosts: str, environ: dict[str, str], task_index: int = -1) -> int:
    return from_environment(
        environ, worker_hosts=worker_hosts, task_index=task_index
    ).rank


def refusal(worker_hosts: str, environ: dict[str, str], task_index: int = -1) -> str:
    with pytest.raises(ValueError) as caught:
        rank(worker_hosts, environ, task_index)
    message = str(caught.value)
    assert "\n" not in message
    return message


def pod(index: str, hostname: str = "") -> dict[str, str]:
    """What Kubernetes sets in a pod of an Indexed Job."""
    return {"JOB_COMPLETION_INDEX": index, "HOSTNAME": hostname}


@pytest.mark.parametrize("index", [0, 1, 2])
def test_by_hand(index):
    cluster = from_environment({}, worker_hosts="a:1,b:2,[::1]:3", task_index=index)
    assert cluster.workers == ("a:1", "b:2", "[::1]:3")
    assert (cluster.rank, cluster.is_chief) == (index, index == 0)
    assert cluster.notes == ()


@pytest.mark.parametrize("index", range(4))
def test_an_indexed_job(index):
    """Pods are named JOB-INDEX; the flag is the same for all of them."""
    cluster = from_environment(pod(str(index), f"run-{index}"), worker_hosts=JOB)
    assert cluster.processes == 4
    assert (cluster.rank, cluster.address) == (
        index,
        f"run-{index}.run.default.svc:2222",
    )


@pytest.mark.parametrize("job", [0, 1])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_jobset_of_two_jobs(job, index):
    """Each Job counts its pods from 0; the pod's name says which Job."""
    hosts = "run-w-[0-1]-[0-2].run:2222"
    environ = pod(str(index), f"run-w-{job}-{index}")
    assert rank(hosts, environ) == 3 * job + index


@pytest.mark.parametrize("name", ["other", "run", "", "run-1x", "un-1"])
def test_a_pod_whose_name_is_not_listed(name):
    """On the host's network HOSTNAME is the node's: the index it is."""
    assert rank(JOB, pod("2", name)) == 2


def test_a_pod_whose_name_is_listed_twice():
    assert rank("h:1,h:2", pod("1", "h")) == 1


@pytest.mark.parametrize(
    ("hosts", "name", "found"),
    [
        ("a.x:1,b.x:1", "b", 1),
        ("a:1,b:1", "b.x", 1),
        ("a.x:1,b.x:1", "B.X", 1),
        ("b.x:1,b.y:1", "b.y", 1),
        ("b:1,b.y:1", "c.y", 0),
        ("x.y:1,y:1", "y", 1),
        ("b1.x:1,b.x:1", "b", 1),
    ],
)
def test_a_name_with_more_of_its_domain_or_less(hosts, name, found):
    assert rank(hosts, pod("0", name)) == found


def test_the_flag_wins_over_the_pod():
    assert rank(JOB, pod("1", "run-1"), task_index=3) == 3


def test_a_slurm_step():
    """HOSTNAME there may be that of the machine that srun was called on."""
    environ = {**slurm_step(1, "a,b", "1(x2)", 1, 0), "HOSTNAME": "a"}
    assert rank("a:1,b:1", environ) == 1


def test_a_batch_script_has_no_rank():
    """Slurm sets SLURM_PROCID=0 there too, though it is no task of a step."""
    environ = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    assert "needs --task_index" in refusal("a:1,b:1", environ)


def test_nothing_to_take_the_rank_from():
    message = refusal("a:1,b:1", {"HOSTNAME": "a"})
    assert message.startswith("--worker_hosts needs --task_index")
    assert "JOB_COMPLETION_INDEX" in message
    assert "SLURM_PROCID" in message


@pytest.mark.parametrize("index", [-2, 4, 5])
def test_an_index_that_is_not_there(index):
    """S4's kind."""
    message = refusal(JOB, {}, index)
    assert message.startswith("--task_index must be from 0 to 3")
    assert f"got {index}" in message


@pytest.mark.parametrize("text", ["4", "-1", "", "one", "1.0", "²", "9" * 5000])
def test_a_completion_index_that_is_not_there(text):
    message = refusal(JOB, pod(text))
    assert message.startswith("JOB_COMPLETION_INDEX must be")
    assert text[:50] in message
    assert len(message) < 250


def test_one_host():
    assert rank("a:1", {}, 0) == 0
    assert "--task_index must be 0, " in refusal("a:1", {}, 1)


@pytest.mark.parametrize(
    "hosts", ["a:1,a:1", "a:1,A:01", "h[1,01,1]:1", "[::1]:1,[0::1]:1"]
)
def test_the_same_address_twice(hosts):
    """S4: two processes cannot share an address."""
    message = refusal(hosts, {}, 0)
    assert message.startswith("--worker_hosts: every process needs an address")
    assert "address 0 and address " in message


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("a:1,b:0", "address 1 must end in a port from 1 to 65535"),
        ("a:1,b:65536", "address 1 must end in a port from 1 to 65535"),
        ("a:1,b", "address 1 must end in a port from 1 to 65535"),
        ("h:[65534-65536]", "address 2 must end in a port from 1 to 65535"),
        ("a b:1", "address 0 must be host:port"),
        ("[1:3]:1", "address 0 must have an IPv6 address in its brackets"),
        ("http://a:1", "address 0 must be host:port"),
    ],
)
def test_an_address_that_is_none(hosts, said):
    """S4: port 0, and its kind; brackets with a colon are IPv6 and no range."""
    assert said in refusal(hosts, {}, 0)


@pytest.mark.parametrize("port", [1, 65535])
def test_the_outermost_ports(port):
    assert rank(f"a:{port}", {}, 0) == 0


@pytest.mark.parametrize("hosts", [" ", ",", "a:1,,b:1", "h[0-1:1"])
def test_a_list_that_is_none(hosts):
    assert refusal(hosts, {}, 0).startswith("--worker_hosts must be names")
