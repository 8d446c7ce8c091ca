"""python -m tf_goyal.train: one process of a run.

The cluster comes from flags, TF_CONFIG or Slurm; without them this process trains
alone. What can be refused is refused, with exit code 2, before TensorFlow starts; so is
a start without all processes, or with processes that differ.
"""

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from tf_goyal import (
    addresses,
    checkpoint,
    cluster,
    coordination,
    evaluator,
    facts,
    files,
    flags,
    membership,
    peers,
    preflight,
    provenance,
    resume,
    start,
    storage,
)
from tf_goyal.asked import ASKED_TO_STOP, Asked
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset
from tf_goyal.peers import INPUT_FAILED, PEER_LOST, Peers
from tf_goyal.progress import say
from tf_goyal.resume import Found

_OTHERS_SECONDS = 3.0  # for the others to say what they miss, before we are missed
_NAMING_SECONDS = 5.0  # for the heartbeats to find who is lost
_SAVING_SECONDS = 10.0  # for a checkpoint that is being written
_LEAVING_SECONDS = 30.0  # for all of it, where the storage does not answer
_PORT_TAKEN = "Could not start gRPC server"  # all that TensorFlow says of it
DONE = 0  # an exit code; peers, asked and the trainer have more

_leaving = threading.Lock()  # taken once, by the thread that ends the process


def main(_: list[str]) -> int:
    """Checks everything, meets the other processes, trains. Returns the exit code.

    Raises:
      ValueError: the input is refused.
    """
    asked = Asked()
    settings = flags.config_from_flags()
    asked.grace_seconds = settings.grace_seconds
    members = cluster.from_environment(
        os.environ,
        worker_hosts=settings.worker_hosts,
        task_index=settings.task_index,
        expected_workers=settings.expected_workers,
        evaluates=True,
    )
    if members.evaluates:
        data = preflight.check(settings, processes=1)
        return evaluator.run(
            settings.model_dir,
            data_dir=settings.data_dir,
            total_steps=settings.total_steps(len(data.train)),
        )
    token = membership.read_token(settings.run_token_file, os.environ)
    asked.tell(lambda: peers.tell_stop(members.workers, members.rank, token=token))
    try:
        data = preflight.check(settings, members.processes)
        found = resume.last_checkpoint(settings, data)
    except ValueError as error:
        peers.refuse(members.workers, members.rank, token=token, why=str(error))
        raise
    manifest = found[1]
    done = manifest["step"] >= settings.total_steps(len(data.train))
    if done and not manifest["owes_evaluation"]:
        say(f"already done: {settings.model_dir} is at step {manifest['step']}")
        return DONE
    others = peers.meet(
        members.workers,
        members.rank,
        token=token,
        start_timeout=settings.start_timeout,
        peer_timeout=settings.peer_timeout,
        asked=asked,
    )
    with others:
        return _run(settings, members, data, found, asked, others)


def _run(
    settings: Config,
    members: Cluster,
    data: Dataset,
    found: Found,
    asked: Asked,
    others: Peers,
) -> int:
    """The run, once all processes are here."""
    description = provenance.describe(settings, data, members.processes)
    _refuse_differences(facts.describe(settings, data, description), members, others)
    if members.is_chief:
        storage.trial_write(settings.model_dir)
    arrays, manifest = resume.agreed(found, settings, data, others.gather)

    # From here on TensorFlow runs.
    hosts = [addresses.split(worker)[0] for worker in members.workers]
    coordination.avoid_proxies(hosts, os.environ)
    start.tensorflow()
    from tf_goyal import build

    coordination.configure(
        members.processes,
        start_timeout=settings.start_timeout,
        peer_timeout=settings.peer_timeout,
    )
    devices = cluster.local_devices(
        members, allreduce=settings.allreduce, devices=settings.devices
    )
    _refuse_differences({"number of devices": str(len(devices))}, members, others)
    with (
        _starting(settings, members, asked, others),
        files.model_dir_refused(settings.model_dir),
    ):
        trainer = build.trainer(
            settings,
            members,
            data,
            metadata=description,
            lost=lambda why: leave(why, after=_OTHERS_SECONDS),
            broken_records=manifest["broken_records"],
            asked=asked,
        )
    leave = functools.partial(_leave, trainer, members, others)
    others.lost = leave
    others.failed = functools.partial(leave, code=INPUT_FAILED)
    trainer.log.write(
        "event", event="start", step=manifest["step"], notes=list(members.notes)
    )
    if arrays:
        try:
            trainer.restore(arrays)
        except ValueError as error:
            stored = checkpoint.folder(settings.model_dir) / f"step-{manifest['step']}"
            raise ValueError(f"{stored}: {error}") from error
    if members.is_chief:
        with files.model_dir_refused(settings.model_dir):
            provenance.write(settings.model_dir, description)
        say(_headline(settings, trainer, manifest["step"]))
    return _train(trainer, manifest, members, asked, others)


def _refuse_differences(said: dict[str, str], members: Cluster, others: Peers) -> None:
    """Raises ValueError, in all processes, where not all say the same."""
    if different := facts.differences(said, members.workers, others.gather):
        raise ValueError(
            "all processes of a run must have the same flags, data, versions and "
            f"devices, but {'; '.join(different)}: start all of them alike"
        )


@contextlib.contextmanager
def _starting(
    settings: Config, members: Cluster, asked: Asked, others: Peers
) -> Iterator[None]:
    """While TensorFlow's servers start, and wait for each other.

    Raises:
      ValueError: they cannot.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        if members.processes == 1 or not _no_server(error):
            raise
        if asked.to_stop:  # and so were the others, and some have left
            os._exit(ASKED_TO_STOP)
        if _PORT_TAKEN in error.message:
            raise ValueError(
                f"the port of {members.address} must be free for TensorFlow's server, "
                "but another process took it since the processes met: start again, or "
                "give this process another port"
            ) from error
        others.wait_for_loss(_NAMING_SECONDS)
        raise ValueError(
            "TensorFlow's servers must reach each other within "
            f"--start_timeout={settings.start_timeout:g} s, but the one at "
            f"{members.address} does not: {_reason(error)}; see to firewalls and "
            "proxies between the processes"
        ) from error


def _no_server(error: Any) -> bool:
    """Whether an error of TensorFlow's start is one of its server, or of another's."""
    import tensorflow as tf

    kinds = (
        tf.errors.DeadlineExceededError,
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
    )
    return isinstance(error, kinds) or _PORT_TAKEN in error.message


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
    trainer: Any,
    manifest: dict[str, Any],
    members: Cluster,
    asked: Asked,
    others: Peers,
) -> int:
    """The steps, from the checkpoint on, ended with all processes alike."""
    import tensorflow as tf

    from tf_goyal.samples import InputError

    rank = f"rank {members.rank} of {members.processes}"
    try:
        with trainer.watchdog:
            chosen = trainer.choose_all_reduce()
            trainer.log.write("event", event="all_reduce", **chosen)
            try:
                code = trainer.train(manifest["step"], manifest["owes_evaluation"])
            except ValueError as error:  # a fault of ours, and not of the input
                raise RuntimeError("training failed") from error
            sha256 = trainer.weights_sha256()
            # NaN is not NaN to the bit: its sign depends on the order of a sum.
            if trainer.differences({"weights": sha256}) and trainer.finite():
                raise RuntimeError(f"the weights differ between processes ({rank})")
    except InputError as error:
        _leave(trainer, members, others, str(error), code=INPUT_FAILED)
    except tf.errors.OpError as error:
        if members.processes == 1:
            raise
        lost = coordination.peer_lost(error)
        if lost and asked.to_stop:  # and so were the others, and some have left
            _stop_unsaved(trainer, rank, _reason(error))
        # Errors of many kinds come of a device that waits for a lost process.
        if not others.wait_for_loss(_NAMING_SECONDS) and not lost:
            raise
        _leave(trainer, members, others, _reason(error))
    say(f"{rank}: exit code {code}, weights_sha256 {sha256}")
    trainer.log.close()
    return code


def _leave(
    trainer: Any,
    members: Cluster,
    others: Peers,
    why: str,
    code: int = PEER_LOST,
    after: float = 0.0,
) -> NoReturn:
    """Ends this process, and all others, because one is lost or its input failed.

    Args:
      trainer: what trains.
      members: the cluster.
      others: are told.
      why: a sentence.
      code: PEER_LOST, or INPUT_FAILED.
      after: seconds to wait for the others to say it themselves.
    """
    _exit_within(_LEAVING_SECONDS, code)
    with _leaving:
        rank = f"rank {members.rank} of {members.processes}"
        failed = code == INPUT_FAILED
        what = "the input failed" if failed else "a peer was lost"
        event = "input_failed" if failed else "peer_lost"
        _last_words(trainer, f"{rank}: {what}: {why}", event, why)
        time.sleep(after)
        (others.tell_failed if failed else others.tell_lost)(why)
        os._exit(code)  # a lost peer's collectives would hold the exit up


def _stop_unsaved(trainer: Any, rank: str, why: str) -> NoReturn:
    """Ends this process, which was asked to stop, where others have left before."""
    _exit_within(_LEAVING_SECONDS, ASKED_TO_STOP)
    with _leaving:
        line = (
            f"{rank}: asked to stop, but a peer left before all had agreed on a step: "
            f"{why}; the run goes on from the checkpoint before"
        )
        _last_words(trainer, line, "stop_unsaved", why)
        os._exit(ASKED_TO_STOP)


def _last_words(trainer: Any, line: str, event: str, why: str) -> None:
    """Says and logs why this process ends, and lets a checkpoint get to the disk."""
    say(line, sys.stderr)
    trainer.log.write("event", event=event, why=why)
    trainer.log.close()
    if trainer.writer:
        trainer.writer.wait(_SAVING_SECONDS)


def _exit_within(seconds: float, code: int) -> None:
    """Ends this process later, whatever holds it up: storage may not answer."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()


def _reason(error: Any) -> str:
    """What TensorFlow says of a lost peer, without the graph around it."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    telling = [line for line in lines if "aborted by" in line or "unhealthy" in line]
    return (telling or lines or ["TensorFlow does not say why"])[0]


if __name__ == "__main__":
    flags.run(main)
