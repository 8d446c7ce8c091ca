"""TF_CONFIG: every form of it, read or refused."""

import json

import pytest
from cluster_environments import tf_config, worker

from tf_goyal.cluster import Cluster, from_environment


def refusal(environ: dict[str, str]) -> str:
    """The sentence that refuses this environment."""
    with pytest.raises(ValueError) as caught:
        from_environment(environ)
    message = str(caught.value)
    assert message.startswith("TF_CONFIG")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("text", [None, "", "  ", "{}", '{"environment": "cloud"}'])
def test_alone(text):
    cluster = from_environment({} if text is None else {"TF_CONFIG": text})
    assert cluster == Cluster()
    assert (cluster.processes, cluster.rank, cluster.is_chief) == (1, 0, True)
    assert cluster.address == ""
    assert cluster.to_tf_config() == "{}"


def test_workers():
    """S1: two workers."""
    first, second = (from_environment(worker(i, "a:1", "b:1")) for i in (0, 1))
    assert first.workers == second.workers == ("a:1", "b:1")
    assert (first.rank, second.rank) == (0, 1)
    assert (first.is_chief, second.is_chief) == (True, False)
    assert (first.processes, second.address) == (2, "b:1")
    assert first.notes == ()


@pytest.mark.parametrize(
    ("role", "index", "rank", "address"),
    [("chief", 0, 0, "c:1"), ("worker", 0, 1, "a:1"), ("worker", 1, 2, "b:1")],
)
def test_the_chief_has_rank_0(role, index, rank, address):
    environ = tf_config(
        {"worker": ["a:1", "b:1"], "chief": ["c:1"]}, {"type": role, "index": index}
    )
    cluster = from_environment(environ)
    assert cluster.workers == ("c:1", "a:1", "b:1")
    assert (cluster.rank, cluster.address) == (rank, address)


def test_an_evaluator_is_not_counted():
    """S5: an evaluator entry adds no worker."""
    environ = tf_config(
        {"worker": ["a:1", "b:1"], "evaluator": ["e:1"]},
        {"type": "worker", "index": 1},
    )
    assert from_environment(environ).workers == ("a:1", "b:1")


def test_a_chief_alone():
    environ = tf_config({"chief": ["c:1"]}, {"type": "chief", "index": 0})
    cluster = from_environment(environ)
    assert (cluster.processes, cluster.workers) == (1, ("c:1",))


@pytest.mark.parametrize(
    "address",
    ["[::1]:2222", "[2001:db8::1]:65535", "10.0.0.1:1", "my_host-1.example.org:02222"],
)
def test_addresses(address):
    assert from_environment(worker(0, address)).workers == (address,)


@pytest.mark.parametrize(("text", "rank"), [("0", 0), ("1", 1), (" 1 ", 1)])
def test_a_numeric_string_is_accepted_and_noted(text, rank):
    """S4: the index as text."""
    cluster = from_environment(worker(text, "a:1", "b:1"))
    assert cluster.rank == rank
    assert cluster.notes == (
        f'TF_CONFIG: task.index came as the text "{text}", read as {rank}',
    )


def test_what_is_not_read_is_noted():
    description = {
        "cluster": {"worker": ["a:1"]},
        "task": {"type": "worker", "index": 0},
        "environment": "cloud",
        "rpc_layer": "grpc",
    }
    cluster = from_environment({"TF_CONFIG": json.dumps(description)})
    assert cluster.notes == ("TF_CONFIG: rpc_layer is not read",)


def test_to_tf_config_round_trip():
    """The normalised form says the same: same ranks, index a number."""
    environ = tf_config(
        {"chief": ["c:1"], "worker": ["a:1", "b:1"], "evaluator": ["e:1"]},
        {"type": "worker", "index": "1"},
    )
    cluster = from_environment(environ)
    again = from_environment({"TF_CONFIG": cluster.to_tf_config()})
    assert (again.workers, again.rank) == (("c:1", "a:1", "b:1"), 2)
    assert again.notes == ()


@pytest.mark.parametrize(
    ("role", "named"),
    [
        ("chief", "chief"),
        ("Worker", "Worker"),
        ("", '""'),
        (None, "null"),
        (0, "0"),
        (["worker"], '["worker"]'),
    ],
)
def test_a_role_that_is_not_there(role, named):
    """S3: task.type chief, but only workers in cluster."""
    task = {"type": role, "index": 0}
    message = refusal(tf_config({"worker": ["a:1", "b:1"]}, task))
    assert "task.type" in message
    assert "(worker)" in message
    assert named in message


def test_all_training_roles_are_named():
    """S3: the roles there are."""
    cluster = {"chief": ["c:1"], "worker": ["a:1"], "evaluator": ["e:1"]}
    message = refusal(tf_config(cluster, {"type": "master", "index": 0}))
    assert "(chief, worker)" in message


@pytest.mark.parametrize("evaluators", [{}, {"evaluator": ["e:1"]}])
def test_an_evaluator_task_is_sent_to_evaluate(evaluators):
    """S5: it joins no collective."""
    cluster = {"worker": ["a:1"], **evaluators}
    message = refusal(tf_config(cluster, {"type": "evaluator", "index": 0}))
    assert "python -m tf_goyal.evaluate" in message


@pytest.mark.parametrize(
    "index", [2, -1, "2", "-1", "one", "", "0x1", "1.0", 1.0, 0.5, True, None, [0]]
)
def test_an_index_that_is_not_there(index):
    """S4: index 2 of 2, and its kind."""
    message = refusal(worker(index, "a:1", "b:1"))
    assert "task.index" in message
    assert "from 0 to 1" in message
    text = index.strip() if isinstance(index, str) else json.dumps(index)
    assert text in message


def test_an_index_of_one_process():
    assert "must be 0," in refusal(worker(1, "a:1"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a:1", "a:1"),
        ("a:1", "A:1"),
        ("a:1", "a:01"),
        ("[::1]:1", "[0:0:0:0:0:0:0:1]:1"),
    ],
)
def test_the_same_address_twice(first, second):
    """S4: two processes cannot share an address."""
    message = refusal(worker(0, first, "b:1", second))
    assert "cluster.worker[0] and cluster.worker[2]" in message
    assert second in message


def test_the_same_address_in_two_roles():
    """S4: the chief is not one of the workers."""
    cluster = {"chief": ["a:1"], "worker": ["a:1", "b:1"]}
    message = refusal(tf_config(cluster, {"type": "chief", "index": 0}))
    assert "cluster.chief[0] and cluster.worker[0]" in message


@pytest.mark.parametrize(
    "address",
    ["a:0", "a:65536", "a:-1", "a:x", "a:", "a", "a:1.5", "a: 1", "a:٣", "[::1]"],
)
def test_a_port_that_is_none(address):
    """S4: port 0, and its kind."""
    message = refusal(worker(0, "b:1", address))
    assert "cluster.worker[1]" in message
    assert "port from 1 to 65535" in message
    assert f'"{address}"' in message


@pytest.mark.parametrize(
    "address",
    ["", ":1", "::1:2222", "http://a:1", "a b:1", " a:1", "a:1,b:1", "a\n:1", "[a:1"],
)
def test_an_address_that_is_none(address):
    message = refusal(worker(0, "b:1", address))
    assert "cluster.worker[1] must be host:port" in message


@pytest.mark.parametrize("address", ["[a]:1", "[]:1", "[1.2.3.4]:1", "[::g]:1"])
def test_brackets_without_ipv6(address):
    assert "IPv6" in refusal(worker(0, address))


@pytest.mark.parametrize("address", [None, 1, ["a:1"], {"host": "a"}])
def test_an_address_that_is_no_text(address):
    assert "cluster.worker[0] must be host:port" in refusal(worker(0, address))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{'cluster': {}}", "line 1, column 2"),
        ('{"cluster":\n {"worker": ["a:1",]}}', "line 2"),
        ('{"cluster"', "line 1, column 11"),
        ("tf_config.json", "line 1, column 1"),
    ],
)
def test_broken_json(text, place):
    """S4: where it is broken."""
    message = refusal({"TF_CONFIG": text})
    assert "not valid JSON" in message
    assert place in message


@pytest.mark.parametrize("text", ["[]", "null", "0", '"worker"', "true"])
def test_json_that_is_no_object(text):
    message = refusal({"TF_CONFIG": text})
    assert "object" in message
    assert text in message


def test_a_name_twice_in_json():
    assert '"worker"' in refusal(
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}}'}
    )


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"worker": []}, ["cluster.worker", "empty"]),
        ({"chief": ["c:1"], "worker": []}, ["cluster.worker", "empty"]),
        ({}, ["worker", "[]"]),
        ({"evaluator": ["e:1"]}, ["worker", "evaluator"]),
        ({"worker": ["a:1"], "ps": ["p:1"]}, ["cluster.ps", "parameter servers"]),
        ({"worker": ["a:1"], "ps": []}, ["cluster.ps"]),
        ({"master": ["a:1"]}, ["chief, worker, evaluator", "master"]),
        ({"chief": ["a:1", "b:1"]}, ["cluster.chief", "2", "b:1"]),
        ({"worker": {"1": "b:1"}}, ["cluster.worker", "sparse", "b:1"]),
        ({"worker": "a:1"}, ["cluster.worker", "list", '"a:1"']),
        ({"worker": None}, ["cluster.worker", "null"]),
        (["a:1"], ["cluster must be an object", "a:1"]),
        (None, ["cluster must be an object", "null"]),
    ],
)
def test_a_cluster_that_is_none(cluster, said):
    """S4: empty worker list, ps role, and their kind."""
    message = refusal(tf_config(cluster, {"type": "worker", "index": 0}))
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ({"index": 0}, "task.type"),
        ({"type": "worker"}, "task.index"),
        ({}, "task.type"),
        (None, "task must be an object"),
        ("worker", "task must be an object"),
    ],
)
def test_a_task_that_is_none(task, named):
    assert named in refusal(tf_config({"worker": ["a:1"]}, task))


@pytest.mark.parametrize("missing", ["cluster", "task"])
def test_a_half_description(missing):
    description = json.loads(worker(0, "a:1")["TF_CONFIG"])
    del description[missing]
    message = refusal({"TF_CONFIG": json.dumps(description)})
    assert f"{missing} is missing" in message


def test_a_long_value_is_cut():
    message = refusal(tf_config(["a:1"] * 1000, {"type": "worker", "index": 0}))
    assert len(message) < 250


@pytest.mark.parametrize("index", [1, "1", -1, None])
def test_a_second_evaluator(index):
    """S5: one evaluates; two would write the same log."""
    environ = tf_config({"worker": ["a:1"]}, {"type": "evaluator", "index": index})
    with pytest.raises(ValueError, match="task.index must be 0, since one evaluator"):
        from_environment(environ, evaluates=True)


def test_deep_nesting():
    message = refusal({"TF_CONFIG": '{"cluster":' + "[" * 100_000})
    assert "nested" in message
