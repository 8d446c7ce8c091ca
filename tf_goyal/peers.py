"""The other processes of a run, from the rendezvous on to the end.

A thread of its own keeps a connection between rank 0 and each of the others. Values are
gathered over it, and while TensorFlow computes each side hears that the other lives. A
process that dies, or is silent for too long, is named on all the others; that one was
asked to stop is told to all, too.

TensorFlow's collectives notice a process that died, but do not say which; one that does
not answer they do not notice.
"""

import asyncio
import contextlib
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

from tf_goyal.addresses import PortTaken
from tf_goyal.asked import Asked
from tf_goyal.frames import BadFrame, Frames
from tf_goyal.membership import Member
from tf_goyal.progress import say
from tf_goyal.rendezvous import Meeting, Refused
from tf_goyal.silence import Silence

REFUSED, INPUT_FAILED, PEER_LOST = 2, 3, 138  # exit codes
_LONGEST_INTERVAL = 5.0  # seconds between two signs of life
_LAST_WORDS_SECONDS = 2.0  # for them to reach the others
_REFUSAL_SECONDS = 5.0  # to tell all of ours, and to end by another's

_Result = TypeVar("_Result")


def meet(
    workers: Sequence[str],
    rank: int,
    *,
    token: bytes,
    start_timeout: float,
    peer_timeout: float,
    asked: Asked | None = None,
) -> "Peers":
    """Meets the other processes of a run; with one process there is nobody to meet.

    Args:
      workers: host:port of all processes, by rank.
      rank: of this one.
      token: the run token, see `membership.read_token`.
      start_timeout: seconds for all to be there.
      peer_timeout: seconds of silence after which a process counts as lost.
      asked: whether this process was asked to stop; the others are told, and it is
        told of them, from the rendezvous on.

    Raises:
      ValueError: see `rendezvous.Meeting.meet`.
    """
    _allow_files(256 + 8 * len(workers))  # connections while all meet, and the rest
    peers = Peers(workers, rank, peer_timeout, start_timeout)
    if asked:
        peers.stopped = asked.by
        asked.tell(peers.ask_to_stop)
    if len(workers) > 1:
        try:
            peers.start(token)
        except PortTaken as error:  # before anybody was called
            refuse(workers, rank, token=token, why=str(error))
            raise
    return peers


def refuse(workers: Sequence[str], rank: int, *, token: bytes, why: str) -> None:
    """Tells the others, in a few seconds, that this process does not start.

    Args:
      workers: as of `meet`.
      rank: as of `meet`.
      token: as of `meet`.
      why: it does not.
    """

    async def tell() -> None:
        member = Member.of(workers, rank, token)
        await Meeting(workers, member, lambda _: None, why).meet(_REFUSAL_SECONDS)

    if len(workers) > 1:
        asyncio.run(tell())


def tell_stop(workers: Sequence[str], rank: int, *, token: bytes) -> None:
    """Tells the others, before they have met, that this process was asked to stop.

    Args:
      workers: as of `meet`.
      rank: as of `meet`.
      token: as of `meet`.
    """

    async def tell() -> None:
        member = Member.of(workers, rank, token)
        await Meeting(workers, member, lambda _: None).stop(_LAST_WORDS_SECONDS)

    if len(workers) > 1:
        asyncio.run(tell())


class Peers:
    """The links of one process; made by `meet`. Use it in a `with` block.

    At its end the others are told that this process is done or, after a ValueError,
    that it does not start, and then they refuse to start as well.

    Args:
      workers: as of `meet`.
      rank: as of `meet`.
      peer_timeout: as of `meet`.
      start_timeout: as of `meet`.

    Attributes:
      lost: is given a sentence when a process is lost, in a thread of its own; ends
        this process.
      failed: as `lost`, when another process' input failed.
      stopped: is given the name of another process that was asked to stop.
    """

    def __init__(
        self,
        workers: Sequence[str],
        rank: int,
        peer_timeout: float,
        start_timeout: float,
    ):
        self._workers, self._rank = workers, rank
        self._peer_timeout, self._start_timeout = peer_timeout, start_timeout
        self._interval = min(_LONGEST_INTERVAL, peer_timeout / 10)
        others = range(1, len(workers)) if rank == 0 else [0]
        self._silence = Silence(others, peer_timeout, self._interval)
        self.lost: Callable[[str], None] = lambda why: self._exit(
            PEER_LOST, f"a peer was lost: {why}"
        )
        self.failed: Callable[[str], None] = lambda why: self._exit(INPUT_FAILED, why)
        self.stopped: Callable[[str], None] = lambda _: None
        self._links: dict[int, Frames] = {}
        self._came: dict[int, asyncio.Queue] = {}  # values, by the rank that sent them
        self._meeting: Meeting | None = None  # while it goes on
        self._ends = False  # and connections that end are no loss any more
        self._refusal: asyncio.Future | None = None
        self._loss = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, token: bytes) -> None:
        """Meets the others; see `meet`.

        Raises:
          ValueError: see `meet`.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._call(self._meet(token))
        except BaseException:
            self._stop()
            raise

    def gather(self, value: Any) -> list[Any]:
        """Every process' value, by rank, in every process; all of them call it.

        Args:
          value: JSON.

        Raises:
          Refused: another process refuses to start.
          ValueError: a value has not come within --start_timeout; says whose.
        """
        if not self._loop:
            return [value]
        return self._call(self._gather(value))

    def ask_to_stop(self) -> None:
        """Tells the others that this process was asked to stop."""
        self._tell({"stop": self._rank})

    def tell_lost(self, why: str) -> None:
        """Tells the others that this process leaves because a peer is lost."""
        self._tell({"lost": f"{self._name(self._rank)} says: {why}"})

    def tell_failed(self, why: str) -> None:
        """Tells the others that this process leaves because its input failed."""
        self._tell({"failed": f"{self._name(self._rank)} says: {why}"})

    def wait_for_loss(self, seconds: float) -> bool:
        """Lets the thread of the links find out who is lost, and end the process.

        Returns:
          Whether one is lost; the process then takes its time to end.
        """
        heard = self._loss.wait(seconds)
        if heard:
            time.sleep(2 * _LAST_WORDS_SECONDS)
        return heard

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _) -> None:
        if not self._loop:
            return
        if isinstance(error, ValueError) and not isinstance(error, Refused):
            self._tell({"refusal": f"{self._name(self._rank)} does not start: {error}"})
        elif error is None:
            self._tell({"bye": self._rank})
        self._stop()

    # Between the threads.

    def _call(
        self, coroutine: Coroutine[Any, Any, _Result], seconds: float | None = None
    ) -> _Result:
        """Runs it in the thread of the links, and waits for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    def _tell(self, message: Any) -> None:
        """The last that this process has to say, or nearly."""
        if not self._loop or self._ends:
            return
        with contextlib.suppress(Exception):  # nobody may be there any more
            self._call(self._say_last(message), 2 * _LAST_WORDS_SECONDS)

    def _stop(self) -> None:
        """Ends the thread."""

        async def cancel() -> None:
            self._ends = True
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            for frames in self._links.values():
                frames.close()

        self._call(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = None

    # In the thread of the links.

    async def _meet(self, token: bytes) -> None:
        member = Member.of(self._workers, self._rank, token)
        self._meeting = Meeting(
            self._workers, member, self._say, stopped=self._hear_stop
        )
        self._links = await self._meeting.meet(self._start_timeout)
        self._meeting = None
        self._refusal = self._loop.create_future()
        self._came = {rank: asyncio.Queue() for rank in self._links}
        self._tasks = [asyncio.ensure_future(self._beat())] + [
            asyncio.ensure_future(self._read(rank, frames))
            for rank, frames in self._links.items()
        ]

    async def _gather(self, value: Any) -> list[Any]:
        # Rank 0, which knows who is late, is to say so first.
        deadline = time.monotonic() + self._start_timeout
        if self._rank:
            self._spread({"value": value})
            return await self._take(0, deadline + 2 * _LONGEST_INTERVAL)
        ranks = sorted(self._links)
        values = [value] + [await self._take(rank, deadline) for rank in ranks]
        self._spread({"value": values})
        return values

    async def _take(self, rank: int, deadline: float) -> Any:
        """The next value of a rank."""
        task = asyncio.ensure_future(self._came[rank].get())
        await asyncio.wait(
            {task, self._refusal},
            timeout=max(0.0, deadline - time.monotonic()),
            return_when="FIRST_COMPLETED",
        )
        if self._refusal.done():
            task.cancel()
            raise Refused(self._refusal.result())
        if not task.done():
            task.cancel()
            raise ValueError(
                f"{self._name(rank)} lives, but is not ready "
                f"--start_timeout={self._start_timeout:g} s after all have met: does "
                "the storage of its --data_dir and --model_dir answer?"
            )
        return task.result()

    async def _beat(self) -> None:
        """Says that this process lives, and looks who does not say it."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(self._interval)
            self._spread({"alive": self._rank})
            now = time.monotonic()
            for rank in self._silence.tick(now - last):
                await self._lose(
                    f"{self._name(rank)}: silent for {self._peer_timeout:g} s "
                    "(--peer_timeout)"
                )
            last = now

    async def _read(self, rank: int, frames: Frames) -> None:
        """What another process says, until its connection ends."""
        try:
            while True:
                message = await frames.receive()
                self._silence.heard(rank)
                await self._handle(rank, message)
        except (OSError, EOFError, BadFrame):
            if rank not in self._links:  # it said goodbye
                return
            await self._lose(f"{self._name(rank)}: connection closed")

    async def _handle(self, rank: int, message: dict[str, Any]) -> None:
        if "value" in message:
            self._came[rank].put_nowait(message["value"])
        elif "stop" in message:
            self._relay(rank, message)
            self._hear_stop(self._name(message["stop"]))
        elif "bye" in message:
            self._silence.forget(rank)
            self._links.pop(rank).close()
        elif "refusal" in message:
            self._relay(rank, message)
            self._hear_refusal(message["refusal"])
        elif "lost" in message:
            await self._lose(message["lost"])
        elif "failed" in message:
            await self._end_with("failed", message["failed"], self.failed)

    def _hear_stop(self, who: str) -> None:
        self._ends = True
        self.stopped(who)

    def _hear_refusal(self, why: str) -> None:
        """Whoever gathers raises; who is busy with something else is ended."""
        self._ends = True
        if not self._refusal.done():
            self._refusal.set_result(why)
            self._loop.call_later(_REFUSAL_SECONDS, self._exit, REFUSED, why)

    async def _lose(self, why: str) -> None:
        await self._end_with("lost", why, self.lost)

    async def _end_with(self, what: str, why: str, end: Callable[[str], None]) -> None:
        if self._ends:
            return
        self._ends = True
        self._loss.set()
        self._spread({what: why})
        await self._all_sent()
        # Not here: who is told may want to write a log, and end the process.
        threading.Thread(target=end, args=(why,), daemon=True).start()

    async def _say_last(self, message: dict[str, Any]) -> None:
        self._ends = True
        if self._meeting:  # nothing else is said in it
            await self._meeting.stop(_LAST_WORDS_SECONDS)
            return
        self._spread(message)
        await self._all_sent()

    def _relay(self, rank: int, message: dict[str, Any]) -> None:
        """At rank 0: tells all but the one that it comes from."""
        for other, frames in self._links.items():
            if other != rank:
                frames.send(message)

    def _spread(self, message: dict[str, Any]) -> None:
        """From rank 0 to all others; from them to rank 0."""
        for frames in self._links.values():
            frames.send(message)

    async def _all_sent(self) -> None:
        """Waits a little for the system to take everything."""
        sending = asyncio.gather(
            *(frames.sent() for frames in self._links.values()), return_exceptions=True
        )
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(sending, _LAST_WORDS_SECONDS)

    # For people.

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {len(self._workers)} ({self._workers[rank]})"

    def _exit(self, code: int, why: str) -> NoReturn:
        self._say(why)
        os._exit(code)  # whatever the main thread waits for

    def _say(self, line: str) -> None:
        _say(self._rank, len(self._workers), line)


def _allow_files(count: int) -> None:
    """Raises this process' limit of open files, as far as the system allows."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (now, most) and now < min(count, most):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, most), most))


def _say(rank: int, processes: int, line: str) -> None:
    say(f"rank {rank} of {processes}: {line}", sys.stderr)
