"""python -m tf_goyal.train: one process of a run.

The cluster comes from TF_CONFIG; without it this process trains alone. What can be
refused is refused, with exit code 2, before TensorFlow starts.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from tf_goyal import cluster, flags, preflight, provenance, resume, start, storage
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config

_OTHERS_SECONDS = 3.0  # for the others to say what they miss, before we are missed
DONE, INPUT_FAILED, PEER_LOST = 0, 3, 138  # exit codes; the trainer has more


def main(_: list[str]) -> int:
    """Checks everything, builds, trains. Returns the exit code.

    Raises:
      ValueError: the input is refused.
    """
    settings = flags.config_from_flags()
    members = cluster.from_environment(os.environ)
    data = preflight.check(settings, members.processes)
    arrays, manifest = resume.last_checkpoint(settings, data)
    if manifest["step"] >= settings.total_steps(len(data.train)):
        print(f"already done: {settings.model_dir} is at step {manifest['step']}")
        return DONE
    if members.is_chief:
        storage.trial_write(Path(settings.model_dir))

    # From here on TensorFlow runs.
    start.tensorflow()
    from tf_goyal import build

    description = provenance.describe(settings, data, members.processes)
    trainer = build.trainer(
        settings,
        members,
        data,
        metadata=description,
        lost=lambda why: _leave(trainer, members, why, after=_OTHERS_SECONDS),
        broken_records=manifest["broken_records"],
    )
    trainer.log.write(
        "event", event="start", step=manifest["step"], notes=list(members.notes)
    )
    if arrays:
        trainer.restore(arrays)
    if members.is_chief:
        provenance.write(settings.model_dir, description)
        print(_headline(settings, trainer, manifest["step"]), flush=True)
    return _train(trainer, manifest, _alike(settings, description, manifest), members)


def _alike(
    settings: Config, description: dict[str, Any], manifest: dict[str, Any]
) -> dict[str, str]:
    """What must be the same in every process, by the name that a person knows it by.

    The paths need not be; what is there must. Nor need what fits one machine and not
    another.
    """
    own = {"model_dir", "data_dir", "cache", "input_threads", "prefetch"}
    fields = json.loads(settings.to_json())
    said = {f"--{name}": value for name, value in fields.items() if name not in own}
    said |= {name.replace("_", " "): v for name, v in description["derived"].items()}
    said |= {f"version of {name}": v for name, v in description["versions"].items()}
    said["step of the checkpoint"] = manifest["step"]
    return {name: json.dumps(value) for name, value in said.items()}


def _headline(settings: Config, trainer: Any, first_step: int) -> str:
    """What begins, in one line for a person."""
    k, n, devices = (
        settings.virtual_workers,
        settings.worker_batch,
        trainer.placement.devices,
    )
    rate = f"learning rate {settings.scaled_lr:g}"
    if settings.warms_up:
        rate += f" after a warmup from {settings.base_lr:g}"
    return (
        f"{settings.model}: {settings.global_batch} images a step = {k} virtual "
        f"workers of {n}, on {devices} device{'s' if devices > 1 else ''}; {rate}; "
        f"{'goes on from' if first_step else 'starts at'} step {first_step} of "
        f"{trainer.cadence.total_steps}"
    )


def _train(
    trainer: Any, manifest: dict[str, Any], alike: dict[str, str], members: Cluster
) -> int:
    """The run, from the checkpoint on, ended with all processes alike."""
    import tensorflow as tf

    from tf_goyal.samples import InputError

    rank = f"rank {members.rank} of {members.processes}"
    try:
        if different := trainer.differences(alike):
            raise ValueError(
                f"the processes of the run differ in {', '.join(different)}: start all "
                "of them with the same flags, data, versions and --model_dir; here "
                f"{', '.join(f'{name} is {alike[name]}' for name in different)}"
            )
        trainer.log.write("event", event="all_reduce", **trainer.choose_all_reduce())
        try:
            code = trainer.train(manifest["step"], manifest["owes_evaluation"])
        except ValueError as error:  # a fault of ours, and not of the input
            raise RuntimeError("training failed") from error
        sha256 = trainer.weights_sha256()
        if trainer.differences({"weights": sha256}):
            raise RuntimeError(f"the weights differ between processes ({rank})")
    except InputError as error:
        print(f"{rank}: {error}", file=sys.stderr, flush=True)
        trainer.log.write("event", event="input_failed", why=str(error))
        trainer.log.close()
        os._exit(INPUT_FAILED)
    except tf.errors.OpError as error:
        if members.processes == 1 or not _peer_lost(error):
            raise
        _leave(trainer, members, _reason(error))
    print(f"{rank}: exit code {code}, weights_sha256 {sha256}", flush=True)
    trainer.log.close()
    return code


def _leave(trainer: Any, members: Cluster, why: str, after: float = 0.0) -> NoReturn:
    """Ends this process because a peer is lost, `after` some seconds."""
    rank = f"rank {members.rank} of {members.processes}"
    print(f"{rank}: a peer was lost: {why}", file=sys.stderr, flush=True)
    trainer.log.write("event", event="peer_lost", why=why)
    trainer.log.close()
    time.sleep(after)
    os._exit(PEER_LOST)  # a lost peer's collectives would hold the exit up


def _reason(error: Any) -> str:
    """What TensorFlow says of a lost peer, without the graph around it."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    telling = [line for line in lines if "aborted by" in line or "unhealthy" in line]
    return (telling or lines or ["TensorFlow does not say why"])[0]


def _peer_lost(error: Any) -> bool:
    """Whether an error of TensorFlow means that another process is not there."""
    import tensorflow as tf

    lost = (tf.errors.UnavailableError, tf.errors.AbortedError)
    return isinstance(error, lost) or "Collective ops is aborted" in error.message


if __name__ == "__main__":
    flags.run(main)
