"""TF_CONFIG: a JSON object in an environment variable that describes a cluster.

It is the same for all processes but for `task`:

    {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]},
     "task": {"type": "worker", "index": 0}}

Ranks count the chief first, then the workers in their order: here a is 0, b 1, c 2. An
evaluator may have an entry in `cluster` or none; it has no rank.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tf_goyal import host_port
from tf_goyal.host_port import shown

TRAINING_ROLES = ("chief", "worker")
ROLES = (*TRAINING_ROLES, "evaluator")


def parse(text: str) -> dict[str, Any]:
    """TF_CONFIG as a dictionary; empty where it describes no cluster.

    Raises:
        ValueError: it is not a JSON object with "cluster" and "task".
    """
    description = _parse_json(text) if text.strip() else {}
    if not set(description) - {"environment"}:
        return {}
    for name in ("cluster", "task"):
        if name not in description:
            raise ValueError(
                f'TF_CONFIG must have "cluster" and "task", but {name} is missing: '
                "add it, or unset TF_CONFIG to train in this process alone"
            )
    return description


def evaluates(description: Mapping[str, Any]) -> bool:
    """Whether this process is the evaluator.

    Raises:
        ValueError: it is another evaluator than the first.
    """
    task = description["task"]
    if not isinstance(task, dict) or task.get("type") != "evaluator":
        return False
    _index(task.get("index", 0), 1, "one evaluator is enough")
    return True


def place(description: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    """Who trains together, and which of them this process is.

    Returns:
        host:port of every process in rank order, and this process' rank.

    Raises:
        ValueError: this is not a cluster that can train, or this process has no place
            in it.
    """
    roles = _roles(description["cluster"])
    role, index = _task(description["task"], roles)
    chief = roles.get("chief", ())
    rank = index + (len(chief) if role == "worker" else 0)
    return chief + roles.get("worker", ()), rank


def notes(description: Mapping[str, Any]) -> tuple[str, ...]:
    """What the log should say about how it was read, once it is known to be right."""
    found = [
        f"TF_CONFIG: {name} is not read"
        for name in description
        if name not in ("cluster", "task", "environment")
    ]
    index = description["task"].get("index")
    if isinstance(index, str):
        found.append(
            f'TF_CONFIG: task.index came as the text "{index}", read as {int(index)}'
        )
    return tuple(found)


def _parse_json(text: str) -> dict[str, Any]:
    try:
        description = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"TF_CONFIG is not valid JSON at line {error.lineno}, column "
            f"{error.colno}: {error.msg}, near {text[error.pos : error.pos + 20]!r}"
        ) from None
    except RecursionError:
        raise ValueError("TF_CONFIG is nested too deeply to be a cluster") from None
    if not isinstance(description, dict):
        raise ValueError(f"TF_CONFIG must be a JSON object, got {shown(description)}")
    return description


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"TF_CONFIG has {shown(twice)} twice in one object: keep one")
    return values


def _roles(cluster: Any) -> dict[str, tuple[str, ...]]:
    """`cluster` of TF_CONFIG, checked: the addresses of each role."""
    if not isinstance(cluster, dict):
        raise ValueError(
            "TF_CONFIG: cluster must be an object from roles to lists of host:port, "
            f"got {shown(cluster)}"
        )
    for role, listed in cluster.items():
        field = f"cluster.{role}"
        if role == "ps":
            raise ValueError(
                "TF_CONFIG: cluster.ps is not supported, since synchronous "
                "all-reduce has no parameter servers: leave it out (roles: "
                f"{', '.join(ROLES)})"
            )
        if role not in ROLES:
            raise ValueError(
                f"TF_CONFIG: the roles of cluster must be among {', '.join(ROLES)}, "
                f"got {shown(role)}"
            )
        if isinstance(listed, dict):
            raise ValueError(
                f"TF_CONFIG: {field} must list every process, but is a sparse "
                f"cluster, {shown(listed)}: every worker must know all the others"
            )
        if not isinstance(listed, list):
            raise ValueError(
                f"TF_CONFIG: {field} must be a list of host:port, got {shown(listed)}"
            )
        if not listed:
            raise ValueError(
                f"TF_CONFIG: {field} must list at least one host:port, got an empty "
                "list"
            )
    host_port.check(
        "TF_CONFIG",
        [
            (f"cluster.{role}[{i}]", address)
            for role, listed in cluster.items()
            for i, address in enumerate(listed)
        ],
    )
    if len(cluster.get("chief", ())) > 1:
        raise ValueError(
            "TF_CONFIG: cluster.chief must list one host:port, got "
            f"{len(cluster['chief'])}: {shown(cluster['chief'])}"
        )
    if not set(cluster) & set(TRAINING_ROLES):
        raise ValueError(
            "TF_CONFIG: cluster must have a worker (or a chief), got the roles "
            f"{shown(list(cluster))}"
        )
    return {role: tuple(listed) for role, listed in cluster.items()}


def _task(task: Any, roles: Mapping[str, tuple[str, ...]]) -> tuple[str, int]:
    """`task` of TF_CONFIG, checked: role and index."""
    if not isinstance(task, dict):
        raise ValueError(
            'TF_CONFIG: task must be an object with "type" and "index", got '
            f"{shown(task)}"
        )
    for name in ("type", "index"):
        if name not in task:
            raise ValueError(
                f"TF_CONFIG: task must have a type and an index, but task.{name} is "
                f"missing: got {shown(task)}"
            )
    role = task["type"]
    training = [name for name in roles if name in TRAINING_ROLES]
    if role not in training:
        raise ValueError(
            "TF_CONFIG: task.type must be a training role of cluster "
            f"({', '.join(training)}), got {shown(role)}"
        )
    count = len(roles[role])
    return role, _index(task["index"], count, f"cluster.{role} lists {count}")


def _index(index: Any, count: int, why: str) -> int:
    """`task.index` of TF_CONFIG, checked; it may be the number as text."""
    number = index
    if isinstance(index, str) and re.fullmatch(r"[+-]?[0-9]{1,9}", index.strip()):
        number = int(index)
    if type(number) is not int or not 0 <= number < count:
        allowed = "0" if count == 1 else f"a whole number from 0 to {count - 1}"
        raise ValueError(
            f"TF_CONFIG: task.index must be {allowed}, since {why}, got {shown(index)}"
        )
    return number
