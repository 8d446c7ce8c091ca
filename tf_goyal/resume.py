"""Which checkpoint a run goes on from, and whether it may."""

import json
from typing import Any

from tf_goyal import checkpoint
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset


def last_checkpoint(
    settings: Config, data: Dataset
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The checkpoint to go on from: arrays and manifest, those of step 0 if none.

    Args:
      settings: of the run that begins.
      data: its data set.

    Raises:
      ValueError: --resume does not allow what is there, or it is of another recipe or
        another data set.
    """
    start = {"step": 0, "owes_evaluation": False, "broken_records": {}}
    steps = checkpoint.steps(settings.model_dir)
    if settings.resume == "never" and steps:
        raise ValueError(
            f"--resume=never needs a --model_dir without checkpoints, but "
            f"{settings.model_dir} holds step {steps[-1]}: name another folder"
        )
    if settings.resume == "must" and not steps:
        raise ValueError(
            f"--resume=must needs a checkpoint, but there is none in "
            f"{checkpoint.folder(settings.model_dir)}"
        )
    train_images = len(data.train)

    def cut_short(manifest: dict[str, Any]) -> str:
        positions = manifest["step"] * settings.global_batch
        then = _stored(manifest).total_images(train_images)
        if min(positions, then) == min(positions, settings.total_images(train_images)):
            return ""
        return "ends a shorter run, in a step that was not full"

    found = checkpoint.load_latest(settings.model_dir, unusable=cut_short)
    if found is None:
        return {}, start
    arrays, manifest = found
    metadata = manifest["metadata"]
    stored = _stored(manifest)
    differences = [
        f"{what} {then}, now {now}"
        for what, then, now in (
            ("training images were", metadata["derived"]["train_images"], train_images),
            ("labels were", metadata["derived"]["labels"], list(data.labels)),
        )
        if then != now
    ] + [
        f"--{name} was {getattr(stored, name)}, now {getattr(settings, name)}"
        for name in settings.recipe_fields
        if getattr(stored, name) != getattr(settings, name)
    ]
    if differences:
        raise ValueError(
            f"{settings.model_dir} holds step {manifest['step']} of another recipe "
            f"({'; '.join(differences)}): use its flags and data or another --model_dir"
        )
    return arrays, {
        "step": manifest["step"],
        "owes_evaluation": metadata["owes_evaluation"],
        "broken_records": metadata.get("broken_records", {}),
    }


def _stored(manifest: dict[str, Any]) -> Config:
    """The settings of the run that wrote a checkpoint."""
    return Config.from_json(json.dumps(manifest["metadata"]["flags"]))
