"""Where the processes of a run meet before TensorFlow starts.

Every process listens at its own host:port, the one that TensorFlow takes later, and
calls every other one there. When each has reached each, rank 0 lets them go on. So a
port that is taken, a name that nobody knows, a firewall or a process that never came is
found here, and named. The connections to rank 0 are kept, of the others none is.

A process that was started again meanwhile is welcome: it shows another instance. Of two
processes with one rank, the one that answers at the rank's address is the right one.
"""

import asyncio
import contextlib
import dataclasses
import errno
import random
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from tf_goyal import addresses, membership
from tf_goyal.frames import BadFrame, Frames
from tf_goyal.membership import Hello, Member, NotAMember

_ANSWER_SECONDS = 5.0  # for a name, a connection, an introduction
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0  # seconds between two calls
_PORT_SECONDS = 3.0  # for a process that ends to leave our port
_CALLS = 32  # at once, of one process
_SAY_SECONDS = 10.0  # between two lines for people
_NAMED = 5  # processes in a line for people
_STRANGERS_NAMED = 20

_Result = TypeVar("_Result")


class Refused(ValueError):
    """Another process refuses to start; then all do."""


class _Unreachable(Exception):
    """A rank does not answer at its address; the message says why, in few words."""


@dataclasses.dataclass
class _Link:
    """At rank 0: the connection of another rank, and whom that one misses."""

    frames: Frames
    misses: str


class Meeting:
    """One process' view of who is there.

    Args:
      workers: host:port of all processes, by rank.
      me: this process.
      say: is given lines for people.
      refusal: why this process will not start; empty: it will.
      stopped: is given the name of another process that was asked to stop.
    """

    def __init__(
        self,
        workers: Sequence[str],
        me: Member,
        say: Callable[[str], None],
        refusal: str = "",
        stopped: Callable[[str], None] = lambda _: None,
    ):
        self._stopped = stopped
        self._workers, self._me, self._say = workers, me, say
        self._refusal = refusal and f"{self._name(me.rank)} does not start: {refusal}"
        self._others = [rank for rank in range(len(workers)) if rank != me.rank]
        self._why = dict.fromkeys(self._others, "not called yet")
        self._reached: dict[int, str] = {}  # rank -> the instance at its address
        self._told: set[int] = set()  # who knows of our refusal
        self._hub: Frames | None = None  # our connection to rank 0
        self._links: dict[tuple[int, str], _Link] = {}  # at rank 0: (rank, instance)
        self._strangers: set[str] = set()
        self._introductions = 0  # that are going on
        self._calls = asyncio.Semaphore(_CALLS)
        self._tasks: set[asyncio.Task] = set()
        self._changed = asyncio.Event()
        self._changed.set()
        self._over: asyncio.Future = asyncio.get_running_loop().create_future()

    async def meet(self, seconds: float) -> dict[int, Frames]:
        """Meets all the others.

        Args:
          seconds: at most, for all to be there, or to be told of the refusal.

        Returns:
          rank -> the connection to it: rank 0's to all others, theirs to rank 0.

        Raises:
          ValueError: not all are there in time, our port is taken, another process has
            our rank, or (`Refused`) another process refuses to start.
        """
        deadline = time.monotonic() + seconds
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._close_links)
            stack.push_async_callback(self._end_tasks)
            for listener in await self._listeners():
                server = await asyncio.start_server(
                    lambda *streams: self._start(self._answer(*streams)), sock=listener
                )
                stack.callback(server.close)
            for rank in self._others:
                self._start(self._reach(rank))
            self._start(self._conclude())
            self._start(self._report())
            try:
                left = deadline - time.monotonic()
                return await _within(left, asyncio.shield(self._over))
            except TimeoutError:
                if self._refusal:
                    return {}
                why = self._sentence(seconds)
                await self._spread(f"{self._name(self._me.rank)} does not start: {why}")
                raise ValueError(why) from None
            except Refused as error:
                await self._spread(str(error))
                raise

    async def stop(self, seconds: float) -> None:
        """Tells the others that this process was asked to stop.

        Those that are connected are told, the rest by rank 0. Where rank 0 is not
        there, or this is rank 0 and nobody has called it yet, all are called.

        Args:
          seconds: at most, for them to be told.
        """
        message = {"stop": self._me.rank}
        links = self._links_here()
        for frames in links:
            frames.send(message)
        telling = [frames.sent() for frames in links]
        if not (self._hub if self._me.rank else links):
            telling = [self._tell(rank, message) for rank in self._others]
        with contextlib.suppress(TimeoutError):
            await _within(seconds, asyncio.gather(*telling, return_exceptions=True))

    async def _listeners(self) -> list[socket.socket]:
        """Listens at our address, once whoever had it before has ended."""
        deadline = time.monotonic() + _PORT_SECONDS
        while True:
            try:
                found, note = await addresses.listen(self._workers[self._me.rank])
            except addresses.PortTaken:
                if self._refusal:
                    return []
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_PORT_SECONDS / 10)
                continue
            if note:
                self._say(note)
            return found

    def _start(self, coroutine: Awaitable[None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_tasks(self) -> None:
        """When it is done nobody reads from the connections that are kept."""
        while self._tasks:  # wait_for swallows a cancellation, before Python 3.12
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=0.1)

    def _close_links(self) -> None:
        """Unless all have met: then they are kept."""
        if not self._over.done() or self._over.exception():
            for frames in self._links_here():
                frames.close()

    def _links_here(self) -> list[Frames]:
        there = [link.frames for link in self._links.values()]
        return [*there, self._hub] if self._hub else there

    # Calling.

    async def _reach(self, rank: int) -> None:
        """Calls a rank until it answers, and rank 0 again when it has gone."""
        pause = _FIRST_PAUSE
        while not self._over.done():
            try:
                if self._refusal:
                    await self._tell_refusal(rank)
                    return
                if rank:
                    await self._ask(rank)
                    return
                await self._join()
                self._why[rank] = "connection closed"
            except _Unreachable as error:
                self._why[rank] = str(error)
            self._changed.set()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _ask(self, rank: int) -> None:
        """Finds out who answers at a rank's address.

        Raises:
          _Unreachable: nobody does, or not that rank.
        """
        frames, hello = await self._call(rank, asks=True)
        frames.close()
        self._reached[rank] = hello.instance
        self._changed.set()

    async def _tell_refusal(self, rank: int) -> None:
        """Tells a rank that this process does not start.

        Raises:
          _Unreachable: as of `_ask`.
        """
        await self._tell(rank, {"refusal": self._refusal})
        self._told.add(rank)
        self._changed.set()

    async def _tell(self, rank: int, message: Any) -> None:
        """Calls a rank for one message.

        Raises:
          _Unreachable: as of `_ask`.
        """
        frames, _ = await self._call(rank)
        frames.send(message)
        with contextlib.suppress(OSError):
            await frames.sent()
        frames.close()

    async def _join(self) -> None:
        """Calls rank 0, and hears what it says until the connection ends.

        Raises:
          _Unreachable: as of `_ask`.
        """
        frames, hello = await self._call(0)
        self._hub, self._reached[0] = frames, hello.instance
        self._changed.set()
        try:
            while message := await self._receive(frames):
                if "refusal" in message:
                    self._end(Refused(message["refusal"]))
                elif "stop" in message:
                    self._stopped(self._name(message["stop"]))
                elif "turned_away" in message:
                    self._end(ValueError(message["turned_away"]))
                elif "go" in message and not self._over.done():
                    self._over.set_result({0: frames})
        except (OSError, EOFError, BadFrame):
            frames.close()
            self._hub = None
            self._reached.pop(0, None)

    async def _call(self, rank: int, asks: bool = False) -> tuple[Frames, Hello]:
        """Connects and introduces this process.

        Raises:
          _Unreachable: as of `_ask`.
        """
        frames = None
        try:
            async with self._calls:
                frames = await self._connect(self._workers[rank])
                hello = await _within(
                    _ANSWER_SECONDS, membership.call(frames, self._me, rank, asks)
                )
        except asyncio.CancelledError:
            if frames:
                frames.close()
            raise
        except (NotAMember, BadFrame, EOFError, OSError) as error:
            if frames:
                frames.close()
            why = _why(error, "no answer" if frames else "timed out")
            raise _Unreachable(why) from None
        if hello.note:
            self._end(Refused(hello.note))
        return frames, hello

    async def _connect(self, address: str) -> Frames:
        loop = asyncio.get_running_loop()
        last = OSError("no address")
        found = await _within(_ANSWER_SECONDS, addresses.resolve(address))
        for family, where in found:
            each = socket.socket(family, socket.SOCK_STREAM)
            each.setblocking(False)
            try:
                await _within(_ANSWER_SECONDS, loop.sock_connect(each, where))
                if each.getsockname() == each.getpeername():
                    raise OSError(errno.ECONNREFUSED, "it called itself")
                return Frames(*await asyncio.open_connection(sock=each))
            except BaseException as error:
                each.close()
                if not isinstance(error, OSError):
                    raise
                last = error
        raise last

    # Answering.

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Somebody calls: a member of the run, or a stranger."""
        frames = Frames(reader, writer)
        self._introductions += 1
        try:
            if self._introductions > 4 * len(self._workers) + 64:
                raise NotAMember("one of very many that say nothing")
            hello = await _within(
                _ANSWER_SECONDS, membership.answer(frames, self._me, self._refusal)
            )
            if hello.rank not in self._others:
                raise NotAMember(f"a process that says it is rank {hello.rank}")
        except asyncio.CancelledError:
            frames.close()
            raise
        except (NotAMember, BadFrame, EOFError, OSError) as error:
            frames.close()
            self._name_stranger(writer, _why(error, "no introduction in time"))
            return
        finally:
            self._introductions -= 1
        if self._refusal:
            self._told.add(hello.rank)
            self._changed.set()
        if hello.asks:
            frames.close()
            await self._rejoin_if_another(hello)
            return
        known = hello.rank, hello.instance
        link = self._links[known] = _Link(frames, "others")
        try:
            if turned_away := await self._turned_away(hello):
                frames.send({"turned_away": turned_away})
            while message := await self._receive(frames):
                if "refusal" in message:
                    self._end(Refused(message["refusal"]))
                elif "misses" in message:
                    link.misses = message["misses"]
                elif "stop" in message:
                    for other in self._links_here():
                        if other is not frames:
                            other.send(message)
                    self._stopped(self._name(message["stop"]))
                self._changed.set()
        except (BadFrame, OSError, EOFError):
            frames.close()
            if self._links.get(known) is not link:  # it has called again
                return
            del self._links[known]
            if self._reached.get(hello.rank) == hello.instance:
                self._call_again(hello.rank)
            self._changed.set()

    def _call_again(self, rank: int) -> None:
        """Forgets who answered at a rank's address, and looks who does now."""
        del self._reached[rank]
        self._why[rank] = "connection closed"
        self._start(self._reach(rank))

    async def _rejoin_if_another(self, hello: Hello) -> None:
        """Leaves a rank 0 that is gone, though its connection does not say so."""
        hub = self._hub
        if hello.rank or not hub or hello.instance == self._reached.get(0):
            return
        with contextlib.suppress(_Unreachable):
            frames, now = await self._call(0, asks=True)
            frames.close()
            if now.instance != self._reached.get(0):
                hub.close()

    async def _turned_away(self, hello: Hello) -> str:
        """Why a process is one too many; "" if it is not, or took over."""
        rank = hello.rank
        if self._reached.get(rank, hello.instance) == hello.instance:
            return ""
        try:
            await self._ask(rank)
        except _Unreachable:
            if rank in self._reached:
                self._call_again(rank)
            return ""
        return "" if self._reached[rank] == hello.instance else self._taken(rank)

    def _taken(self, rank: int) -> str:
        return (
            f"every process needs a rank of its own, but rank {rank} is taken by the "
            f"process at {self._workers[rank]}: start this one with another index, or "
            "not at all"
        )

    def _name_stranger(self, writer: asyncio.StreamWriter, why: str) -> None:
        """Says who called and is no member of the run, once for each machine."""
        host = str((writer.get_extra_info("peername") or ["an unknown address"])[0])
        if host in self._strangers or len(self._strangers) >= _STRANGERS_NAMED:
            return
        self._strangers.add(host)
        self._say(f"called from {host} by no member of the run: {why}")

    # Coming to an end.

    async def _receive(self, frames: Frames) -> Any:
        """The next message of a connection that is kept; None when all is over."""
        task = asyncio.ensure_future(frames.receive())
        try:
            await asyncio.wait({task, self._over}, return_when="FIRST_COMPLETED")
            return task.result() if task.done() else None
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _conclude(self) -> None:
        """Looks, after every change, whether all have met."""
        told: Any = None
        while not self._over.done():
            await self._changed.wait()
            self._changed.clear()
            misses = "; ".join(self._misses())
            if self._refusal:
                if self._told >= set(self._others):
                    self._over.set_result({})
            elif self._me.rank:
                if self._hub and told != (self._hub, misses):
                    told = self._hub, misses
                    self._hub.send({"misses": misses})
            elif not misses and not self._over.done():
                self._go()

    def _go(self) -> None:
        """At rank 0: everybody is here."""
        links = {rank: self._links[rank, self._reached[rank]] for rank in self._others}
        for (rank, instance), link in self._links.items():
            if instance == self._reached[rank]:
                link.frames.send({"go": True})
            else:
                link.frames.send({"turned_away": self._taken(rank)})
                link.frames.close()
        self._over.set_result({rank: link.frames for rank, link in links.items()})

    def _end(self, error: ValueError) -> None:
        """Ends the meeting; a refused process ends when it has told all."""
        if not self._over.done() and not self._refusal:
            self._over.set_exception(error)

    async def _spread(self, refusal: str) -> None:
        """Tells those who are connected that the run does not start."""
        for frames in self._links_here():
            frames.send({"refusal": refusal})
            with contextlib.suppress(OSError):
                await _within(1.0, frames.sent())

    # For people.

    async def _report(self) -> None:
        """Says every few seconds who is missing."""
        while not self._refusal:
            await asyncio.sleep(_SAY_SECONDS)
            if misses := self._misses():
                here = 1 + len(self._others) - len(misses)
                self._say(
                    f"waiting for {_first(misses)} ({here} of {len(self._workers)} "
                    "here)"
                )
            else:
                self._say(f"waiting for the others of {self._name(0)}")

    def _misses(self) -> list[str]:
        """Who is not ready, and why, by name."""
        return [
            f"{self._name(rank)}: {why}"
            for rank in self._others
            if (why := self._missing(rank))
        ]

    def _missing(self, rank: int) -> str:
        """Why a rank is not ready; "" if it is."""
        if rank not in self._reached:
            return self._why[rank]
        if self._me.rank:
            return ""
        link = self._links.get((rank, self._reached[rank]))
        if not link:
            return f"it does not call {self._name(0)}"
        return link.misses and f"it misses {link.misses}"

    def _sentence(self, seconds: float) -> str:
        missing = self._misses() or [f"{self._name(0)}: it still waits for others"]
        return (
            f"all {len(self._workers)} processes must reach each other within "
            f"--start_timeout={seconds:g} s, but {self._name(self._me.rank)} misses "
            f"{_first(missing, len(missing))}: start what is missing, or see to names, "
            "ports and firewalls"
        )

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._workers[rank]})"


def _why(error: Exception, too_late: str) -> str:
    """Why an introduction came to nothing, in few words."""
    match error:
        case NotAMember():
            return f"{error} is there"
        case BadFrame():
            return f"what is there is not tf_goyal: {error}"
        case EOFError() | ConnectionResetError():
            return "connection closed"
        case TimeoutError():
            return too_late
        case _:
            return addresses.reason(error)


def _first(texts: list[str], most: int = _NAMED) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


async def _within(seconds: float, awaitable: Awaitable[_Result]) -> _Result:
    """The result of what may take so long.

    Raises:
      TimeoutError: it takes longer.
    """
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except asyncio.TimeoutError:  # another class until Python 3.11
        raise TimeoutError from None
