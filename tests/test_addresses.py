"""host:port: where this process listens, with real sockets."""

import asyncio
import contextlib
import errno
import socket

import pytest

from tf_goyal import addresses
from tf_goyal.launch import free_ports


def listen(address):
    """Where it listens, and the note; the sockets are closed again."""
    listeners, note = asyncio.run(addresses.listen(address))
    try:
        return [each.getsockname()[0] for each in listeners], note
    finally:
        for each in listeners:
            each.close()


def test_split_takes_the_brackets_off():
    assert addresses.split("a.b:22") == ("a.b", 22)
    assert addresses.split("[fe80::1]:2222") == ("fe80::1", 2222)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_it_listens_at_the_clusters_address_only(host):
    """Part 9: not on all interfaces, where strangers are."""
    (port,) = free_ports(1)
    assert listen(f"{host}:{port}") == ([host.strip("[]")], "")


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("no-such-name.invalid", "no-such-name.invalid: name not resolved"),
        ("run-1..svc", "run-1..svc: name not resolved"),
        ("a" * 64 + ".svc", "a" * 64 + ".svc: name not resolved"),
        ("192.0.2.1", "192.0.2.1 stands for addresses of other machines"),
    ],
)
def test_an_address_of_no_interface_means_all_interfaces(host, why):
    """A name that is not known yet (S8), or a service's: said so."""
    (port,) = free_ports(1)
    (where, *_), note = listen(f"{host}:{port}")
    assert where in ("::", "0.0.0.0")
    assert note == f"listens on all interfaces: {why}"


def test_a_host_name_that_means_this_machine_only_here_is_not_bound(monkeypatch):
    """Debian has a host's own name stand for 127.0.1.1, where nobody else comes."""
    (port,) = free_ports(1)
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda *_: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", port))],
    )
    (where, *_), note = listen(f"node1:{port}")
    assert where in ("::", "0.0.0.0") and "node1 stands for 127.0.1.1" in note
    assert listen(f"localhost:{port}") == (["127.0.1.1"], "")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_taken_port_is_named(host):
    """S6: whether the other process listens at our address or at all of them."""
    with socket.socket() as other:
        other.bind((host, 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(addresses.PortTaken) as error:
            listen(address)
    assert f"port {other_port(address)} of" in str(error.value)
    assert "taken by another process" in str(error.value)


def other_port(address):
    return addresses.split(address)[1]


def test_a_port_that_an_ended_run_left_in_time_wait_is_free():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # first: the port waits on our side
            assert client.recv(1) == b""
    with socket.socket() as careless, pytest.raises(OSError):
        careless.bind(("127.0.0.1", port))
    assert listen(f"127.0.0.1:{port}") == (["127.0.0.1"], "")


def test_another_server_can_listen_while_our_connections_live():
    """As TensorFlow's does at rank 0, on the port that the others are connected to."""

    async def body():
        (port,) = free_ports(1)
        (listener,), _ = await addresses.listen(f"127.0.0.1:{port}")
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            stack.enter_context(accepted)
            listener.close()
            server = stack.enter_context(socket.socket())
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("0.0.0.0", port))
            server.listen()
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            accepted.setblocking(True)
            accepted.sendall(b"x")
            assert client.recv(1) == b"x"

    asyncio.run(body())


def test_a_slow_name_holds_nothing_up(monkeypatch):
    """A name server that does not answer: others go on, and the caller can give up."""
    import threading

    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers.wait(20) and [])

    async def body():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(addresses.resolve("slow:1"), 0.1)
        answers.set()

    asyncio.run(body())


@pytest.mark.parametrize("host", ["run-1..svc", "a" * 64, "\udcff"])
def test_what_can_be_no_name_is_not_known(host):
    """Python's own codec for names raises something else, in a thread."""

    async def body():
        with pytest.raises(OSError) as error:
            await asyncio.wait_for(addresses.resolve(f"{host}:1"), 20)
        assert addresses.reason(error.value) == "name not resolved"

    asyncio.run(body())


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (socket.gaierror(-2, "Name or service not known"), "name not resolved"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "refused"),
        (TimeoutError(), "timed out"),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), "timed out"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "No route to host"),
    ],
)
def test_reasons_are_short(error, why):
    assert addresses.reason(error) == why
