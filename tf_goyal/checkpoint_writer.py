"""Checkpoints written in the background, one at a time, while training goes on."""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tf_goyal import checkpoint
from tf_goyal.owner import Owner
from tf_goyal.progress import say

_SAY_SECONDS = 60.0  # between two lines that say what is waited for


class CheckpointWriter:
    """Writes a run's checkpoints in a thread of its own.

    There is never more than one write in flight, and so no more than two copies of the
    variables: the one being written and the one that waits for it. The process does not
    end by itself before the last write has ended. A write that fails leaves the older
    checkpoints as they are, and the next one is tried like any other.

    Args:
      model_dir: the run's folder. From now on this process alone writes checkpoints
        there, see `owner`.
      keep, keeps: see `checkpoint.save`.
      failed: is told a step and, in one sentence, why its checkpoint could not be
        written; it is called in the writing thread.

    Raises:
      OSError: the folder cannot be written.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        keep: int,
        keeps: Callable[[int], bool],
        failed: Callable[[int, str], None],
    ):
        self._model_dir, self._keep, self._keeps = model_dir, keep, keeps
        self._failed = failed
        self._owner = Owner(checkpoint.folder(model_dir))
        self._thread: threading.Thread | None = None
        self._why = ""

    @property
    def busy(self) -> bool:
        """Whether one is being written: `save` would have to wait for it."""
        return self._thread is not None and self._thread.is_alive()

    def save(
        self, step: int, variables: Mapping[str, np.ndarray], metadata: dict[str, Any]
    ) -> None:
        """Begins to write a checkpoint; waits for the one before it first.

        Args:
          step: number of steps done.
          variables: name to array; a copy on the host, which nobody changes any more.
          metadata: JSON values to keep with it.
        """
        self.wait()
        self._thread = threading.Thread(
            target=self._write,
            args=(step, variables, metadata),
            name=f"checkpoint of step {step}",
            daemon=False,
        )
        self._thread.start()

    def wait(self, seconds: float | None = None) -> str:
        """Waits until the last checkpoint is on the disk.

        Args:
          seconds: to wait at most; None: as long as it takes.

        Returns:
          "" when it is there, or none was begun; else one sentence why it is not.
        """
        if self._thread is None:
            return ""
        begun = time.monotonic()
        self._thread.join(_SAY_SECONDS if seconds is None else seconds)
        while self._thread.is_alive():
            if seconds is not None:
                return f"the {self._thread.name} was not written within {seconds:g} s"
            waited = time.monotonic() - begun
            say(f"waits for the {self._thread.name}, since {waited:.0f} s", sys.stderr)
            self._thread.join(_SAY_SECONDS)
        return self._why

    def _write(
        self, step: int, variables: Mapping[str, np.ndarray], metadata: dict[str, Any]
    ) -> None:
        self._why = ""
        try:
            self._owner.check()
            checkpoint.save(
                self._model_dir,
                step,
                variables,
                metadata,
                keep=self._keep,
                keeps=self._keeps,
            )
        except Exception as error:  # whatever it is, it would be lost in this thread
            why = getattr(error, "strerror", None) or str(error) or repr(error)
            self._why = (
                f"the checkpoint of step {step} could not be written to "
                f"{checkpoint.folder(self._model_dir)}: {why}; older ones stay: free "
                "the storage of --model_dir or name another"
            )
            self._failed(step, self._why)
