"""Which run writes into a folder: the one that started last.

A job that was given up for lost may still be training somewhere. No lock tells over a
network whether its holder lives. So a run that starts writes its name into the folder,
and an older one that finds another name there than its own writes there no more.
"""

import json
import os
import socket
import time
import uuid
from typing import Any

from tf_goyal import files
from tf_goyal.files import AnyPath

FILE_NAME = "owner.json"
_BYTES = 2**16  # more than any owner's name has


class Owner:
    """Makes this process the one that writes into a folder, which is made if need be.

    Raises:
      OSError: the folder cannot be written.
    """

    def __init__(self, folder: AnyPath):
        self._file = folder / FILE_NAME
        self._name = {
            "id": uuid.uuid4().hex,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        folder.mkdir(parents=True, exist_ok=True)
        files.replace(self._file, (json.dumps(self._name, indent=1) + "\n").encode())

    def check(self) -> None:
        """Raises OSError where another run has started to write there since."""
        found = self._found()
        if found.get("id") != self._name["id"]:
            raise OSError(
                f"another run writes there now: process {found.get('process')} on "
                f"{found.get('host')}, since {found.get('since')} ({self._file})"
            )

    def _found(self) -> dict[str, Any]:
        with self._file.open("rb") as file:
            content = file.read(_BYTES)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else {}
