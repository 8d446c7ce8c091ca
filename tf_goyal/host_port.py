"""host:port of the processes of a run: what one looks like, and that none is twice.

Hosts are names, IPv4 addresses, or IPv6 addresses in brackets: [::1]:2222.
"""

import ipaddress
import json
import re
import socket
from collections.abc import Iterable
from typing import Any


def check(source: str, addresses: Iterable[tuple[str, Any]]) -> None:
    """Refuses what is no address, an address that is there twice, and 0.0.0.0 of many.

    Args:
        source: where they come from, such as TF_CONFIG or --worker_hosts.
        addresses: the place of each in the source, and the address.

    Raises:
        ValueError: an address is not host:port, or two are the same, or one of
            several stands for every machine.
    """
    seen: dict[tuple[str, int], str] = {}
    listed = list(addresses)
    for place, address in listed:
        known = endpoint(address, f"{source}: {place}")
        if len(listed) > 1 and _is_unspecified(known[0]):
            raise ValueError(
                f"{source}: {place} must be an address where the other processes reach "
                f"it, but {shown(address)} is each machine's own: name the machine"
            )
        if known in seen:
            raise ValueError(
                f"{source}: every process needs an address of its own, but "
                f"{seen[known]} and {place} are both {shown(address)}"
            )
        seen[known] = place


def endpoint(address: Any, field: str) -> tuple[str, int]:
    """host:port in a form in which equal addresses are equal: [::1]:022 is ("::1", 22).

    Args:
        address: what should be host:port.
        field: how an error calls it.

    Raises:
        ValueError: it is not host:port, is no name of a host, or has no port from 1
            to 65535.
    """
    if not isinstance(address, str):
        raise ValueError(f"{field} must be host:port, got {shown(address)}")
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", address)
    named = re.fullmatch(r"([A-Za-z0-9._-]+)(?::([^:]*))?", address)
    match = bracketed or named
    if not match:
        raise ValueError(
            f"{field} must be host:port, an IPv6 address in brackets ([::1]:2222), "
            f"got {shown(address)}"
        )
    host, port = match.groups()
    if bracketed:
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise ValueError(
                f"{field} must have an IPv6 address in its brackets, got "
                f"{shown(address)}"
            ) from None
    elif not _is_name(host):
        raise ValueError(
            f"{field} must have a host whose parts between dots are 1 to 63 characters "
            f"long, and 253 in all, got {shown(address)}"
        )
    digits = port or ""
    if not (re.fullmatch(r"[0-9]{1,5}", digits) and 1 <= int(digits) <= 65535):
        raise ValueError(
            f"{field} must end in a port from 1 to 65535, got {shown(address)}"
        )
    return host.lower(), int(digits)


def _is_name(host: str) -> bool:
    """Whether a name server can be asked for it; one dot at the end is allowed."""
    parts = host.removesuffix(".").split(".")
    return len(".".join(parts)) <= 253 and all(1 <= len(part) <= 63 for part in parts)


def _is_unspecified(host: str) -> bool:
    """Whether it is 0.0.0.0 or ::, in any way to write them, such as 0."""
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        try:
            return socket.inet_aton(host) == bytes(4)
        except OSError:  # a name
            return False
    return address.is_unspecified or address.ipv4_mapped == ipaddress.IPv4Address(0)


def shown(value: Any) -> str:
    """A value as JSON writes it, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
