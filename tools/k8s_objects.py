"""The objects of a run: an Indexed Job, a JobSet or a TFJob, and what goes with it.

What starts a run again, and what does not, follows the exit codes of `tf_goyal.train`:
a run that was refused (2), or whose loss is not finite (3), ends; a lost peer (138), a
wish to stop (143) and whatever kills a process start it again. All processes leave
when one is lost, so each of them counts one failure.
"""

import json
import secrets
from typing import Any

import k8s_pod
from k8s_pod import PORT, TOKEN_FOLDER, TOKEN_KEY, Run

FINAL_EXIT_CODES = [2, 3]
_TOKEN_BYTES = 32
_TOKEN_FILE = f"--run_token_file={TOKEN_FOLDER}/{TOKEN_KEY}"
_DNS_PORT, _HTTPS_PORT = 53, 443
# GKE's metadata server, which has the credentials of a pod: its address, and the one
# that it goes by in clusters without Dataplane V2.
_METADATA = (("169.254.169.254/32", 80), ("169.254.169.252/32", 988))
_SUFFIX = len("-abcde")  # what Kubernetes adds to the names of pods


def last_host(kind: str, run: Run) -> str:
    """Host name of the last worker's pod: the longest."""
    return _host(kind, run.name, str(run.workers - 1))


def longest_name(kind: str, run: Run) -> int:
    """Characters of the longest name that Kubernetes makes of the run's."""
    return max(len(last_host(kind, run)), len(f"{run.name}-evaluator-0")) + _SUFFIX


def render(
    kind: str, run: Run, *, evaluator: bool, new_token: bool
) -> list[dict[str, Any]]:
    """All objects of a run, in the order in which they are made.

    Args:
      kind: indexed_job, jobset or tfjob.
      run: what to run.
      evaluator: whether a process of its own evaluates the checkpoints.
      new_token: whether the Secret is among them, with a token made now.
    """
    objects = [_secret(run)] if new_token else []
    objects.append(_network_policy(run))
    if kind == "tfjob":
        return [*objects, _tf_job(run, evaluator)]
    if kind == "jobset":
        objects.append(_job_set(run))
    else:
        objects += [_service(run), _indexed_job(run)]
    return [*objects, _evaluation_job(run)] if evaluator else objects


def _host(kind: str, name: str, index: str) -> str:
    middle = {"indexed_job": "", "jobset": "workers-0-", "tfjob": "worker-"}[kind]
    return f"{name}-{middle}{index}"


def _cluster(kind: str, run: Run) -> list[str]:
    """Who takes part, in flags that are the same for all pods."""
    flags = [f"--expected_workers={run.workers}", _TOKEN_FILE]
    if kind == "tfjob" or run.workers == 1:
        return flags  # TFJob sets TF_CONFIG
    host = _host(kind, run.name, f"[0-{run.workers - 1}]")
    return [f"--worker_hosts={host}.{run.name}:{PORT}", *flags]


def _metadata(run: Run, name: str = "") -> dict[str, Any]:
    return {"name": name or run.name, "labels": run.labels}


def _secret(run: Run) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(run, run.token_secret),
        "type": "Opaque",
        "immutable": True,
        "stringData": {TOKEN_KEY: secrets.token_hex(_TOKEN_BYTES)},
    }


def _network_policy(run: Run) -> dict[str, Any]:
    """Lets the run's pods reach each other and DNS, and nobody else reach them.

    TensorFlow's gRPC has no authentication, and picks no fixed ports beside PORT.
    """
    members = [{"podSelector": {"matchLabels": run.labels}}]
    ports = [{"protocol": p, "port": _DNS_PORT} for p in ("UDP", "TCP")]
    if run.stored_elsewhere:
        ports.append({"protocol": "TCP", "port": _HTTPS_PORT})
    egress = [{"to": members}, {"ports": ports}]
    if run.stored_by_google:
        egress += [
            {
                "to": [{"ipBlock": {"cidr": address}}],
                "ports": [{"protocol": "TCP", "port": port}],
            }
            for address, port in _METADATA
        ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(run),
        "spec": {
            "podSelector": {"matchLabels": run.labels},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": members}],
            "egress": egress,
        },
    }


def _service(run: Run) -> dict[str, Any]:
    """Gives the pods their names, before they are ready: they wait for each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(run),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": run.labels,
            "ports": [{"name": "tensorflow", "port": PORT}],
        },
    }


def _ends_the_job() -> dict[str, Any]:
    """The rule for what no restart mends."""
    codes = {
        "containerName": k8s_pod.CONTAINER,
        "operator": "In",
        "values": FINAL_EXIT_CODES,
    }
    return {"action": "FailJob", "onExitCodes": codes}


def _indexed_job(run: Run) -> dict[str, Any]:
    """A Job whose pods are numbered.

    Failures count per index, since one loss ends every pod of the run. Counted for
    the Job they would also add up to its back-off: minutes, with 32 pods. A pod whose
    node was drained does not count; it comes back at once and waits for the others.
    """
    disrupted = {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(run),
        "spec": {
            "completionMode": "Indexed",
            "completions": run.workers,
            "parallelism": run.workers,
            "backoffLimitPerIndex": run.restarts,
            "maxFailedIndexes": 0,
            "podFailurePolicy": {"rules": [_ends_the_job(), disrupted]},
            "template": k8s_pod.trainer(run, _cluster("indexed_job", run), run.name),
        },
    }


def _job_set(run: Run) -> dict[str, Any]:
    """A JobSet of one numbered Job, whose first failure starts all pods again."""
    rule = {
        "name": "refused_or_not_finite",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    job = {
        "completionMode": "Indexed",
        "completions": run.workers,
        "parallelism": run.workers,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [_ends_the_job()]},
        "template": k8s_pod.trainer(run, _cluster("jobset", run)),
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(run),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": run.name,
                "publishNotReadyAddresses": True,
            },
            "failurePolicy": {"maxRestarts": run.restarts, "rules": [rule]},
            "replicatedJobs": [
                {"name": "workers", "replicas": 1, "template": {"spec": job}}
            ],
        },
    }


def _tf_job(run: Run, evaluator: bool) -> dict[str, Any]:
    """A TFJob, which starts a pod again on exit codes from 128 on.

    It counts no restarts of that kind: with --restarts=0 there are none, else they
    are not limited. An evaluator is left to finish when the workers are done.
    """
    policy = "ExitCode" if run.restarts else "Never"
    template = k8s_pod.trainer(run, _cluster("tfjob", run))
    replicas = {"Worker": (run.workers, template)}
    if evaluator:
        (container,) = template["spec"]["containers"]
        same = k8s_pod.evaluator(run, container["args"])
        replicas["Evaluator"] = (1, same)
    for _, each in replicas.values():
        del each["spec"]["restartPolicy"]  # the replica's rules
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": _metadata(run),
        "spec": {
            "successPolicy": "AllWorkers",
            "runPolicy": {"cleanPodPolicy": "None" if evaluator else "Running"},
            "tfReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": policy, "template": each}
                for role, (count, each) in replicas.items()
            },
        },
    }


def _evaluation_job(run: Run) -> dict[str, Any]:
    """A Job of one pod that evaluates each checkpoint, until training has ended."""
    template = k8s_pod.evaluator(run, list(run.arguments))
    (container,) = template["spec"]["containers"]
    task = {"cluster": {}, "task": {"type": "evaluator"}}
    container["env"].append({"name": "TF_CONFIG", "value": json.dumps(task)})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(run, f"{run.name}-evaluator"),
        "spec": {
            "backoffLimit": run.restarts,
            "podFailurePolicy": {"rules": [_ends_the_job()]},
            "template": template,
        },
    }
