"""The published fields of JobSet and TFJob, as far as they can be set by a manifest.

Of jobset.x-k8s.io/v1alpha2:
https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go
Of kubeflow.org/v1, common_types.go and tensorflow_types.go in:
https://github.com/kubeflow/trainer/tree/release-1.9/pkg/apis/kubeflow.org/v1

A field stands for its type: one of Python's, a set of the values allowed, a list of one
type, a dictionary of fields, or the name of a model of the Kubernetes client.
"""

from kubernetes import client

_OPERATOR = {"All", "Any"}

JOB_SET = {
    "apiVersion": {"jobset.x-k8s.io/v1alpha2"},
    "kind": {"JobSet"},
    "metadata": "V1ObjectMeta",
    "spec": {
        "replicatedJobs": [
            {
                "name": str,
                "groupName": str,
                "template": "V1JobTemplateSpec",
                "replicas": int,
                "dependsOn": [{"name": str, "status": {"Ready", "Complete"}}],
            }
        ],
        "network": {
            "enableDNSHostnames": bool,
            "subdomain": str,
            "publishNotReadyAddresses": bool,
        },
        "successPolicy": {"operator": _OPERATOR, "targetReplicatedJobs": [str]},
        "failurePolicy": {
            "maxRestarts": int,
            "restartStrategy": {"Recreate", "BlockingRecreate", "InPlaceRestart"},
            "rules": [
                {
                    "name": str,
                    "action": {
                        "FailJobSet",
                        "RestartJobSet",
                        "RestartJobSetAndIgnoreMaxRestarts",
                        "RestartJob",
                        "RestartJobAndIgnoreMaxRestarts",
                    },
                    "onJobFailureReasons": [
                        {
                            "BackoffLimitExceeded",
                            "DeadlineExceeded",
                            "FailedIndexes",
                            "MaxFailedIndexesExceeded",
                            "PodFailurePolicy",
                        }
                    ],
                    "onJobFailureMessagePatterns": [str],
                    "targetReplicatedJobs": [str],
                }
            ],
        },
        "startupPolicy": {"startupPolicyOrder": {"AnyOrder", "InOrder"}},
        "suspend": bool,
        "coordinator": {"replicatedJob": str, "jobIndex": int, "podIndex": int},
        "managedBy": str,
        "ttlSecondsAfterFinished": int,
    },
}

_REPLICA = {
    "replicas": int,
    "template": "V1PodTemplateSpec",
    "restartPolicy": {"Always", "OnFailure", "Never", "ExitCode"},
}

TF_JOB = {
    "apiVersion": {"kubeflow.org/v1"},
    "kind": {"TFJob"},
    "metadata": "V1ObjectMeta",
    "spec": {
        "runPolicy": {
            "cleanPodPolicy": {"All", "Running", "None"},
            "ttlSecondsAfterFinished": int,
            "activeDeadlineSeconds": int,
            "backoffLimit": int,
            "schedulingPolicy": {
                "minAvailable": int,
                "queue": str,
                "priorityClass": str,
                "scheduleTimeoutSeconds": int,
            },
            "suspend": bool,
        },
        "successPolicy": {"", "AllWorkers"},
        "tfReplicaSpecs": {
            role: _REPLICA for role in ("Chief", "Master", "Worker", "PS", "Evaluator")
        },
        "enableDynamicWorker": bool,
    },
}


def problems(value, wanted, path=""):
    """What in a manifest is not as published: a list of sentences."""
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            return [f"{path} must be an object"]
        unknown = [f"{path}.{name} is no field" for name in set(value) - set(wanted)]
        return unknown + [
            problem
            for name in set(value) & set(wanted)
            for problem in problems(value[name], wanted[name], f"{path}.{name}")
        ]
    if isinstance(wanted, list):
        if not isinstance(value, list):
            return [f"{path} must be a list"]
        return [
            problem
            for i, element in enumerate(value)
            for problem in problems(element, wanted[0], f"{path}[{i}]")
        ]
    if isinstance(wanted, set):
        return [] if value in wanted else [f"{path} must not be {value!r}"]
    if isinstance(wanted, str):
        return of_client(value, wanted, path)
    return [] if type(value) is wanted else [f"{path} must not be {value!r}"]


def of_client(value, model, path=""):
    """What a model of the Kubernetes client does not take, or does not know."""
    try:
        read = getattr(client, model).from_dict(value)
    except ValueError as error:
        return [f"{path}: {error}"]
    return _lost(value, read.model_dump(by_alias=True, exclude_none=True), path)


def _lost(value, read, path):
    """Where what the client read differs: it drops the fields that it does not know."""
    if isinstance(value, dict) and isinstance(read, dict):
        return [
            problem
            for name in value
            for problem in (
                _lost(value[name], read[name], f"{path}.{name}")
                if name in read
                else [f"{path}.{name} is no field"]
            )
        ]
    if isinstance(value, list) and isinstance(read, list) and len(value) == len(read):
        pairs = enumerate(zip(value, read))
        return [p for i, (a, b) in pairs for p in _lost(a, b, f"{path}[{i}]")]
    return [] if value == read else [f"{path} is {value!r}, read as {read!r}"]
