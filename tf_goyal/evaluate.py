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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags as absl_flags

from tf_goyal import checkpoint, cluster, flags, preflight
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset

PEER_LOST = 138  # exit code


class TrainedModel(NamedTuple):
    """A checkpoint, with what it was made with.

    Attributes:
      settings: the run's, with the model_dir that it was found in.
      step: number of steps done.
      arrays: name to array.
      metadata: what the trainer stored with it, see `provenance.describe`.
    """

    settings: Config
    step: int
    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any]

    @property
    def labels(self) -> list[str]:
        """The names of the classes that it was trained on."""
        return self.metadata["derived"]["labels"]

    @property
    def epoch(self) -> float:
        """Images seen / N, N being the images that it was trained on."""
        train_images = self.metadata["derived"]["train_images"]
        seen = self.step * self.settings.global_batch
        return min(seen, self.settings.total_images(train_images)) / train_images


def define(values: absl_flags.FlagValues) -> None:
    """The flags of evaluate."""
    define_checkpoint(values)
    absl_flags.DEFINE_bool(
        "json",
        False,
        "Print one JSON object, with the names of log.jsonl, in place of the line.",
        flag_values=values,
    )


def define_checkpoint(values: absl_flags.FlagValues) -> None:
    """The flags that say which checkpoint, and where its data set is."""
    absl_flags.DEFINE_string(
        "model_dir", None, "Folder of the run.", flag_values=values, required=True
    )
    absl_flags.DEFINE_integer(
        "step",
        None,
        "Which checkpoint: its number of steps. By default the newest complete one.",
        lower_bound=0,
        flag_values=values,
    )
    absl_flags.DEFINE_string(
        "data_dir",
        None,
        "Folder of the data set, if it is not where it was in training.",
        flag_values=values,
    )


def load(model_dir: str, step: int | None = None) -> TrainedModel:
    """Reads a run's checkpoint; the newest complete one where `step` is None.

    Raises:
      ValueError: there is no such checkpoint, or it is broken.
    """
    folder = checkpoint.folder(model_dir)
    steps = checkpoint.steps(model_dir)
    if not steps:
        missing = "" if Path(model_dir).is_dir() else ", which is no folder"
        raise ValueError(
            f"--model_dir must be the folder of a run with a checkpoint; there is "
            f"none in {folder}, received --model_dir={model_dir}{missing}"
        )
    if step is None:
        arrays, manifest = checkpoint.load_latest(model_dir)
    elif step in steps:
        arrays, manifest = checkpoint.load(folder / f"step-{step}")
    else:
        raise ValueError(
            f"--step must be one of the checkpoints in {folder}, which are "
            f"{', '.join(map(str, steps))}; received --step={step}"
        )
    metadata = manifest["metadata"]
    settings = Config.from_json(json.dumps(metadata["flags"]))
    settings = dataclasses.replace(settings, model_dir=model_dir)
    return TrainedModel(settings, manifest["step"], arrays, metadata)


def check_labels(trained: TrainedModel, data: Dataset) -> None:
    """Raises ValueError where the data's classes are not those of the training."""
    if list(data.labels) != trained.labels:
        raise ValueError(
            f"the data set must have the classes of the training, "
            f"{_shown(trained.labels)}, but {data.validation.files[0]} belongs to one "
            f"with {_shown(data.labels)}: choose another --data_dir"
        )


def _shown(labels: Any) -> str:
    return f"{len(labels)} ({', '.join(labels[:3])} ...)"


def main(_: list[str]) -> int:
    """Evaluates and prints. Returns the exit code.

    Raises:
      ValueError: checkpoint, data or cluster are refused.
    """
    trained = load(flags.FLAGS.model_dir, flags.FLAGS.step)
    members = cluster.from_environment(os.environ)
    # The devices of the evaluation need not be as many as those of the training.
    settings = dataclasses.replace(trained.settings, devices=0)
    if flags.FLAGS.data_dir is not None:
        settings = dataclasses.replace(settings, data_dir=flags.FLAGS.data_dir)
    data = preflight.check(settings, processes=1)
    check_labels(trained, data)

    # From here on TensorFlow runs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    try:
        result = evaluate(trained, settings, members, data)
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
    trained: TrainedModel, settings: Config, members: Cluster, data: Dataset
) -> dict[str, Any]:
    """Evaluates on all devices of the cluster; called by every process of it.

    Returns:
      The fields of the log's "eval" line.

    Raises:
      ValueError: the processes have different checkpoints.
    """
    from tf_goyal import build, step
    from tf_goyal.placement import Placement

    build.prepare_tensorflow(settings)
    strategy = cluster.strategy(
        members, allreduce=settings.allreduce, devices=settings.devices
    )
    # Evaluation hands out batches; a virtual worker per device is a placeholder.
    placement = Placement(strategy, members.rank, strategy.num_replicas_in_sync)
    with strategy.scope():
        model = build.model(settings, data.num_classes)
    checkpoint.assign("model", model.variables, trained.arrays)
    sha256 = checkpoint.weights_sha256(checkpoint.arrays_of("model", model.variables))

    # All the same: the sum is R times mine. Else only by a coincidence of 224 bits.
    mine = np.frombuffer(bytes.fromhex(sha256)[:28], "<u4").astype(np.int64)
    total = step.device_sum(strategy, placement)(
        np.stack([mine] * len(placement.local))
    )
    if (total != mine * placement.devices).any():
        raise ValueError(
            "all processes must evaluate the same checkpoint; rank "
            f"{members.rank} has step {trained.step}, sha256 {sha256}: give --step"
        )
    evaluation = build.evaluator(settings, data, model, strategy, placement)()
    return {
        "step": trained.step,
        "epoch": trained.epoch,
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
