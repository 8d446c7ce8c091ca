"""Which shards of a preparation are done, in a file that a kill cannot harm.

    DATA/preparation.jsonl   first line: what is prepared and how; then a line per shard

A line is on disk before the next shard counts as done, and a last line that a kill cut
off does not count.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

NAME = "preparation.jsonl"


class Journal:
    """The journal of a folder, begun or taken up again; holds it against others.

    Args:
      folder: of the shards; it is there.
      head: what is prepared and how, by name.

    Attributes:
      done: the lines of the shards whose files are still there as they were written,
        by file name.

    Raises:
      ValueError: another process works there, or the journal has another head.
    """

    def __init__(self, folder: Path, head: dict[str, Any]):
        self._path = folder / NAME
        self._file = open(self._path, "a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ValueError(
                f"{folder} must be prepared by one process, but another is at it: wait "
                "for it, or stop it"
            ) from None
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        lines = [json.loads(line) for line in whole.splitlines()]
        self.done: dict[str, dict[str, Any]] = {}
        if not lines:
            self._write(head)
        else:
            refuse_difference(folder, lines[0], head)
        for line in lines[1:]:
            path = folder / line["file"]
            if path.is_file() and path.stat().st_size == line["bytes"]:
                self.done[line["file"]] = line

    def add(self, line: dict[str, Any]) -> None:
        """Notes a finished shard: "file", "bytes" and whatever else."""
        self._write(line)
        self.done[line["file"]] = line

    def close(self) -> None:
        """Lets others have the folder."""
        self._file.close()

    def remove(self) -> None:
        """Ends it: all is done."""
        self._path.unlink()
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
