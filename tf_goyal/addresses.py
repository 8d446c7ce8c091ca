"""host:port: where this process listens, and where others are reached."""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Any

_NAME_SECONDS = 5.0  # for our own name to be known

Resolved = tuple[socket.AddressFamily, tuple]


class PortTaken(ValueError):
    """This process cannot listen at its own address."""


def split(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 address loses its brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def resolve(address: str) -> list[Resolved]:
    """What a host:port stands for now; asks the system again at every call.

    Raises:
      OSError: the name is not known, or can be none.
    """
    host, port = split(address)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = await _in_thread(_look_up, host, port)
    else:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    return list(dict.fromkeys((family, where) for family, _, _, _, where in found))


def _look_up(host: str, port: int) -> list[tuple]:
    try:
        return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except UnicodeError:  # a part of the name is empty, or has more than 63 characters
        raise socket.gaierror(socket.EAI_NONAME, "no name of a host") from None


async def _in_thread(function: Callable, *arguments: Any) -> Any:
    """Calls what may wait for long, in a thread that does not hold the exit up."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await future


async def listen(address: str) -> tuple[list[socket.socket], str]:
    """Sockets that listen where others look for this process.

    They are bound to the address itself. Where the name is not known yet, or stands for
    an address that is not of this machine, or only of this machine (as Debian has it
    for a host's own name), they are bound to all of the machine's.

    Returns:
      The sockets, and a note for people where they listen on all interfaces, or "".

    Raises:
      PortTaken: another process has the port.
      OSError: the system has no socket for it.
    """
    host, port = split(address)
    try:
        # TensorFlow listens on all interfaces later on.
        _listener(socket.AF_INET, ("", port), wait=False).close()
        try:
            found = await asyncio.wait_for(resolve(address), _NAME_SECONDS)
            why = f"{host} stands for addresses of other machines"
        except (OSError, asyncio.TimeoutError):
            found, why = [], f"{host}: name not resolved"
        listeners = []
        for family, where in found:
            if _is_loopback(where[0]) and not _is_local_name(host):
                why = f"{host} stands for {where[0]}, where no other machine reaches it"
                continue
            with contextlib.suppress(_NotHere):
                listeners.append(_listener(family, where))
        if listeners:
            return listeners, ""
        return _everywhere(port), f"listens on all interfaces: {why}"
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        taken = "is taken by another process"
        raise PortTaken(
            f"port {port} of this process' address {address} must be free, but "
            f"{taken if error.errno == errno.EADDRINUSE else 'is not allowed'}: end "
            "what has it, or give this process another port"
        ) from None


class _NotHere(Exception):
    """The address is not of this machine."""


def _listener(
    family: socket.AddressFamily, where: tuple, wait: bool = True
) -> socket.socket:
    """A socket bound to an address, and listening there if it should `wait`."""
    each = socket.socket(family, socket.SOCK_STREAM)
    try:
        # What an ended run left behind on the port does not matter.
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            only = where[0] != "::"
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        each.bind(where)
        if wait:
            each.listen(1024)
        each.setblocking(False)
        return each
    except OSError as error:
        each.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _NotHere from None
        raise


def _everywhere(port: int) -> list[socket.socket]:
    with contextlib.suppress(_NotHere):
        if socket.has_dualstack_ipv6():
            return [_listener(socket.AF_INET6, ("::", port))]
    return [_listener(socket.AF_INET, ("", port))]


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _is_local_name(host: str) -> bool:
    """Whether a host means this machine for everybody who reads it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") in ("localhost", "localhost.localdomain")


def reason(error: OSError) -> str:
    """Why something could not be reached, in few words."""
    if isinstance(error, socket.gaierror):
        return "name not resolved"
    if isinstance(error, TimeoutError):
        return "timed out"
    known = {errno.ECONNREFUSED: "refused"}
    return known.get(error.errno, error.strerror or str(error) or type(error).__name__)
