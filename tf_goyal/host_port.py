"""host:port of the processes of a run: what one looks like, and that none is twice.

Hosts are names, IPv4 addresses, or IPv6 addresses in brackets: [::1]:2222.
"""

import ipaddress
import json
import re
from collections.abc import Iterable
from typing import Any


def check(source: str, addresses: Iterable[tuple[str, Any]]) -> None:
    """Refuses what is no address, and an address that is there twice.

    Args:
        source: where they come from, such as TF_CONFIG or --worker_hosts.
        addresses: the place of each in the source, and the address.

    Raises:
        ValueError: an address is not host:port, or two are the same.
    """
    seen: dict[tuple[str, int], str] = {}
    for place, address in addresses:
        known = endpoint(address, f"{source}: {place}")
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
        ValueError: it is not host:port, or has no port from 1 to 65535.
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
    digits = port or ""
    if not (re.fullmatch(r"[0-9]{1,5}", digits) and 1 <= int(digits) <= 65535):
        raise ValueError(
            f"{field} must end in a port from 1 to 65535, got {shown(address)}"
        )
    return host.lower(), int(digits)


def shown(value: Any) -> str:
    """A value as JSON writes it, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
