"""Reads that fail and are tried again: storage over a network has its moments.

A record that stays away is replaced by another one, and that changes the training. So
what a failover or a lost packet takes must not look like a broken record.
"""

import time
from collections.abc import Callable
from typing import TypeVar

_PAUSES = (0.1, 1.0, 5.0)  # seconds before the second, third and fourth try
# These do not pass.
_FOR_GOOD = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

_Result = TypeVar("_Result")


class SecondTries:
    """Tries reads of one storage; safe to call from several threads.

    Where one has failed to the end no other waits: the storage is gone, until a read
    succeeds.
    """

    def __init__(self):
        self._gone = False

    def __call__(self, read: Callable[[], _Result]) -> _Result:
        """What `read` returns.

        Raises:
          OSError: the last try's.
        """
        pauses = iter(_PAUSES)
        while True:
            try:
                result = read()
            except _FOR_GOOD:
                raise
            except OSError:
                pause = None if self._gone else next(pauses, None)
                if pause is None:
                    self._gone = True
                    raise
                time.sleep(pause)
            else:
                self._gone = False
                return result
