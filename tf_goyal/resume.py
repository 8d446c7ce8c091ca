"""Which checkpoint a run goes on from, and whether it may."""

import json
from typing import Any

from tf_goyal import checkpoint
from tf_goyal.config import Config


def last_checkpoint(settings: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The checkpoint to go on from: arrays and manifest, those of step 0 if none.

    Raises:
      ValueError: --resume does not allow what is there, or it is of another recipe.
    """
    start = {"step": 0, "owes_evaluation": False}
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
    found = checkpoint.load_latest(settings.model_dir)
    if found is None:
        return {}, start
    arrays, manifest = found
    metadata = manifest["metadata"]
    stored = Config.from_json(json.dumps(metadata["flags"]))
    differences = [
        f"--{name} was {getattr(stored, name)}, now {getattr(settings, name)}"
        for name in settings.recipe_fields
        if getattr(stored, name) != getattr(settings, name)
    ]
    if differences:
        raise ValueError(
            f"{settings.model_dir} holds step {manifest['step']} of another recipe "
            f"({'; '.join(differences)}): use its flags or another --model_dir"
        )
    return arrays, {
        "step": manifest["step"],
        "owes_evaluation": metadata["owes_evaluation"],
    }
