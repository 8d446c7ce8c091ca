"""python -m tf_goyal.evaluate: exact evaluation of checkpoints.

    python -m tf_goyal.evaluate --model_dir=RUN
    python -m tf_goyal.evaluate --model_dir=RUN --follow

The recipe is the one that the checkpoint was written with; nothing is repeated here.
On the machine that trained, the result is the one that the run logged at that step, to
the bit. Where TF_CONFIG or Slurm describes several processes, they evaluate together;
TF_GOYAL_RUN_TOKEN is the secret by which they know each other.

With --follow this is an evaluator: it evaluates each checkpoint of a run that goes on,
and leaves when training has ended. It may be started before there is a run. What it
finds is also in RUN/evaluator/log.jsonl.
"""

import json
import os
import sys
from typing import Any

from absl import flags as absl_flags

from tf_goyal import (
    addresses,
    asked,
    checkpoint,
    cluster,
    coordination,
    evaluator,
    flags,
    membership,
    peers,
    start,
    trained,
)
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset
from tf_goyal.peers import INPUT_FAILED, PEER_LOST, Peers
from tf_goyal.trained import TrainedModel

_NAMING_SECONDS = 5.0  # for the heartbeats to find who is lost


def define(values: absl_flags.FlagValues) -> None:
    """The flags of evaluate."""
    flags.define_checkpoint(values)
    absl_flags.DEFINE_bool(
        "json",
        False,
        "Print one JSON object, with the names of log.jsonl, in place of the line.",
        flag_values=values,
    )
    absl_flags.DEFINE_bool(
        "follow",
        False,
        "Evaluate each checkpoint as it comes, until training has ended.",
        flag_values=values,
    )
    absl_flags.DEFINE_float(
        "poll_seconds",
        evaluator.POLL_SECONDS,
        "Seconds between two looks for a checkpoint, with --follow.",
        lower_bound=0.1,
        upper_bound=3600.0,
        flag_values=values,
    )


def main(_: list[str]) -> int:
    """Evaluates and prints. Returns the exit code.

    Raises:
      ValueError: flags, checkpoint, data or cluster are refused.
    """
    members = cluster.from_environment(os.environ, evaluates=True)
    shown = json.dumps if flags.FLAGS.json else evaluator.describe
    if flags.FLAGS.follow:
        if flags.FLAGS.step is not None or members.processes > 1:
            raise ValueError(
                "--follow takes every checkpoint and works in one process: leave out "
                f"--step and TF_CONFIG, got --step={flags.FLAGS.step} and "
                f"{members.processes} processes"
            )
        asked.Asked()  # SIGTERM: there is nothing to save
        return evaluator.run(
            flags.FLAGS.model_dir,
            flags.FLAGS.data_dir,
            poll_seconds=flags.FLAGS.poll_seconds,
            shown=shown,
        )
    token = membership.read_token("", os.environ)
    try:
        found = trained.load(flags.FLAGS.model_dir, flags.FLAGS.step)
        settings, data = evaluator.prepare(found, flags.FLAGS.data_dir)
    except ValueError as error:
        peers.refuse(members.workers, members.rank, token=token, why=str(error))
        raise
    with peers.meet(
        members.workers,
        members.rank,
        token=token,
        start_timeout=settings.start_timeout,
        peer_timeout=settings.peer_timeout,
        asked=asked.Asked(),
    ) as others:
        _compare(found, others)
        result = _evaluate(found, settings, members, data, others)
    if members.is_chief:
        print(shown(result), flush=True)
    return 0


def _compare(found: TrainedModel, others: Peers) -> None:
    """Raises ValueError where not all processes have the same checkpoint."""
    model = {n: a for n, a in found.arrays.items() if n.startswith("model/")}
    said = others.gather([found.step, checkpoint.weights_sha256(model)])
    for rank, (step, sha256) in enumerate(said):
        if [step, sha256] != said[0]:
            raise ValueError(
                f"all processes must evaluate the same checkpoint, but rank 0 has step "
                f"{said[0][0]}, sha256 {said[0][1]}, and rank {rank} step {step}, "
                f"sha256 {sha256}: give --step, and the same --model_dir"
            )


def _evaluate(
    found: TrainedModel,
    settings: Config,
    members: Cluster,
    data: Dataset,
    others: Peers,
) -> dict[str, Any]:
    """Evaluates together with the others; ends the process if one of them is lost."""
    # From here on TensorFlow runs.
    hosts = [addresses.split(worker)[0] for worker in members.workers]
    coordination.avoid_proxies(hosts, os.environ)
    start.tensorflow()
    import tensorflow as tf

    from tf_goyal.checkpoint_evaluation import CheckpointEvaluation
    from tf_goyal.samples import InputError

    coordination.configure(
        members.processes,
        start_timeout=settings.start_timeout,
        peer_timeout=settings.peer_timeout,
    )
    try:
        return CheckpointEvaluation(settings, members, data)(found)
    except InputError as error:
        print(f"evaluate: {error}", file=sys.stderr, flush=True)
        others.tell_failed(str(error))
        os._exit(INPUT_FAILED)
    except tf.errors.OpError as error:
        if members.processes == 1:
            raise
        heard = others.wait_for_loss(_NAMING_SECONDS)
        if not heard and not coordination.peer_lost(error):
            raise
        print(f"evaluate: a peer was lost: {error.message}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(PEER_LOST)  # a lost peer's collectives would hold the exit up


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
