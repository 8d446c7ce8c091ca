"""Messages in frames, over real sockets, and what a stranger makes of them."""

import asyncio
import contextlib
import json
import struct

import numpy as np
import pytest

from tf_goyal.frames import BadFrame, Frames

KEYS = b"a" * 32, b"b" * 32


@contextlib.asynccontextmanager
async def connected():
    """A frame's two ends, and the raw writer of the first."""
    came = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(
        lambda *streams: came.set_result(Frames(*streams)), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    here, there = Frames(reader, writer), await came
    try:
        yield here, there, writer
    finally:
        here.close()
        there.close()
        server.close()


def run(test):
    """A test that is a coroutine of `connected`'s, with a deadline."""

    async def body():
        async with connected() as ends:
            await asyncio.wait_for(test(*ends), 20)

    asyncio.run(body())


def test_messages_arrive_in_their_order_and_both_ways():
    async def test(here, there, _):
        here.send({"open": 1})
        assert await there.receive() == {"open": 1}
        here.seal(*KEYS)
        there.seal(*reversed(KEYS))
        for number in range(3):
            here.send(number)
            there.send([number, "é"])
        assert [await there.receive() for _ in range(3)] == [0, 1, 2]
        assert [await here.receive() for _ in range(3)] == [[n, "é"] for n in range(3)]

    run(test)


@pytest.mark.parametrize(("bytes_long", "good"), [(2048, True), (2049, False)])
def test_a_frame_of_a_stranger_is_short(bytes_long, good):
    """The length is refused as soon as it is read: nothing is kept for it."""

    async def test(_, there, writer):
        body = b'"' + b"x" * (bytes_long - 2) + b'"'
        writer.write(struct.pack(">I", bytes_long) + (body if good else b""))
        if good:
            assert await there.receive() == "x" * (bytes_long - 2)
        else:
            with pytest.raises(BadFrame, match="a frame of 2049 bytes"):
                await there.receive()

    run(test)


def test_too_long_a_message_is_not_sent():
    async def test(here, *_):
        with pytest.raises(ValueError, match="at most 2048 bytes long, got 2049"):
            here.send("x" * 2047)

    run(test)


def sealed(number, message, key=KEYS[0]):
    """A frame as its sender should make it."""
    import hashlib
    import hmac

    body = json.dumps(message).encode()
    mac = hmac.digest(key, struct.pack(">Q", number) + body, hashlib.sha256)
    return struct.pack(">I", 32 + len(body)) + mac + body


@pytest.mark.parametrize(
    "second",
    [
        sealed(0, "first"),  # the first once more
        sealed(2, "third"),  # one was left out
        sealed(1, "second", key=KEYS[1]),  # our own key, sent back
        sealed(1, "second")[:-2] + b'x"',  # another text
        struct.pack(">I", 3) + b"abc",  # no room for an HMAC
    ],
)
def test_a_frame_that_is_not_the_next_of_the_other_side_is_refused(second):
    async def test(_, there, writer):
        there.seal(KEYS[1], KEYS[0])
        writer.write(sealed(0, "first") + second)
        assert await there.receive() == "first"
        with pytest.raises(BadFrame, match="altered"):
            await there.receive()

    run(test)


def test_receiving_can_be_cancelled_between_head_and_body():
    async def test(_, there, writer):
        writer.write(struct.pack(">I", 4))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(there.receive(), 0.2)
        writer.write(b"1234")
        assert await there.receive() == 1234

    run(test)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_a_bad_frame_or_an_end(seed):
    """No other exception, whatever comes; depth and long numbers are in it too."""
    random = np.random.default_rng(seed)
    bodies = [
        random.bytes(int(random.integers(0, 300))),
        b"[" * 2000,
        b"9" * 2000,
        b'{"a":' * 400,
        b"\xff\xfe\x00",
        b"",
    ]
    body = bodies[seed % len(bodies)]

    async def test(_, there, writer):
        if seed % 2:
            writer.write(struct.pack(">I", len(body)))
        writer.write(body)
        writer.close()
        with pytest.raises((BadFrame, EOFError, OSError)):
            for _ in range(400):
                message = await there.receive()
                assert isinstance(message, int)  # of digits a number can be made

    run(test)
