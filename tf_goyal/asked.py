"""Whether this process was asked to stop: by a signal, or by another process.

Python runs no signal handler while the main thread waits inside TensorFlow, so a thread
of our own listens to the signals, and ends what does not end by itself.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

ASKED_TO_STOP = 143  # exit code
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOKS = 0.02  # seconds between two looks at who handles the signals, at the start


class Asked:
    """Catches SIGTERM, and Ctrl-C at a terminal, from when it is made.

    Until `finishing` is entered there is nothing to save, and the process leaves with
    143 at once. In it, whoever trains looks at `to_stop`, saves and leaves. A second
    Ctrl-C interrupts at once. Make it in the main thread.

    Attributes:
      to_stop: whether the process was asked.
      grace_seconds: after being asked the process leaves, saved or not; 0: it takes
        the time that it takes.
    """

    def __init__(self):
        self.to_stop = False
        self.grace_seconds = 0.0
        self._by = "a signal"
        self._finishing = self._interrupted = False
        self._since: float | None = None
        self._tell: Callable[[], None] = lambda: None
        self._told = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._handle)
        self._ours = _action()
        threading.Thread(target=self._listen, daemon=True).start()

    def by(self, who: str) -> None:
        """Another process was asked, and told this one: as if it had been itself.

        Args:
          who: that was, for people.
        """
        if not self.to_stop:
            self._by = who
            os.kill(os.getpid(), signal.SIGTERM)

    def tell(self, others: Callable[[], None]) -> None:
        """Calls this, in another thread, as soon as the process is asked.

        In place of what was given before.
        """
        self._tell = others

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """What has begun in it is brought to an end; `to_stop` must be looked at."""
        self._finishing = True
        self._handle_again()
        try:
            yield
        finally:
            self._finishing = False
            if self.to_stop:
                self._since = None  # it does end now

    def _handle(self, number: int, _) -> None:
        """In the main thread, between two lines of Python."""
        self.to_stop = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: Any) -> None:
        """The second Ctrl-C: the main thread is on its way out by itself."""
        self._interrupted = True
        signal.default_int_handler(number, frame)

    def _listen(self) -> None:
        """In a thread of its own: tells others at once, leaves, or counts seconds."""
        while True:
            wait = None if self._finishing else _LOOKS
            if self._since is not None and self.grace_seconds:
                wait = max(0.0, self._since + self.grace_seconds - time.monotonic())
            if not select.select([self._reader], [], [], wait)[0]:
                self._handle_again()
                if self._since is not None and self.grace_seconds:
                    self._leave(
                        f"asked to stop by {self._by}, but not done after "
                        f"--grace_seconds={self.grace_seconds:g}: leaves as it is; the "
                        "last checkpoint is good"
                    )
                continue
            if not set(self._reader.recv(64)) & set(_SIGNALS):
                continue
            self.to_stop = True
            if not self._told:
                self._told = True
                self._since = time.monotonic()
                self._tell()
            if not self._finishing and not self._interrupted:
                self._leave(f"asked to stop by {self._by}: there is nothing to save")

    def _handle_again(self) -> None:
        """TensorFlow's coordination service takes SIGTERM away, and does nothing."""
        if _action() != self._ours:
            ctypes.CDLL(None).sigaction(signal.SIGTERM, self._ours, None)

    def _leave(self, why: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads, or the disk is full
            print(why, file=sys.stderr, flush=True)
        os._exit(ASKED_TO_STOP)  # whatever the main thread waits for


def _action() -> bytes:
    """What this process does at SIGTERM, as the system knows it: `struct sigaction`."""
    action = ctypes.create_string_buffer(1024)
    ctypes.CDLL(None).sigaction(signal.SIGTERM, None, action)
    return action.raw
