"""The pod of a run: its container, volumes and rights, as Kubernetes reads them."""

import dataclasses
import math
from typing import Any

PORT = 2222  # of the rendezvous, and then of TensorFlow; TFJob's default
CONTAINER = "tensorflow"  # the name that TFJob asks for
CHECKPOINTS = "/checkpoints"
DATA = "/data"
TOKEN_FOLDER = "/var/run/tf-goyal"
TOKEN_KEY = "token"
USER = 1000  # of the Dockerfile
_LEAVING_SECONDS = 30  # after --grace_seconds, until a pod is killed
_PROBE_SECONDS = 10
_BEFORE_START_SECONDS = 600  # reading the data's index, before anything listens


@dataclasses.dataclass(frozen=True)
class Run:
    """What the manifests of a run are made from.

    Attributes:
      name: of the run, and of its objects.
      image: of its container.
      arguments: flags of `tf_goyal.train`, without those of the cluster.
      model_dir: the run's folder, as the pods see it.
      data_dir: the data set's, as the pods see it.
      workers: processes that train, one a pod.
      restarts: how often the run is started again after a loss.
      grace_seconds: in which a process that is asked to stop has saved.
      start_timeout: seconds that the processes wait for each other.
      cpu: cores of a pod.
      memory: of a pod, such as 32Gi.
      gpus: of a pod.
      shared_memory: of a pod, such as 8Gi; it is part of `memory`.
      checkpoint_claim: PersistentVolumeClaim at CHECKPOINTS; empty: none.
      data_claim: PersistentVolumeClaim at DATA; empty: none.
      data_path: folder of every node at DATA; empty: none.
      token_secret: name of the Secret with the run's token.
    """

    name: str
    image: str
    arguments: tuple[str, ...]
    model_dir: str
    data_dir: str
    workers: int
    restarts: int
    grace_seconds: float
    start_timeout: float
    cpu: str
    memory: str
    gpus: int
    shared_memory: str
    checkpoint_claim: str
    data_claim: str
    data_path: str
    token_secret: str

    @property
    def labels(self) -> dict[str, str]:
        """What every pod of the run has, and no other."""
        return {
            "app.kubernetes.io/name": "tf-goyal",
            "app.kubernetes.io/instance": self.name,
        }

    @property
    def stored_elsewhere(self) -> bool:
        """Whether the pods reach an object store, such as gs://BUCKET."""
        return "://" in self.model_dir or "://" in self.data_dir

    @property
    def stored_by_google(self) -> bool:
        """Whether that is Google's, whose credentials a pod asks the node for."""
        return any(d.startswith("gs://") for d in (self.model_dir, self.data_dir))


def trainer(run: Run, cluster: list[str], subdomain: str = "") -> dict[str, Any]:
    """Template of a pod that trains.

    Args:
      run: what it is part of.
      cluster: flags that say who takes part.
      subdomain: name of the headless Service that gives the pods their names.
    """
    template = _template(run, [*run.arguments, *cluster], gpus=run.gpus)
    (container,) = template["spec"]["containers"]
    container["ports"] = [{"name": "tfjob-port", "containerPort": PORT}]
    if run.workers > 1:
        container["startupProbe"] = _startup_probe(run)
    if subdomain:
        template["spec"]["subdomain"] = subdomain
    return template


def evaluator(run: Run, arguments: list[str]) -> dict[str, Any]:
    """Template of a pod that evaluates: on one GPU, if those that train have some.

    By the training's own flags it knows how long the run is, before there is one and
    where an earlier one was shorter; that it evaluates, TF_CONFIG tells it.

    Args:
      run: what it is part of.
      arguments: of `tf_goyal.train`.
    """
    return _template(run, arguments, gpus=min(run.gpus, 1))


def _startup_probe(run: Run) -> dict[str, Any]:
    """Starts a pod again whose start hangs, say in a volume that does not answer.

    The processes listen while they wait for each other, and TensorFlow does from then
    on. There is no probe beside it: a pod that is not ready would lose its name in
    DNS, and the heartbeats know better than a probe who is lost.
    """
    seconds = _BEFORE_START_SECONDS + run.start_timeout
    return {
        "tcpSocket": {"port": PORT},
        "periodSeconds": _PROBE_SECONDS,
        "failureThreshold": math.ceil(seconds / _PROBE_SECONDS),
    }


def _template(run: Run, arguments: list[str], gpus: int) -> dict[str, Any]:
    resources = {"cpu": run.cpu, "memory": run.memory}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
    volumes, mounts = _volumes(run)
    return {
        "metadata": {"labels": run.labels},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(run.grace_seconds)
            + _LEAVING_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": CONTAINER,
                    "image": run.image,
                    "command": ["python", "-m", "tf_goyal.train"],
                    "args": arguments,
                    "env": [{"name": "HOME", "value": "/tmp"}],
                    "resources": {"requests": resources, "limits": dict(resources)},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def _volumes(run: Run) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes of a pod, and where they are mounted."""
    token = {
        "secretName": run.token_secret,
        "defaultMode": 0o440,  # for the group, which fsGroup sets
        "items": [{"key": TOKEN_KEY, "path": TOKEN_KEY}],
    }
    shared = {"medium": "Memory", "sizeLimit": run.shared_memory}
    found = [
        ("tmp", "/tmp", {"emptyDir": {}}),
        ("shm", "/dev/shm", {"emptyDir": shared}),
        ("token", TOKEN_FOLDER, {"secret": token}),
    ]
    if claim := run.checkpoint_claim:
        source = {"persistentVolumeClaim": {"claimName": claim}}
        found.append(("checkpoints", CHECKPOINTS, source))
    if claim := run.data_claim:
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        found.append(("data", DATA, source))
    if path := run.data_path:
        found.append(("data", DATA, {"hostPath": {"path": path, "type": "Directory"}}))
    read_only = {"token", "data"}
    mounts = [
        {"name": name, "mountPath": path}
        | ({"readOnly": True} if name in read_only else {})
        for name, path, _ in found
    ]
    return [{"name": name, **source} for name, _, source in found], mounts
