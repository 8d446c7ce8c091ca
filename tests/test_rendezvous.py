"""Processes that meet, miss each other, come again, or do not belong here."""

import asyncio
import contextlib
import secrets
import socket

import pytest

from tf_goyal import rendezvous
from tf_goyal.launch import free_ports
from tf_goyal.membership import Member
from tf_goyal.rendezvous import Meeting, Refused

TOKEN = b"0123456789abcdef"
DEADLINE = 180.0  # seconds; nothing here needs them


def addresses_for(count):
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def meeting(workers, rank, said, token=TOKEN, refusal="", own=None):
    """`own`: another list of processes that this one goes by."""
    workers = own or workers
    return Meeting(workers, Member.of(workers, rank, token), said.append, refusal)


async def meet(one, seconds=DEADLINE):
    """What a meeting gives, or its error; its links are closed."""
    try:
        links = await asyncio.wait_for(one.meet(seconds), DEADLINE + 10)
    except ValueError as error:
        return error
    for frames in links.values():
        frames.close()
    return sorted(links)


@contextlib.asynccontextmanager
async def going_on(*coroutines):
    """Tasks that are cancelled at the end: processes that were killed."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, DEADLINE + 20))


@pytest.mark.parametrize("count", [2, 3, 40])
def test_all_meet_and_keep_the_links_to_rank_0(count):
    async def test():
        workers, said = addresses_for(count), []
        found = await asyncio.gather(
            *(meet(meeting(workers, rank, said)) for rank in range(count))
        )
        assert found == [list(range(1, count))] + [[0]] * (count - 1)
        assert said == []

    run(test())


def test_ipv6_addresses_meet():
    async def test():
        workers = [f"[::1]:{port}" for port in free_ports(2)]
        found = await asyncio.gather(*(meet(meeting(workers, r, [])) for r in (0, 1)))
        assert found == [[1], [0]]

    run(test())


def test_every_missing_process_is_named_with_the_reason():
    """S2: a name that is not known, nobody there, somebody else, no answer."""

    async def test():
        here, nobody, web, mute = free_ports(4)
        workers = [f"127.0.0.1:{port}" for port in (here, nobody, web, mute)]
        workers += [f"no-such-name.invalid:{here}"]

        async def other_service(reader, writer):
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(other_service, "127.0.0.1", web)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", mute))
            silent.listen()
            error = await meet(meeting(workers, 0, []), seconds=7)
        server.close()
        assert isinstance(error, ValueError)
        for rank, why in (
            (1, "refused"),
            (2, "what is there is not tf_goyal: a frame of 1213486160 bytes"),
            (3, "no answer"),
            (4, "name not resolved"),
        ):
            assert f"rank {rank} ({workers[rank]}): {why}" in str(error)
        assert "within --start_timeout=7 s, but rank 0" in str(error)
        assert len(str(error).splitlines()) == 1

    run(test())


def test_all_learn_what_one_of_them_misses():
    """Rank 2 never comes: ranks 0 and 1 both name it, whoever gives up first."""

    async def test():
        workers = addresses_for(3)
        found = await asyncio.gather(
            meet(meeting(workers, 0, [])), meet(meeting(workers, 1, []), seconds=5)
        )
        assert isinstance(found[0], Refused)
        assert all(f"rank 2 ({workers[2]}): refused" in str(each) for each in found)

    run(test())


def test_a_firewall_between_two_of_them_is_named_by_both():
    """Every rank reaches every other: rank 0 has met both, but 1 does not reach 2."""

    async def test():
        workers = addresses_for(3)
        wall = [*workers[:2], f"127.0.0.1:{free_ports(1)[0]}"]
        one = meeting(workers, 1, [])
        one._workers = wall  # what a packet of rank 1 meets at rank 2's address
        found = await asyncio.gather(
            meet(meeting(workers, 0, []), seconds=2),
            meet(one),
            meet(meeting(workers, 2, [])),
        )
        assert f"rank 1 ({workers[1]}): it misses rank 2" in str(found[0])
        assert all(isinstance(each, Refused) for each in found[1:])

    run(test())


def test_a_name_that_resolves_late_is_called_again(monkeypatch):
    """S8: retried with back-off until it is known."""
    port, other = free_ports(2)
    workers = [f"127.0.0.1:{port}", f"late.example:{other}"]
    asked = []
    real = socket.getaddrinfo

    def resolve(host, *arguments, **named):
        if host != "late.example":
            return real(host, *arguments, **named)
        asked.append(host)
        if len(asked) <= 6:  # one when the process listens, five calls
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1", *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    async def test():
        found = await asyncio.gather(*(meet(meeting(workers, r, [])) for r in (0, 1)))
        assert found == [[1], [0]]
        assert len(asked) > 6

    run(test())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_crashed_and_came_again_is_welcome(rank):
    async def test():
        workers = addresses_for(3)
        others = [r for r in (0, 1) if r != rank]
        async with going_on(*(meet(meeting(workers, r, [])) for r in others)) as tasks:
            async with going_on(meet(meeting(workers, rank, []))):
                await asyncio.sleep(1.0)
            again = await asyncio.gather(
                meet(meeting(workers, rank, [])), meet(meeting(workers, 2, []))
            )
            assert again == [[1, 2] if rank == 0 else [0], [0]]
            assert await tasks[0] == ([1, 2] if others == [0] else [0])

    run(test())


def test_one_that_has_gone_again_is_missed_for_what_it_is_now():
    """Not for what it lacked while it was there; nobody is at its address."""

    async def test():
        workers = addresses_for(3)
        first = meeting(workers, 0, [])
        async with going_on(meet(first, seconds=4)) as (task,):
            async with going_on(meet(meeting(workers, 1, []))):
                await asyncio.sleep(1.0)
                assert first._missing(1) == f"it misses rank 2 ({workers[2]}): refused"
            assert f"rank 1 ({workers[1]}): refused" in str(await task)

    run(test())


@pytest.mark.parametrize("missing", [2, 0])
def test_one_that_stops_tells_all_that_wait(missing):
    async def test():
        workers = addresses_for(4)
        here = [rank for rank in range(4) if rank != missing]
        meetings = {rank: meeting(workers, rank, []) for rank in here}
        heard = {rank: [] for rank in here}
        for rank, one in meetings.items():
            one._stopped = heard[rank].append
        async with going_on(*map(meet, meetings.values())):
            await asyncio.sleep(1.0)
            await meetings[3].stop(5)
            await asyncio.sleep(0.5)
        name = f"rank 3 ({workers[3]})"
        assert {rank: set(names) for rank, names in heard.items() if names} == {
            rank: {name} for rank in here if rank != 3
        }

    run(test())


def test_a_rank_0_that_vanished_without_a_word_is_left_for_the_new_one():
    """Its machine is gone: the connection to it does not end, and says nothing."""

    async def test():
        workers = addresses_for(3)
        old = meeting(workers, 0, [])
        old._close_links = lambda: None
        async with going_on(meet(meeting(workers, 1, []))) as (other,):
            async with going_on(meet(old)):
                await asyncio.sleep(1.0)
            found = await asyncio.gather(
                *(meet(meeting(workers, rank, []), seconds=20) for rank in (0, 2))
            )
            assert found == [[1, 2], [0]]
            assert await other == [0]

    run(test())


def test_a_second_process_with_the_same_rank_is_turned_away():
    """It is not the one at the rank's address, and the run starts without it."""

    async def test():
        workers = addresses_for(3)
        elsewhere = [workers[0], f"127.0.0.1:{free_ports(1)[0]}", workers[2]]
        second = meeting(workers, 1, [])
        second._workers = elsewhere  # where it listens
        async with going_on(*(meet(meeting(workers, r, [])) for r in (0, 1))) as tasks:
            await asyncio.sleep(0.7)
            error = await meet(second)
            assert f"rank 1 is taken by the process at {workers[1]}" in str(error)
            assert not isinstance(error, Refused)
            assert await meet(meeting(workers, 2, [])) == [0]
            assert [await task for task in tasks] == [[1, 2], [0]]

    run(test())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"token": b"another token 16"}, "a process with another run token is there"),
        ({"own": True}, "a process of a run with another list of processes is there"),
    ],
)
def test_a_process_of_another_run_is_named_and_not_joined(change, why):
    async def test():
        workers = addresses_for(2)
        if "own" in change:
            change["own"] = [workers[0].replace("127.0.0.1", "localhost"), workers[1]]
        said = []
        async with going_on(meet(meeting(workers, 1, [], **change))):
            error = await meet(meeting(workers, 0, said), seconds=5)
        assert f"rank 1 ({workers[1]}): {why}" in str(error)
        assert [line for line in said if "127.0.0.1 by no member of the run" in line]

    run(test())


@pytest.mark.parametrize("refused", [0, 1])
def test_a_refusal_is_told_to_all_at_once(refused):
    """What one process finds wrong by itself ends the wait of all the others."""

    async def test():
        workers = addresses_for(3)
        waiting = [rank for rank in range(3) if rank != refused]
        async with going_on(*(meet(meeting(workers, r, [])) for r in waiting)) as tasks:
            await asyncio.sleep(0.5)
            told = await meet(
                meeting(workers, refused, [], refusal="--steps must be more"), seconds=5
            )
            assert told == []
            for task in tasks:
                error = await task
                assert isinstance(error, Refused)
                assert str(error) == (
                    f"rank {refused} ({workers[refused]}) does not start: --steps must "
                    "be more"
                )

    run(test())


def test_processes_that_are_all_refused_do_not_wait_for_each_other():
    async def test():
        workers = addresses_for(3)
        refused = (meeting(workers, r, [], refusal="no data") for r in range(3))
        assert await asyncio.gather(*map(meet, refused)) == [[]] * 3

    run(test())


def test_a_taken_port_is_refused_once_its_owner_had_time_to_end(monkeypatch):
    """S6; an owner that ends meanwhile, as in a restart, does not matter."""
    monkeypatch.setattr(rendezvous, "_PORT_SECONDS", 1.0)

    async def test():
        workers = addresses_for(2)
        other = await asyncio.start_server(lambda *_: None, *workers[0].split(":"))
        error = await meet(meeting(workers, 0, []))
        assert f"port {workers[0].split(':')[1]} of" in str(error)
        asyncio.get_running_loop().call_later(0.5, other.close)
        found = await asyncio.gather(*(meet(meeting(workers, r, [])) for r in (0, 1)))
        assert found == [[1], [0]]

    run(test())


def test_a_person_is_told_who_is_missing(monkeypatch):
    monkeypatch.setattr(rendezvous, "_SAY_SECONDS", 0.5)

    async def test():
        workers, said = addresses_for(9), []
        await meet(meeting(workers, 0, said), seconds=0.9)
        assert said
        for line in said:  # one, unless this process stood still
            assert line.startswith(
                f"waiting for rank 1 ({workers[1]}): refused; rank 2"
            )
            assert line.endswith("and 3 more (1 of 9 here)")

    run(test())


async def _half_open(host, port):
    return await asyncio.open_connection(host, port)


async def _slow(host, port):
    """A length, and then a byte now and then."""
    _reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"\0\0\0\x40")

    async def drip():
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.1)

    return asyncio.ensure_future(drip())


def _says(text):
    async def stranger(host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(text)
        return reader, writer

    return stranger


@pytest.mark.parametrize(
    "stranger",
    [
        _half_open,
        _slow,
        _says(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        _says(b"\xff\xff\xff\xff"),
        _says(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),  # gRPC
        _says(b"\0\0\0\x02[]"),
        _says(secrets.token_bytes(4096)),
    ],
)
def test_strangers_cost_a_line_and_nothing_else(stranger):
    """Part 9: forty of a kind at once, and the processes meet as ever."""

    async def test():
        workers, said = addresses_for(2), []
        async with going_on(meet(meeting(workers, 0, said))) as (first,):
            await asyncio.sleep(0.3)
            host, port = workers[0].split(":")
            kept = [await stranger(host, int(port)) for _ in range(40)]
            assert await meet(meeting(workers, 1, [])) == [0]
            assert await first == [1]
            for each in kept:
                if isinstance(each, asyncio.Task):
                    each.cancel()
        assert len(said) <= 1  # one machine, one line
        assert all("no member of the run" in line for line in said)

    run(test())


def test_a_stranger_that_says_nothing_is_put_off(monkeypatch):
    monkeypatch.setattr(rendezvous, "_ANSWER_SECONDS", 0.5)

    async def test():
        workers, said = addresses_for(2), []
        async with going_on(meet(meeting(workers, 0, said))):
            await asyncio.sleep(0.3)
            host, port = workers[0].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
        (line,) = said
        assert line.endswith("no member of the run: no introduction in time")

    run(test())
