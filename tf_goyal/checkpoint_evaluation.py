"""Evaluates a run's checkpoints, one after another, with one model."""

import sys
from typing import Any

from tf_goyal import build, checkpoint, input_pipeline, step
from tf_goyal import cluster as clusters
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset
from tf_goyal.placement import Placement
from tf_goyal.trained import TrainedModel


class CheckpointEvaluation:
    """The exact evaluation on all devices of a cluster; made by every process of it.

    Args:
      settings: of the run.
      members: who evaluates together.
      data: the run's data set.
    """

    def __init__(self, settings: Config, members: Cluster, data: Dataset):
        self._settings, self._data, self._named = settings, data, set()
        build.prepare_tensorflow(settings)
        strategy = clusters.strategy(
            members, allreduce=settings.allreduce, devices=settings.devices
        )
        # Evaluation hands out batches; a virtual worker per device is a placeholder.
        placement = Placement(strategy, members.rank, strategy.num_replicas_in_sync)
        with strategy.scope():
            self._model = build.model(settings, data.num_classes)
        device_sum = step.device_sum(strategy, placement)
        self._evaluate = build.evaluator(
            settings, data, self._model, strategy, placement, device_sum
        )

    def __call__(self, found: TrainedModel) -> dict[str, Any]:
        """Evaluates one checkpoint. Called by every process, with the same one.

        Returns:
          The fields of the log's "eval" line.

        Raises:
          ValueError: the checkpoint does not fit the model.
          InputError: there was no image to count.
        """
        checkpoint.assign("model", self._model.variables, found.arrays)
        sha256 = checkpoint.weights_sha256(
            checkpoint.arrays_of("model", self._model.variables)
        )
        evaluation, left_out = self._evaluate()
        self._name(left_out)
        return {
            "step": found.step,
            "epoch": found.epoch,
            **evaluation._asdict(),
            "weights_sha256": sha256,
        }

    def _name(self, left_out: list[int]) -> None:
        """Says once which records do not count, and why."""
        labels = build.labels(self._settings, self._data)
        for record in sorted(set(left_out) - self._named):
            self._named.add(record)
            records = self._data.validation
            why = input_pipeline.fault(records, record, self._settings.dct, labels)
            print(
                f"evaluate: {records.where(record)} is not counted: {why}",
                file=sys.stderr,
            )
