"""Which checkpoint a run goes on from, and whether it may."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tf_goyal import checkpoint, files, run_log
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset

Found = tuple[dict[str, Any], dict[str, Any]]


def last_checkpoint(
    settings: Config, data: Dataset, at_most: int | None = None
) -> Found:
    """The checkpoint to go on from: arrays and manifest, those of step 0 if none.

    Args:
      settings: of the run that begins.
      data: its data set.
      at_most: the last step to look at; None: there is none.

    Raises:
      ValueError: --resume does not allow what is there, it is of another recipe or
        another data set, or the folder cannot be read.
    """
    start = {"step": 0, "sha256": "", "owes_evaluation": False, "broken_records": {}}
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

    def unusable(manifest: dict[str, Any]) -> str:
        positions = manifest["step"] * settings.global_batch
        try:
            then = _stored(manifest).settings.total_images(train_images)
        except ValueError as error:
            return str(error)
        if min(positions, then) == min(positions, settings.total_images(train_images)):
            return ""
        return "ends a shorter run, in a step that was not full"

    found = checkpoint.load_latest(settings.model_dir, unusable, at_most)
    if found is None:
        return {}, start
    arrays, manifest = found
    stored = _stored(manifest)
    differences = [
        f"{what} {then}, now {now}"
        for what, then, now in (
            ("training images were", stored.train_images, train_images),
            ("labels were", stored.labels, list(data.labels)),
        )
        if then != now
    ] + [
        f"--{name} was {getattr(stored.settings, name)}, now {getattr(settings, name)}"
        for name in settings.recipe_fields
        if getattr(stored.settings, name) != getattr(settings, name)
    ]
    if differences:
        raise ValueError(
            f"{settings.model_dir} holds step {manifest['step']} of another recipe "
            f"({'; '.join(differences)}): use its flags and data or another --model_dir"
        )
    return arrays, {
        "step": manifest["step"],
        "sha256": manifest["sha256"],
        "owes_evaluation": stored.owes_evaluation
        and not _is_evaluated(settings.model_dir, manifest["step"]),
        "broken_records": stored.broken_records,
    }


def agreed(
    found: Found,
    settings: Config,
    data: Dataset,
    gather: Callable[[Any], list[Any]],
) -> Found:
    """The newest checkpoint that all processes of a run can use; all call this.

    Args:
      found: `last_checkpoint`'s of this process.
      settings: as of `last_checkpoint`.
      data: as of `last_checkpoint`.
      gather: see `peers.Peers.gather`.

    Raises:
      ValueError: some see none, or another one of the same step; or as of
        `last_checkpoint`.
    """
    while True:
        arrays, manifest = found
        told = gather([manifest[name] for name in ("step", "sha256")])
        owes_evaluation = gather(manifest["owes_evaluation"])[0]
        if all(each == told[0] for each in told):
            return arrays, {**manifest, "owes_evaluation": owes_evaluation}
        steps = [step for step, _ in told]
        least, most = min(steps), max(steps)
        if least == 0 or least == most:
            here = (
                f"rank {steps.index(0)} finds none that it can use where rank "
                f"{steps.index(most)} finds step {most}"
                if least == 0
                else f"they find different ones of step {most}"
            )
            raise ValueError(
                "all processes of a run must go on from the same checkpoint, but "
                f"{here}: give all of them the same --model_dir, on storage that they "
                "share"
            )
        if manifest["step"] > least:
            found = last_checkpoint(settings, data, at_most=least)


def _is_evaluated(model_dir: str, step: int) -> bool:
    """Whether the log has an evaluation after that step."""
    with files.model_dir_refused(model_dir):
        try:
            lines = run_log.read(model_dir)
        except FileNotFoundError:
            return False
    return any(line["kind"] == "eval" and line["step"] == step for line in lines)


class _Stored(NamedTuple):
    """What a checkpoint says of the run that wrote it: all that is asked of it."""

    settings: Config
    train_images: int
    labels: list[str]
    owes_evaluation: bool
    broken_records: dict[str, list[int]]


def _stored(manifest: dict[str, Any]) -> _Stored:
    """Reads a manifest's metadata.

    Raises:
      ValueError: something is missing, or is not what it should be.
    """
    metadata = manifest["metadata"]
    try:
        stored = _Stored(
            Config.from_json(json.dumps(metadata["flags"])),
            metadata["derived"]["train_images"],
            metadata["derived"]["labels"],
            metadata["owes_evaluation"],
            metadata.get("broken_records", {}),
        )
        stored.settings.total_images(1)
        for name, kind in (
            ("train_images", int),
            ("labels", list),
            ("owes_evaluation", bool),
            ("broken_records", dict),
        ):
            if type(value := getattr(stored, name)) is not kind:
                raise ValueError(f"its {name} is {value!r:.40}")
        for split, records in stored.broken_records.items():
            if type(records) is not list or {type(r) for r in records} - {int}:
                raise ValueError(f"its broken_records of {split} are {records!r:.40}")
    except KeyError as error:
        raise ValueError(f"has a damaged manifest: it lacks {error}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"has a damaged manifest: {error}") from error
    return stored
