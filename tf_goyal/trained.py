"""A trained model, as the commands that use one find it: a checkpoint of a run."""

import dataclasses
import json
from typing import Any, NamedTuple

import numpy as np

from tf_goyal import checkpoint, files
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset


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


def load(model_dir: str, step: int | None = None) -> TrainedModel:
    """Reads a run's checkpoint; the newest complete one where `step` is None.

    Raises:
      ValueError: there is no such checkpoint, or it is broken, or does not say of
        what run it is.
    """
    folder = checkpoint.folder(model_dir)
    steps = checkpoint.steps(model_dir)
    if not steps:
        missing = "" if files.path(model_dir).is_dir() else ", which is no folder"
        raise ValueError(
            f"--model_dir must be the folder of a run with a checkpoint; there is "
            f"none in {folder}, received --model_dir={model_dir}{missing}"
        )
    if step is None:
        arrays, manifest = checkpoint.load_latest(model_dir, _damage)
    elif step in steps:
        arrays, manifest = checkpoint.load(folder / f"step-{step}")
        if damage := _damage(manifest):
            raise ValueError(f"checkpoint {folder / f'step-{step}'} {damage}")
    else:
        raise ValueError(
            f"--step must be one of the checkpoints in {folder}, which are "
            f"{', '.join(map(str, steps))}; received --step={step}"
        )
    return _trained(model_dir, arrays, manifest)


def _trained(
    model_dir: str, arrays: dict[str, np.ndarray], manifest: dict[str, Any]
) -> TrainedModel:
    metadata = manifest["metadata"]
    settings = Config.from_json(json.dumps(metadata["flags"]))
    settings = dataclasses.replace(settings, model_dir=model_dir)
    return TrainedModel(settings, manifest["step"], arrays, metadata)


def _damage(manifest: dict[str, Any]) -> str:
    """Why a checkpoint does not say of what run it is; empty where it does."""
    try:
        found = _trained("", {}, manifest)
        _ = found.epoch, "".join(found.labels)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return f"has a damaged manifest: {error!r}"
    return ""


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
