"""Short lists of many hosts, and the names that they stand for: run-[0-2],gpu[08-10].

The syntax is Slurm's: brackets hold numbers and ranges of them, as wide as the first
number of a range is written. Several brackets of a name count like the digits of a
number, the last one fastest: r[0-1]n[0-1] is r0n0, r0n1, r1n0, r1n1.

Brackets that hold a colon are an IPv6 address and stay as they are: [::1]:2222.
"""

import itertools
import math
import re
from collections.abc import Iterator

MOST = 65536  # names: a longer list is a slip of the keyboard

_TOKEN = re.compile(r"\[[^\[\]]*\]|[^\[\],]+|[\[\],]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand(text: str, source: str) -> list[str]:
    """All names of a list, in its order.

    Args:
        text: names with or without brackets, separated by commas.
        source: how an error calls the list, such as --worker_hosts.

    Raises:
        ValueError: the list is not in this syntax, or has more than MOST names.
    """
    names: list[str] = []
    for entry in _entries(text):
        written = "".join(entry)
        if not written or not {"[", "]"}.isdisjoint(entry):
            raise ValueError(
                f"{source} must be names separated by commas, their brackets closed, "
                f"got {written!r} in {_cut(text)}"
            )
        parts = [_ranges(token, source) for token in entry]
        if len(names) + math.prod(sum(map(len, part)) for part in parts if part) > MOST:
            raise ValueError(
                f"{source} must stand for at most {MOST} names, got {_cut(text)}"
            )
        choices = map(_numbers, entry, parts)
        names += map("".join, itertools.product(*choices))
    return names


def _entries(text: str) -> Iterator[list[str]]:
    """Each name as its brackets and the text between them; spaces around it go."""
    entry: list[str] = []
    for token in (*_TOKEN.findall(text), ","):
        if token == ",":
            yield entry
            entry = []
        elif token.strip():
            entry.append(token.strip())


def _ranges(token: str, source: str) -> list[range]:
    """The ranges of a bracket; none of a token that stands for itself."""
    if not token.startswith("[") or ":" in token:
        return []
    ranges = []
    for written in token[1:-1].split(","):
        match = _RANGE.fullmatch(written.strip())
        first, last = (int(x or match[1]) for x in match.groups()) if match else (1, 0)
        if last < first:
            raise ValueError(
                f"{source} must have numbers and rising ranges in its brackets, such "
                f"as [0-3,7], got {written!r} in {_cut(token)}"
            )
        ranges.append(range(first, last + 1))
    return ranges


def _numbers(token: str, ranges: list[range]) -> list[str]:
    """What a token stands for: its numbers as they are written, or itself."""
    if not ranges:
        return [token]
    firsts = [part.split("-")[0].strip() for part in token[1:-1].split(",")]
    return [
        str(number).zfill(len(first))
        for first, numbers in zip(firsts, ranges, strict=True)
        for number in numbers
    ]


def _cut(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
