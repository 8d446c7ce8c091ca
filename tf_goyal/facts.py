"""What all processes of a run must have alike, compared by name before it starts."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_goyal import config
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset, Split

# Paths may differ, what is there may not. Nor need what fits one machine be alike, nor
# what only says how a process finds the others.
_OWN = {"model_dir", "data_dir", "cache", "input_threads", "prefetch"} | config.section(
    "Cluster"
)
_LONGEST_VALUE = 100  # characters
_VALUES_SHOWN, _RANKS_SHOWN = 3, 3


def describe(
    settings: Config, data: Dataset, description: Mapping[str, Any]
) -> dict[str, str]:
    """What this process has, by the name that a person knows it by.

    Args:
      settings: of the run.
      data: its data set.
      description: `provenance.describe`'s.
    """
    fields = json.loads(settings.to_json())
    found = {f"--{name}": value for name, value in fields.items() if name not in _OWN}
    for part in ("derived", "versions"):
        what = "version of " if part == "versions" else ""
        for name, value in description[part].items():
            found[what + name.replace("_", " ")] = value
    for split in (data.train, data.validation):
        found[f"number of {split.name} files"] = len(split.files)
        found[f"bytes of the {split.name} files"] = int(split.bytes)
        found[f"index of the {split.name} files"] = _index_digest(split)
    return {name: _shortened(json.dumps(value)) for name, value in found.items()}


def _shortened(text: str) -> str:
    """A text that differs where the long one does."""
    if len(text) <= _LONGEST_VALUE:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: _LONGEST_VALUE - 20]}... (sha256 {digest})"


def _index_digest(split: Split) -> str:
    """Of the records of each file: where it differs, so does the order of the data."""
    sizes = np.ascontiguousarray(split.part_sizes, "<i8")
    return hashlib.sha256(sizes.tobytes()).hexdigest()[:16]


def differences(
    said: Mapping[str, str],
    workers: Sequence[str],
    gather: Callable[[Any], list[Any]],
) -> list[str]:
    """Compares what all processes say; all of them call this.

    Args:
      said: by this process, by name.
      workers: host:port of all processes, by rank.
      gather: see `peers.Peers.gather`.

    Returns:
      A text for each name that not all say the same of, with who says what, sorted.
    """
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    if len(set(gather(digest))) == 1:
        return []
    told = gather(dict(said))
    names = sorted({name for each in told for name in each})
    return [
        f"{name} is {_by_value(values, workers)}"
        for name in names
        if len(set(values := [each.get(name, "not there") for each in told])) > 1
    ]


def _by_value(values: Sequence[str], workers: Sequence[str]) -> str:
    """Who says what, the commonest first: "64 on rank 0 (a:1), 32 on rank 1 (b:1)"."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    common = sorted(ranks, key=lambda value: -len(ranks[value]))
    texts = []
    for value in common[:_VALUES_SHOWN]:
        who = [f"{rank} ({workers[rank]})" for rank in ranks[value][:_RANKS_SHOWN]]
        more = len(ranks[value]) - len(who)
        texts.append(
            f"{value} on rank{'s' if len(who) > 1 else ''} {', '.join(who)}"
            + (f" and {more} more" if more else "")
        )
    more = len(common) - len(texts)
    return ", ".join(texts) + (f" and {more} more values" if more else "")
