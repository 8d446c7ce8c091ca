"""Kubernetes manifests of a run, from the flags of its training.

python tools/k8s.py --image=IMAGE --name=NAME --workers=8 --gpus=8 --cpu=64
    --memory=512Gi --checkpoint_claim=RUNS --data_claim=IMAGENET
    -- --recipe=goyal_8k | kubectl apply -f -

Everything behind `--` goes to `tf_goyal.train` in each pod, and is checked here as it
would be there, as far as that is possible without the data. --kind says what runs the
pods: an Indexed Job with a headless Service (nothing to install, Kubernetes 1.29 or
newer), a JobSet, or a TFJob of Kubeflow's training operator v1. With it come a
NetworkPolicy, a Secret with a new run token, and on demand an evaluator.

In the pods the checkpoint volume is /checkpoints, with the run in /checkpoints/NAME,
and the data volume is /data, read-only; the root file system is read-only, too, and
nothing runs as root. A folder of an object store (gs://BUCKET/RUN) needs no volume.

It prints YAML for `kubectl apply -f -`, or writes a file for each object to --out.
"""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import k8s_objects
import k8s_pod
import yaml
from absl import flags as absl_flags
from k8s_pod import CHECKPOINTS, DATA

from tf_goyal import config, datasets, flags, host_list
from tf_goyal.config import Config

KINDS = ("indexed_job", "jobset", "tfjob")
# Pods of a run are not placed at once, and after a failure come back up to 10 minutes
# apart: a Job's back-off ends there.
_START_TIMEOUT = 1800
_MOST_CHARACTERS = 63  # of a label of DNS
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, as Services ask for
_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT = re.compile(rf"(?=.{{1,253}}$){_PART}(\.{_PART})*")  # RFC 1123
_IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._/:@+]*")
_NODE_PATH = re.compile(r"(/+(?!\.{1,2}(/|$))[^/\0]+)+/*")
_STORE_PATH = re.compile(
    r"[a-z][a-z0-9]*://(?!\.{1,2}(/|$))[^/]+(/(?!\.{1,2}(/|$))[^/]*)*"
)
_CPU = re.compile(r"[1-9][0-9]*m?")
_BYTES = re.compile(r"([1-9][0-9]*)([kMGTP]?|[KMGTP]i)")
_LEAST_MEMORY = 2**30  # bytes: TensorFlow alone takes half of it
_RESTARTS = (
    "Times a run is started again after a loss; a TFJob knows only 0 and without limit."
)
_OURS = ("worker_hosts", "task_index", "expected_workers", "run_token_file")


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    for name, text in (
        ("name", "Name of the run and its objects: a-z, 0-9 and -, from a letter on."),
        ("image", "Container image with this package, see Dockerfile."),
    ):
        absl_flags.DEFINE_string(name, None, text, flag_values=values, required=True)
    absl_flags.DEFINE_enum(
        "kind", KINDS[0], KINDS, "What runs the pods.", flag_values=values
    )
    for name, default, least, text in (
        ("workers", 1, 1, "Processes that train, one a pod."),
        ("gpus", 0, 0, "GPUs of a pod that trains (nvidia.com/gpu)."),
        ("restarts", 10, 0, _RESTARTS),
    ):
        absl_flags.DEFINE_integer(
            name, default, text, lower_bound=least, flag_values=values
        )
    for name, default, text in (
        ("cpu", "4", "Cores of a pod, requested and the limit: 4, or 500m."),
        ("memory", "16Gi", "Memory of a pod, requested and the limit."),
        ("shared_memory", "2Gi", "Of it for /dev/shm, which NCCL uses."),
        ("checkpoint_claim", "", f"PersistentVolumeClaim at {CHECKPOINTS}."),
        ("data_claim", "", f"PersistentVolumeClaim at {DATA}."),
        ("data_path", "", f"Or a folder of every node at {DATA}."),
        ("token_secret", "", "Secret that is there with a key token; else a new one."),
        ("out", "", "New folder for a file an object; else all are printed."),
    ):
        absl_flags.DEFINE_string(name, default, text, flag_values=values)
    absl_flags.DEFINE_bool(
        "evaluator",
        False,
        "A pod of its own evaluates each checkpoint as it comes.",
        flag_values=values,
    )


def main(arguments: list[str]) -> int:
    """Checks the flags, renders, prints or writes. Returns the exit code.

    Raises:
      ValueError: flags of the tool or of the training are refused.
    """
    given = flags.FLAGS
    _check(given)
    arguments, settings = _training(arguments, given)
    run = k8s_pod.Run(
        name=given.name,
        image=given.image,
        arguments=tuple(arguments),
        model_dir=settings.model_dir,
        data_dir=settings.data_dir,
        workers=given.workers,
        restarts=given.restarts,
        grace_seconds=settings.grace_seconds,
        start_timeout=settings.start_timeout,
        cpu=given.cpu,
        memory=given.memory,
        gpus=given.gpus,
        shared_memory=given.shared_memory,
        checkpoint_claim=given.checkpoint_claim,
        data_claim=given.data_claim,
        data_path=given.data_path,
        token_secret=given.token_secret or f"{given.name}-token",
    )
    excess = k8s_objects.longest_name(given.kind, run) - _MOST_CHARACTERS
    if excess > 0:
        raise ValueError(
            "--name must leave room for what Kubernetes adds to it for pods, such as "
            f"{k8s_objects.last_host(given.kind, run)}-abcde, in {_MOST_CHARACTERS} "
            f"characters: shorten it by {excess}"
        )
    objects = k8s_objects.render(
        given.kind, run, evaluator=given.evaluator, new_token=not given.token_secret
    )
    if given.out:
        _write(objects, Path(given.out))
    else:
        print("---\n".join(map(_yaml, objects)), end="")
    return 0


def _check(given: Any) -> None:
    """The tool's own flags, each by itself."""
    for name, pattern, wanted in (
        ("name", _LABEL, "a-z, 0-9 and -, starting with a letter, such as goyal-8k"),
        ("image", _IMAGE, "an image, such as registry/tf_goyal:1.0"),
        ("cpu", _CPU, "cores or thousandths of one, such as 4 or 500m"),
        ("memory", _BYTES, "bytes, such as 16Gi"),
        ("shared_memory", _BYTES, "bytes, such as 2Gi"),
        ("checkpoint_claim", _OBJECT, "the name of a PersistentVolumeClaim"),
        ("data_claim", _OBJECT, "the name of a PersistentVolumeClaim"),
        ("data_path", _NODE_PATH, "a folder of a node, from its root on, without .."),
        ("token_secret", _OBJECT, "the name of a Secret"),
    ):
        value = getattr(given, name)
        if not pattern.fullmatch(value) and value != given[name].default:
            raise ValueError(f"--{name} must be {wanted}, got {value!r}")
    if _bytes(given.memory) < _LEAST_MEMORY:
        raise ValueError(
            "--memory must be at least 1Gi, which TensorFlow takes before it trains, "
            f"got {given.memory}"
        )
    if _bytes(given.shared_memory) >= _bytes(given.memory):
        raise ValueError(
            "--shared_memory is a part of --memory and must leave some of it, got "
            f"--shared_memory={given.shared_memory} of --memory={given.memory}"
        )
    if given.kind != "tfjob" and given.workers > host_list.MOST:
        raise ValueError(
            f"--workers must be at most {host_list.MOST}, as many as --worker_hosts "
            f"can name, got {given.workers}"
        )
    if given.data_claim and given.data_path:
        raise ValueError(
            "--data_claim and --data_path are both given, but there is one volume at "
            f"{DATA}: give one of them"
        )


def _bytes(text: str) -> int:
    """A quantity of Kubernetes: 16Gi, 16G or 16."""
    number, unit = _BYTES.fullmatch(text).groups()
    power = "kMGTP".index(unit[0].replace("K", "k")) + 1 if unit else 0
    return int(number) * (1024 if unit.endswith("i") else 1000) ** power


def _training(arguments: list[str], given: Any) -> tuple[list[str], Config]:
    """The flags of the training, completed and checked as each pod will check them.

    Raises:
      ValueError: they are refused.
    """
    if any(re.match("--?flagfile", argument) for argument in arguments):
        raise ValueError(
            "--flagfile names a file that the pods do not have: write its flags out "
            "behind --, or use --recipe"
        )
    if expanded := [argument for argument in arguments if "$(" in argument]:
        raise ValueError(
            f"flags must not hold $(, which Kubernetes replaces in a pod, got "
            f"{expanded[0]!r}: write out what it stands for"
        )
    written = _parse(arguments)
    for name in _OURS:
        if written[name].present:
            raise ValueError(
                f"--{name} is set by this tool for each pod: leave it out behind --"
            )
    added = {
        "model_dir": f"{CHECKPOINTS}/{given.name}",
        "data_dir": DATA if given.data_claim or given.data_path else "",
        "start_timeout": _START_TIMEOUT,
    }
    arguments = arguments + [
        f"--{name}={value}"
        for name, value in added.items()
        if value and not written[name].present
    ]
    _parse(arguments)
    settings = flags.config_from_flags()
    _check_volumes(settings, given)
    if settings.grace_seconds == 0:
        raise ValueError(
            "--grace_seconds must be more than 0 in a pod, which Kubernetes kills some "
            "time after it asked it to stop, got 0: give seconds"
        )
    if settings.resume == "never":
        raise ValueError(
            "pods that start again go on from the run's checkpoints, which "
            "--resume=never refuses: leave it out, a new --name has a new folder"
        )
    images, classes = _facts(settings.dataset)
    config.validate(
        dataclasses.replace(settings, devices=settings.devices or given.gpus),
        train_images=images["train"],
        eval_images=images["validation"],
        classes=classes,
        processes=given.workers,
    )
    _check_devices(settings, given)
    return arguments, settings


def _check_devices(settings: Config, given: Any) -> None:
    """What the pods will refuse, see `cluster.local_devices`, for lack of GPUs."""
    if settings.allreduce == "nccl" and not given.gpus:
        raise ValueError(
            "--allreduce=nccl needs GPUs, got --gpus=0: give pods GPUs, or leave it out"
        )
    if given.gpus and settings.devices > given.gpus:
        raise ValueError(
            f"--devices={settings.devices} needs as many GPUs, got "
            f"--gpus={given.gpus}: leave --devices out, all GPUs of a pod are used"
        )
    if not given.gpus and given.workers > 1 and settings.devices > 1:
        raise ValueError(
            "without GPUs each of several workers has one CPU as its device, got "
            f"--devices={settings.devices} and --gpus=0: use more --workers instead"
        )


def _parse(arguments: list[str]) -> absl_flags.FlagValues:
    if rest := flags.parse(["train", *arguments]):
        raise ValueError(
            f"train takes flags only, written --name=value, got {rest[0]!r}"
        )
    return flags.FLAGS


def _check_volumes(settings: Config, given: Any) -> None:
    """Every folder is on a volume that is there, or in an object store."""
    for name, mount, there, option in (
        ("model_dir", CHECKPOINTS, given.checkpoint_claim, "--checkpoint_claim"),
        (
            "data_dir",
            DATA,
            given.data_claim or given.data_path,
            "--data_claim or --data_path",
        ),
    ):
        path = getattr(settings, name)
        if not path or _STORE_PATH.fullmatch(path):
            continue
        inside = f"{path}/".startswith(f"{mount}/") and ".." not in path.split("/")
        if not inside or "://" in path:
            raise ValueError(
                f"--{name} must be a folder in {mount}, where the pods have the "
                f"volume, or of an object store, as gs://BUCKET/RUN, got {path!r}"
            )
        if not there:
            raise ValueError(
                f"--{name}={path} is on a volume of the pods, but none is given: name "
                f"it with {option}"
            )


def _facts(dataset: str) -> tuple[dict[str, float], int]:
    """Images by split, and classes; what cannot be known here always suffices."""
    if dataset == "digits":
        data = datasets.load(dataset)
        splits = (data.train, data.validation)
        return {split.name: len(split) for split in splits}, data.num_classes
    if dataset == "imagenet":
        return dict(datasets.IMAGENET_IMAGES), datasets.IMAGENET_CLASSES
    enough = sys.maxsize
    return {"train": enough, "validation": enough}, enough


class _Dumper(yaml.SafeDumper):
    """Writes what comes twice twice, for people to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(manifest: dict[str, Any]) -> str:
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=1000)


def _write(objects: list[dict[str, Any]], folder: Path) -> None:
    """A file for each object, numbered; the owner alone reads them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ValueError(
                f"--out must be a new or empty folder, since kubectl applies all that "
                f"is in it, but {folder} has files: name another"
            )
        for number, manifest in enumerate(objects):
            name = f"{number}-{manifest['kind'].lower()}-{manifest['metadata']['name']}"
            path = folder / f"{name}.yaml"
            path.touch(mode=0o600)
            path.write_text(_yaml(manifest), encoding="utf-8")
            print(path)
    except OSError as error:
        raise ValueError(
            f"--out must be a folder that can be written, but {folder}: "
            f"{error.strerror}; name another"
        ) from error


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False, arguments="-- FLAGS of train")
