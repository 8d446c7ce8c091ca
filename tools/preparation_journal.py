"""Which shards of a preparation are done, in a file that a kill cannot harm.

    DATA/preparation.jsonl   first line: what is prepared and how; then a line per shard

A line is on disk before the next shard counts as done, and a last line that a kill cut
off does not count. Any other line that is none of ours is refused.
"""

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

NAME = "preparation.jsonl"
_SHARD = {  # what the line of a shard holds
    "file": str,
    "records": int,
    "bytes": int,
    "sha256": str,
    "per_class": dict,
    "left_out": list,
    "converted": list,
}


class Journal:
    """The journal of a folder, begun or taken up again; holds it against others.

    Args:
      folder: of the shards; it is there.
      head: what is prepared and how, by name.

    Attributes:
      done: the lines of the shards whose files are still there as they were written,
        by file name.

    Raises:
      OSError: it cannot be read or written.
      ValueError: another process works there, or the journal has another head, or a
        line that is none of ours.
    """

    def __init__(self, folder: Path, head: dict[str, Any]):
        self._path = folder / NAME
        self._file = self._locked()
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        lines = [
            self._read(number, line, head)
            for number, line in enumerate(whole.split(b"\n")[:-1], 1)
        ]
        self.done: dict[str, dict[str, Any]] = {}
        if lines:
            refuse_difference(folder, lines[0], head)
        self._file.truncate(len(whole))
        if not lines:
            self._write(head)
        for line in lines[1:]:
            path = folder / line["file"]
            if path.is_file() and path.stat().st_size == line["bytes"]:
                self.done[line["file"]] = line

    def _locked(self) -> BinaryIO:
        """The file, which no other process has."""
        while True:
            file = open(self._path, "a+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise ValueError(
                    f"{self._path.parent} must be prepared by one process, but another "
                    "is at it: wait for it, or stop it"
                ) from None
            # Whoever had it may have ended it between the two calls.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), self._path.stat()):
                    return file
            file.close()

    def _read(self, number: int, line: bytes, head: dict[str, Any]) -> dict[str, Any]:
        """A line, of which the first is the head."""
        types = _SHARD if number > 1 else dict.fromkeys(head, object)
        with contextlib.suppress(KeyError, RecursionError, TypeError, ValueError):
            found = json.loads(line)
            sound = all(isinstance(found[name], kind) for name, kind in types.items())
            if number > 1:
                sound &= found["records"] == sum(found["per_class"].values())
                sound &= all(
                    "reason" in one and one["image"] for one in found["left_out"]
                )
            if sound:
                return found
        mend = (
            "remove this line, and its shard is written again"
            if number > 1
            else "empty this file, and all shards are written again"
        )
        raise ValueError(
            f"{self._path}, line {number}: must be as this tool wrote it, but is "
            f"damaged: {mend}"
        )

    def add(self, line: dict[str, Any]) -> None:
        """Notes a finished shard, by what `_SHARD` lists."""
        self._write(line)
        self.done[line["file"]] = line

    def close(self) -> None:
        """Lets others have the folder."""
        self._file.close()

    def remove(self) -> None:
        """Ends it: all is done."""
        self._path.unlink(missing_ok=True)  # who sees the manifest may be first
        self.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def refuse_difference(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises ValueError if two heads differ, naming the first difference."""
    for name, now in new.items():
        if old.get(name) != now:
            raise ValueError(
                f"{folder} was begun with {name}={old.get(name)} and cannot go on with "
                f"{name}={now}: use the same flags and images, or another --data_dir"
            )
