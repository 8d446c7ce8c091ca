"""python -m tf_goyal.evaluate: exact evaluation of a checkpoint.

    python -m tf_goyal.evaluate --model_dir=RUN

The recipe is the one that the checkpoint was written with; nothing is repeated here.
On the machine that trained, the result is the one that the run logged at that step, to
the bit. Where TF_CONFIG describes several processes, they evaluate together.
"""

import dataclasses
import json
import os
import sys
from typing import Any

from absl import flags as absl_flags

from tf_goyal import checkpoint, cluster, flags, preflight, start, trained
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset
from tf_goyal.trained import TrainedModel

INPUT_FAILED, PEER_LOST = 3, 138  # exit codes


def define(values: absl_flags.FlagValues) -> None:
    """The flags of evaluate."""
    flags.define_checkpoint(values)
    absl_flags.DEFINE_bool(
        "json",
        False,
        "Print one JSON object, with the names of log.jsonl, in place of the line.",
        flag_values=values,
    )


def main(_: list[str]) -> int:
    """Evaluates and prints. Returns the exit code.

    Raises:
      ValueError: checkpoint, data or cluster are refused.
    """
    found = trained.load(flags.FLAGS.model_dir, flags.FLAGS.step)
    members = cluster.from_environment(os.environ, evaluates=True)
    # The devices of the evaluation need not be as many as those of the training.
    settings = dataclasses.replace(found.settings, devices=0, allreduce="auto")
    if flags.FLAGS.data_dir is not None:
        settings = dataclasses.replace(settings, data_dir=flags.FLAGS.data_dir)
    data = preflight.check(settings, processes=1)
    trained.check_labels(found, data)

    # From here on TensorFlow runs.
    start.tensorflow()
    import tensorflow as tf

    from tf_goyal.samples import InputError

    try:
        result = evaluate(found, settings, members, data)
    except InputError as error:
        print(f"evaluate: {error}", file=sys.stderr, flush=True)
        os._exit(INPUT_FAILED)  # the others are told by TensorFlow
    except tf.errors.OpError as error:
        if members.processes == 1:
            raise
        print(f"evaluate: a peer was lost: {error.message}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(PEER_LOST)  # a lost peer's collectives would hold the exit up
    if members.is_chief:
        print(json.dumps(result) if flags.FLAGS.json else _line(result), flush=True)
    return 0


def evaluate(
    found: TrainedModel, settings: Config, members: Cluster, data: Dataset
) -> dict[str, Any]:
    """Evaluates on all devices of the cluster; called by every process of it.

    Returns:
      The fields of the log's "eval" line.

    Raises:
      ValueError: the processes have different checkpoints.
    """
    from tf_goyal import agreement, build, input_pipeline, step
    from tf_goyal.placement import Placement

    build.prepare_tensorflow(settings)
    strategy = cluster.strategy(
        members, allreduce=settings.allreduce, devices=settings.devices
    )
    # Evaluation hands out batches; a virtual worker per device is a placeholder.
    placement = Placement(strategy, members.rank, strategy.num_replicas_in_sync)
    with strategy.scope():
        model = build.model(settings, data.num_classes)
    checkpoint.assign("model", model.variables, found.arrays)
    sha256 = checkpoint.weights_sha256(checkpoint.arrays_of("model", model.variables))

    device_sum = step.device_sum(strategy, placement)
    if agreement.differences({"checkpoint": sha256}, device_sum, placement):
        raise ValueError(
            "all processes must evaluate the same checkpoint; rank "
            f"{members.rank} has step {found.step}, sha256 {sha256}: give --step"
        )
    evaluation, left_out = build.evaluator(
        settings, data, model, strategy, placement, device_sum
    )()
    for record in left_out:
        labels = build.labels(settings, data)
        why = input_pipeline.fault(data.validation, record, settings.dct, labels)
        print(
            f"evaluate: {data.validation.where(record)} is not counted: {why}",
            file=sys.stderr,
        )
    return {
        "step": found.step,
        "epoch": found.epoch,
        **evaluation._asdict(),
        "weights_sha256": sha256,
    }


def _line(result: dict[str, Any]) -> str:
    return (
        "step {step}  epoch {epoch:.2f}  top-1 error {top1_error:.2f} %  "
        "top-5 error {top5_error:.2f} %  loss {loss:.4f}  ({images} images)  "
        "weights_sha256 {weights_sha256}"
    ).format(**result)


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
