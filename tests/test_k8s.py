"""The manifests of tools/k8s.py: what Kubernetes and the pods make of them."""

import dataclasses
import json
import re

import custom_resources
import pytest
import yaml
from tool_runs import load

from tf_goyal import cluster, flags

MODELS = {
    "Job": "V1Job",
    "Service": "V1Service",
    "Secret": "V1Secret",
    "NetworkPolicy": "V1NetworkPolicy",
    "JobSet": custom_resources.JOB_SET,
    "TFJob": custom_resources.TF_JOB,
}
IMAGE = "registry.example:5000/tf_goyal:1.0"
KINDS = ("indexed_job", "jobset", "tfjob")


def run(*written):
    """The tool's exit code."""
    tool = load("k8s")
    with pytest.raises(SystemExit) as ended:
        flags.run(
            tool.main,
            [tool.__file__, *written],
            define=tool.define,
            with_config=False,
            arguments="-- FLAGS",
        )
    return ended.value.code


@pytest.fixture
def rendered(capsys):
    """Objects of a run of 4 workers on the digits, by kind; flags win over these."""

    def render(*written, train=("--recipe=digits",)):
        given = ["--name=goyal", f"--image={IMAGE}", "--workers=4"]
        given += ["--checkpoint_claim=runs", *written, "--", *train]
        assert run(*given) == 0, capsys.readouterr().err
        return list(yaml.safe_load_all(capsys.readouterr().out))

    return render


def of_kind(objects, kind):
    """The only object of a kind."""
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def training_template(objects):
    """Template of the pods that train."""
    for each in objects:
        spec = each.get("spec", {})
        if each["kind"] == "TFJob":
            return spec["tfReplicaSpecs"]["Worker"]["template"]
        if each["kind"] == "JobSet":
            return spec["replicatedJobs"][0]["template"]["spec"]["template"]
        if each["kind"] == "Job" and spec.get("completionMode") == "Indexed":
            return spec["template"]
    raise AssertionError("nothing trains")


def templates(objects):
    """All pods' templates, by the objects' names."""
    found = {"trainer": training_template(objects)}
    for each in objects:
        if each["metadata"]["name"].endswith("-evaluator"):
            found["evaluator"] = each["spec"]["template"]
        if each["kind"] == "TFJob" and "Evaluator" in each["spec"]["tfReplicaSpecs"]:
            found["evaluator"] = each["spec"]["tfReplicaSpecs"]["Evaluator"]["template"]
    return found


def container(template):
    (only,) = template["spec"]["containers"]
    return only


def job_ends(policy, code, disrupted=False):
    """What a Job does when a pod fails: the rules in order, as Kubernetes goes by."""
    for rule in policy["rules"]:
        if codes := rule.get("onExitCodes"):
            assert codes["operator"] == "In" and 0 not in codes["values"]
            if code in codes["values"]:
                return rule["action"]
        for condition in rule.get("onPodConditions", ()):
            if disrupted and condition == {
                "type": "DisruptionTarget",
                "status": "True",
            }:
                return rule["action"]
    return "Count"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--workers=1"],
        ["--evaluator", "--gpus=2", "--cpu=500m", "--data_path=/mnt/imagenet"],
        ["--token_secret=mine", "--data_claim=imagenet", "--restarts=0"],
    ],
)
def test_every_field_is_published(rendered, kind, options):
    """By the models of Kubernetes' client, and the custom resources' types."""
    for each in rendered(f"--kind={kind}", *options):
        wanted = MODELS[each["kind"]]
        assert custom_resources.problems(each, wanted, each["kind"]) == []


def test_a_misspelt_field_and_a_wrong_value_are_found(rendered):
    """Of the comparison itself."""
    job = of_kind(rendered(), "Job")
    container(job["spec"]["template"])["imagee"] = "x"
    job["spec"]["completions"] = "4"
    said = "\n".join(custom_resources.problems(job, "V1Job"))
    assert "completions" in said
    job["spec"]["completions"] = 4
    said = custom_resources.problems(job, "V1Job")
    assert said == [".spec.template.spec.containers[0].imagee is no field"]
    job_set = of_kind(rendered("--kind=jobset"), "JobSet")
    job_set["spec"]["failurePolicy"]["restarts"] = 1
    job_set["spec"]["failurePolicy"]["rules"][0]["action"] = "Fail"
    said = custom_resources.problems(job_set, custom_resources.JOB_SET)
    assert said == [
        ".spec.failurePolicy.restarts is no field",
        ".spec.failurePolicy.rules[0].action must not be 'Fail'",
    ]


@pytest.mark.parametrize(
    ("kind", "hosts"), [("indexed_job", "goyal-{}"), ("jobset", "goyal-workers-0-{}")]
)
def test_each_pod_finds_itself_among_all(rendered, kind, hosts):
    """By the names that an Indexed Job and a JobSet give pods, and the pod's index."""
    train = ["--recipe=digits", "--worker_batch=8"]
    objects = rendered(f"--kind={kind}", "--workers=12", train=train)
    template = training_template(objects)
    if kind == "indexed_job":
        service = of_kind(objects, "Service")
        subdomain = template["spec"]["subdomain"]
        assert service["metadata"]["name"] == subdomain
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        selector = service["spec"]["selector"]
        assert selector.items() <= template["metadata"]["labels"].items()
        job = of_kind(objects, "Job")["spec"]
    else:
        network = of_kind(objects, "JobSet")["spec"]["network"]
        assert network["enableDNSHostnames"] and network["publishNotReadyAddresses"]
        subdomain = network["subdomain"]
        (replicated,) = of_kind(objects, "JobSet")["spec"]["replicatedJobs"]
        assert (replicated["name"], replicated["replicas"]) == ("workers", 1)
        job = replicated["template"]["spec"]
    assert (job["completions"], job["parallelism"]) == (12, 12)
    assert flags.parse(["train", *container(template)["args"]]) == []
    settings = flags.config_from_flags()
    for index in range(12):
        members = cluster.from_environment(
            {"JOB_COMPLETION_INDEX": str(index)},
            worker_hosts=settings.worker_hosts,
            task_index=settings.task_index,
            expected_workers=settings.expected_workers,
        )
        assert (members.rank, members.processes) == (index, 12)
        assert members.address == f"{hosts.format(index)}.{subdomain}:2222"


def test_a_tf_job_s_pods_read_the_operator_s_tf_config(rendered):
    """Which finds the container and its port by their names."""
    objects = rendered("--kind=tfjob", "--evaluator")
    replicas = of_kind(objects, "TFJob")["spec"]["tfReplicaSpecs"]
    assert {role: each["replicas"] for role, each in replicas.items()} == {
        "Worker": 4,
        "Evaluator": 1,
    }
    worker = container(replicas["Worker"]["template"])
    assert worker["name"] == "tensorflow"
    assert worker["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]
    evaluator = container(replicas["Evaluator"]["template"])
    assert evaluator["args"] == worker["args"]
    hosts = [f"goyal-worker-{i}.default.svc:2222" for i in range(4)]
    flags.parse(["train", *worker["args"]])
    settings = flags.config_from_flags()
    assert settings.worker_hosts == ""
    for role, index in [("worker", 3), ("evaluator", 0)]:
        description = {
            "cluster": {"worker": hosts},
            "task": {"type": role, "index": index},
            "environment": "cloud",
        }
        members = cluster.from_environment(
            {"TF_CONFIG": json.dumps(description)},
            expected_workers=settings.expected_workers,
            evaluates=True,
        )
        assert members.evaluates == (role == "evaluator")
    assert all(each["kind"] not in ("Job", "Service") for each in objects)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_worker_needs_no_cluster(rendered, kind):
    template = training_template(rendered(f"--kind={kind}", "--workers=1"))
    flags.parse(["train", *container(template)["args"]])
    settings = flags.config_from_flags()
    assert (settings.worker_hosts, settings.expected_workers) == ("", 1)
    assert "startupProbe" not in container(template)


@pytest.mark.parametrize(
    ("code", "disrupted", "action"),
    [
        (1, False, "Count"),
        (2, False, "FailJob"),
        (3, False, "FailJob"),
        (4, False, "Count"),
        (137, False, "Count"),
        (138, False, "Count"),
        (143, False, "Count"),
        (143, True, "Ignore"),
        (3, True, "FailJob"),
    ],
)
def test_an_indexed_job_restarts_by_the_exit_code(rendered, code, disrupted, action):
    """A failure counts once, since each pod has its own count (F1, F2, F4)."""
    spec = of_kind(rendered("--restarts=7"), "Job")["spec"]
    assert job_ends(spec["podFailurePolicy"], code, disrupted) == action
    assert spec["backoffLimitPerIndex"] == 7
    assert spec["maxFailedIndexes"] == 0
    assert "backoffLimit" not in spec
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    (rule, _) = spec["podFailurePolicy"]["rules"]
    name = container(spec["template"])["name"]
    assert rule["onExitCodes"]["containerName"] == name


@pytest.mark.parametrize(("code", "restarts"), [(2, False), (3, False), (138, True)])
def test_a_job_set_restarts_by_the_exit_code(rendered, code, restarts):
    """The first failure ends the Job; the reason says whether the set goes on."""
    spec = of_kind(rendered("--kind=jobset", "--restarts=7"), "JobSet")["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0
    fails = job_ends(job["podFailurePolicy"], code) == "FailJob"
    reason = "PodFailurePolicy" if fails else "BackoffLimitExceeded"
    matching = [
        rule["action"]
        for rule in spec["failurePolicy"]["rules"]
        if reason in rule["onJobFailureReasons"]
    ]
    assert matching == ([] if restarts else ["FailJobSet"])
    assert spec["failurePolicy"]["maxRestarts"] == 7


@pytest.mark.parametrize(
    ("options", "policy", "cleaned"),
    [
        ([], "ExitCode", "Running"),
        (["--restarts=0"], "Never", "Running"),
        (["--evaluator"], "ExitCode", "None"),
    ],
)
def test_a_tf_job_restarts_by_the_exit_code(rendered, options, policy, cleaned):
    """F8: done when all workers are; the evaluator still sees the last checkpoint."""
    spec = of_kind(rendered("--kind=tfjob", *options), "TFJob")["spec"]
    assert {r["restartPolicy"] for r in spec["tfReplicaSpecs"].values()} == {policy}
    assert spec["successPolicy"] == "AllWorkers"
    assert spec["runPolicy"] == {"cleanPodPolicy": cleaned}
    for replica in spec["tfReplicaSpecs"].values():
        assert "restartPolicy" not in replica["template"]["spec"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_pod_has_more_rights_than_it_needs(rendered, kind):
    """Non-root, no capabilities, nothing writable but the volumes, no API token."""
    found = templates(rendered(f"--kind={kind}", "--evaluator", "--data_claim=data"))
    assert set(found) == {"trainer", "evaluator"}
    for template in found.values():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 1000
        assert spec["securityContext"]["fsGroup"] == 1000
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container(template)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = container(template)["volumeMounts"]
        read_only = {m["mountPath"]: m.get("readOnly", False) for m in mounts}
        assert read_only == {
            "/tmp": False,
            "/dev/shm": False,
            "/checkpoints": False,
            "/data": True,
            "/var/run/tf-goyal": True,
        }
        assert {m["name"] for m in mounts} == {v["name"] for v in spec["volumes"]}


def test_volumes_and_resources(rendered):
    objects = rendered(
        "--gpus=2",
        "--cpu=64",
        "--memory=512Gi",
        "--shared_memory=8Gi",
        "--data_path=/mnt/imagenet",
        "--evaluator",
    )
    template = templates(objects)["trainer"]
    volumes = {v.pop("name"): v for v in template["spec"]["volumes"]}
    assert volumes["checkpoints"] == {"persistentVolumeClaim": {"claimName": "runs"}}
    assert volumes["data"] == {
        "hostPath": {"path": "/mnt/imagenet", "type": "Directory"}
    }
    assert volumes["shm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    assert volumes["tmp"] == {"emptyDir": {}}
    wanted = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "2"}
    resources = container(template)["resources"]
    assert resources == {"requests": wanted, "limits": wanted}
    evaluator = container(templates(objects)["evaluator"])["resources"]["limits"]
    assert evaluator == {**wanted, "nvidia.com/gpu": "1"}
    claim = rendered("--data_claim=imagenet")
    volumes = {v.pop("name"): v for v in training_template(claim)["spec"]["volumes"]}
    source = {"claimName": "imagenet", "readOnly": True}
    assert volumes["data"] == {"persistentVolumeClaim": source}


@pytest.mark.parametrize("kind", KINDS)
def test_only_pods_of_the_run_reach_each_other(rendered, kind):
    """TensorFlow's gRPC lets in whoever reaches it."""
    objects = rendered(f"--kind={kind}", "--evaluator")
    spec = of_kind(objects, "NetworkPolicy")["spec"]
    labels = spec["podSelector"]["matchLabels"]
    assert labels["app.kubernetes.io/instance"] == "goyal"
    for template in templates(objects).values():
        assert labels.items() <= template["metadata"]["labels"].items()
    assert sorted(spec["policyTypes"]) == ["Egress", "Ingress"]
    members = [{"podSelector": {"matchLabels": labels}}]
    assert spec["ingress"] == [{"from": members}]
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    assert spec["egress"] == [{"to": members}, {"ports": names}]


def test_an_object_store_is_reached_and_needs_no_volume(rendered):
    train = ["--recipe=goyal_8k", "--model_dir=gs://b/run", "--data_dir=gs://b/data"]
    objects = rendered("--checkpoint_claim=", train=train)
    _, elsewhere, *metadata = of_kind(objects, "NetworkPolicy")["spec"]["egress"]
    assert {"protocol": "TCP", "port": 443} in elsewhere["ports"]
    # The two addresses of GKE's metadata server, for the pod's credentials.
    assert [
        (block["ipBlock"]["cidr"], port["port"])
        for rule in metadata
        for block in rule["to"]
        for port in rule["ports"]
    ] == [("169.254.169.254/32", 80), ("169.254.169.252/32", 988)]
    paths = [
        m["mountPath"] for m in container(training_template(objects))["volumeMounts"]
    ]
    assert paths == ["/tmp", "/dev/shm", "/var/run/tf-goyal"]


def test_another_store_does_not_open_googles_metadata_server(rendered):
    train = ["--recipe=goyal_8k", "--model_dir=s3://b/run", "--data_dir=s3://b/data"]
    objects = rendered("--checkpoint_claim=", train=train)
    assert len(of_kind(objects, "NetworkPolicy")["spec"]["egress"]) == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("3k", 3000), ("2Ki", 2048), ("5M", 5 * 10**6), ("1Gi", 2**30)],
)
def test_quantities(text, count):
    assert load("k8s")._bytes(text) == count


@pytest.mark.parametrize(
    "written",
    [
        ["--data_path=/mnt/image..net/a b/", "--data_claim="],
        ["--image=ghcr.io/Org/tf_goyal:v1.0@sha256:0aF"],
        ["--checkpoint_claim=runs.of-me.1"],
        ["--memory=1Gi", "--shared_memory=1023Mi"],
        ["--workers=1", "--", "--recipe=digits", "--devices=2"],
        ["--", "--recipe=digits", "--resume=must"],
        ["--", "--recipe=digits", "--model_dir=gs://b/run..1/$x"],
    ],
)
def test_what_is_odd_but_good(rendered, written):
    written, _, train = " ".join(written).partition("-- ")
    options = [f"--{each.strip()}" for each in f" {written}".split(" --")[1:]]
    assert rendered(*options, train=train.split() or ["--recipe=digits"])


def test_the_token_is_a_secret_and_nowhere_else(rendered):
    objects = rendered("--evaluator")
    secret = objects.pop(0)
    token = secret["stringData"]["token"]
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert token not in yaml.safe_dump(objects)
    template = training_template(objects)
    volumes = {v["name"]: v for v in template["spec"]["volumes"]}
    assert volumes["token"]["secret"]["secretName"] == secret["metadata"]["name"]
    assert volumes["token"]["secret"]["items"] == [{"key": "token", "path": "token"}]
    assert "--run_token_file=/var/run/tf-goyal/token" in container(template)["args"]
    assert rendered()[0]["stringData"]["token"] != token
    theirs = rendered("--token_secret=mine")
    assert "Secret" not in [each["kind"] for each in theirs]
    volumes = {v["name"]: v for v in training_template(theirs)["spec"]["volumes"]}
    assert volumes["token"]["secret"]["secretName"] == "mine"


def test_times_follow_the_training_s_flags(rendered):
    """30 s after --grace_seconds a pod is killed; a start may take 10 minutes more."""
    template = training_template(rendered())
    assert template["spec"]["terminationGracePeriodSeconds"] == 30 + 30
    assert "--start_timeout=1800" in container(template)["args"]
    train = ["--recipe=digits", "--grace_seconds=90.5", "--start_timeout=60"]
    template = training_template(rendered(train=train))
    assert template["spec"]["terminationGracePeriodSeconds"] == 91 + 30
    assert "--start_timeout=1800" not in container(template)["args"]
    assert container(template)["startupProbe"] == {
        "tcpSocket": {"port": 2222},
        "periodSeconds": 10,
        "failureThreshold": 66,
    }


def test_the_flags_of_the_training_are_passed_on_and_completed(rendered):
    train = ["--recipe=goyal_256", "--seed", "7", "--noverify_records"]
    objects = rendered("--data_claim=imagenet", "--evaluator", train=train)
    first = container(training_template(objects))
    assert first["command"] == ["python", "-m", "tf_goyal.train"]
    assert first["image"] == IMAGE
    assert first["args"][: len(train)] == train
    flags.parse(["train", *first["args"]])
    settings = flags.config_from_flags()
    assert settings.model_dir == "/checkpoints/goyal"
    assert settings.data_dir == "/data"
    assert (settings.seed, settings.global_batch) == (7, 256)
    second = container(templates(objects)["evaluator"])
    flags.parse(["train", *second["args"]])
    assert flags.config_from_flags() == dataclasses.replace(
        settings, worker_hosts="", expected_workers=0, run_token_file=""
    )
    assert second["command"] == first["command"]
    environment = {each["name"]: each["value"] for each in second["env"]}
    assert cluster.from_environment(environment, evaluates=True).evaluates


def test_a_file_for_each_object(capsys, tmp_path):
    """For its owner alone, since one is the token; never over other files."""
    folder = tmp_path / "new" / "run"
    written = ["--name=goyal", f"--image={IMAGE}", "--checkpoint_claim=runs"]
    written += [f"--out={folder}", "--evaluator", "--", "--recipe=digits"]
    assert run(*written) == 0
    files = sorted(folder.iterdir())
    assert capsys.readouterr().out.split() == [str(path) for path in files]
    assert [path.name for path in files] == [
        "0-secret-goyal-token.yaml",
        "1-networkpolicy-goyal.yaml",
        "2-service-goyal.yaml",
        "3-job-goyal.yaml",
        "4-job-goyal-evaluator.yaml",
    ]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert all(yaml.safe_load(path.read_text())["kind"] for path in files)
    assert run(*written) == 2
    assert f"{folder} has files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "train", "message"),
    [
        (["--name=Goyal"], [], "--name must be a-z, 0-9 and -"),
        (["--name=8k"], [], "--name must be a-z, 0-9 and -"),
        (["--name=a_b"], [], "--name must be a-z, 0-9 and -"),
        (["--name=goyal-"], [], "--name must be a-z, 0-9 and -"),
        (["--name=goyal\n"], [], "--name must be a-z, 0-9 and -"),
        (["--image="], [], "--image must be an image"),
        (["--image=a b"], [], "--image must be an image"),
        (["--workers=0"], [], "workers"),
        (["--gpus=-1"], [], "gpus"),
        (["--cpu=0"], [], "--cpu must be cores"),
        (["--memory=16 GB"], [], "--memory must be bytes"),
        (["--shared_memory=2gi"], [], "--shared_memory must be bytes"),
        (["--checkpoint_claim=Runs"], [], "--checkpoint_claim must be the name"),
        (["--token_secret=a/b"], [], "--token_secret must be the name"),
        (["--data_path=mnt"], [], "--data_path must be a folder"),
        (["--data_claim=a", "--data_path=/b"], [], "give one of them"),
        (["--checkpoint_claim="], [], "name it with --checkpoint_claim"),
        ([], ["--model_dir=/home/run"], "--model_dir must be a folder in /checkpoints"),
        ([], ["--model_dir=/checkpoints/../run"], "--model_dir must be a folder in"),
        ([], ["--model_dir=/checkpoints2/run"], "--model_dir must be a folder in"),
        ([], ["--dataset=imagenet"], "--data_dir is required"),
        ([], ["--dataset=imagenet", "--data_dir=/data"], "--data_claim or --data_path"),
        ([], ["--worker_hosts=a:1"], "--worker_hosts is set by this tool"),
        ([], ["--task_index=0"], "--task_index is set by this tool"),
        ([], ["--expected_workers=4"], "--expected_workers is set by this tool"),
        ([], ["--run_token_file=a"], "--run_token_file is set by this tool"),
        ([], ["--flagfile=a"], "--flagfile names a file that the pods do not have"),
        ([], ["--grace_seconds=0"], "--grace_seconds must be more than 0"),
        ([], ["--epochs=-1"], "--epochs must be at least 0"),
        ([], ["--global_batch=9"], "--global_batch must be a multiple"),
        (["--workers=9"], [], "every device needs a virtual worker"),
        (["--gpus=3"], [], "make 8 for 12 devices"),
        (["--gpus=3"], ["--devices=4"], "make 8 for 16 devices"),
        (["--gpus=1"], ["--devices=2"], "--devices=2 needs as many GPUs"),
        ([], ["--devices=2"], "use more --workers instead"),
        ([], ["--allreduce=nccl"], "--allreduce=nccl needs GPUs, got --gpus=0"),
        ([], ["--resume=never"], "--resume=never refuses"),
        (["--workers=65537"], [], "--workers must be at most 65536"),
        (["--shared_memory=17Gi"], [], "--shared_memory is a part of --memory"),
        (["--shared_memory=16Gi"], [], "--shared_memory is a part of --memory"),
        (["--memory=1"], [], "--memory must be at least 1Gi"),
        (["--memory=1G"], [], "--memory must be at least 1Gi"),
        (["--data_path=/"], [], "--data_path must be a folder of a node"),
        (["--data_path=//"], [], "--data_path must be a folder of a node"),
        (["--data_path=/a/../../etc"], [], "--data_path must be a folder of a node"),
        (["--data_path=/a/.."], [], "--data_path must be a folder of a node"),
        (["--image=регистр/x"], [], "--image must be an image"),
        (["--image=$(HOME)/x"], [], "--image must be an image"),
        (["--checkpoint_claim=a..b"], [], "--checkpoint_claim must be the name"),
        (["--checkpoint_claim=a.-b"], [], "--checkpoint_claim must be the name"),
        (["--token_secret=" + 254 * "a"], [], "--token_secret must be the name"),
        ([], ["--model_dir=/checkpoints/$(HOME)"], "must not hold $(, which Kubern"),
        ([], ["--model_dir=foo://../b"], "--model_dir must be a folder in"),
        ([], ["--model_dir=gs:///b"], "--model_dir must be a folder in"),
        ([], ["--model_dir=gs://b/../c"], "--model_dir must be a folder in"),
        ([], ["--model_dir=/checkpoints/a://b"], "--model_dir must be a folder in"),
        ([], ["--global_batch=2048"], "the training set must have at least"),
        ([], ["--no_such_flag"], "no_such_flag"),
        ([], ["word"], "train takes flags only"),
    ],
)
def test_refusals(capsys, written, train, message):
    given = ["--name=goyal", f"--image={IMAGE}", "--workers=4"]
    given += ["--checkpoint_claim=runs", *written, "--", "--recipe=digits", *train]
    assert run(*given) == 2
    output, errors = capsys.readouterr()
    assert message in errors
    assert (output, errors.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("kind", "workers", "longest"),
    [
        ("indexed_job", 10, 63 - len("-evaluator-0-abcde")),
        ("jobset", 1, 63 - len("-evaluator-0-abcde")),
        ("jobset", 1000, 63 - len("-workers-0-999-abcde")),
        ("jobset", 1001, 63 - len("-workers-0-1000-abcde")),
        ("tfjob", 1000, 63 - len("-evaluator-0-abcde")),
        ("tfjob", 100000, 63 - len("-worker-99999-abcde")),
    ],
)
def test_the_longest_name(capsys, kind, workers, longest):
    """A name of DNS has 63 characters; Kubernetes adds role, index and -abcde."""
    written = [f"--image={IMAGE}", f"--kind={kind}", f"--workers={workers}"]
    written += ["--checkpoint_claim=runs"]
    batch = ["--", "--dataset=tfrecord", "--model_dir=gs://run", "--data_dir=gs://data"]
    batch += ["--worker_batch=1", "--global_batch=100000"]
    for characters, code in ((longest, 0), (longest + 1, 2)):
        name = "n" * characters
        given = [f"--name={name}", *written, *batch]
        assert run(*given) == code
    assert "shorten it by 1" in capsys.readouterr().err
