"""Two processes prove to each other that they are of one run; others cannot."""

import asyncio
import dataclasses
import json
import re
import struct

import numpy as np
import pytest

from tf_goyal import membership
from tf_goyal.frames import BadFrame, Frames
from tf_goyal.membership import Member, NotAMember

WORKERS = "a:1", "b:2", "c:3"
TOKEN = b"0123456789abcdef"


def introduce(caller, answerer, rank=1, note="", asks=False):
    """Both sides' result or error."""

    async def body():
        loop = asyncio.get_running_loop()
        came = loop.create_future()
        server = await asyncio.start_server(
            lambda *streams: came.set_result(Frames(*streams)), "127.0.0.1", 0
        )
        streams = await asyncio.open_connection(*server.sockets[0].getsockname())
        here, there = Frames(*streams), await came

        async def call():
            try:
                hello = await membership.call(here, caller, rank, asks)
                if not asks:
                    here.send("sealed")
                return hello
            finally:
                here.close()

        async def answer():
            try:
                hello = await membership.answer(there, answerer, note)
                return hello, None if asks else await there.receive()
            finally:
                there.close()

        both = asyncio.gather(call(), answer(), return_exceptions=True)
        result = await asyncio.wait_for(both, 20)
        server.close()
        return result

    return asyncio.run(body())


def member(rank, workers=WORKERS, token=TOKEN):
    return Member.of(workers, rank, token)


def test_members_know_each_other():
    caller, answerer = member(0), member(1)
    heard, (hello, message) = introduce(caller, answerer, note="hm")
    assert (heard.rank, heard.instance, heard.note) == (1, answerer.instance, "hm")
    assert (hello.rank, hello.instance, hello.asks) == (0, caller.instance, False)
    assert message == "sealed"
    assert introduce(caller, answerer, asks=True)[1][0].asks


@pytest.mark.parametrize(
    ("answerer", "why"),
    [
        (member(1, token=b"another token 16"), "another run token"),
        (member(1, token=b""), "another run token"),
        (member(1, workers=("a:1", "b:2")), "another list of processes"),
        (member(2), "rank 2 of this run"),
    ],
)
def test_somebody_else_is_named(answerer, why):
    """A stale run, another token, another place: never joined (part 9)."""
    called, answered = introduce(member(0), answerer)
    assert isinstance(called, NotAMember) and why in str(called)
    assert isinstance(answered, Exception)


def test_without_a_token_the_list_of_processes_is_the_key():
    """It keeps accidents out, and no attacker; README says so."""
    heard, _ = introduce(member(0, token=b""), member(1, token=b""))
    assert heard.rank == 1


def test_a_process_that_calls_itself_finds_out():
    me = member(1)
    called, _ = introduce(me, me)
    assert isinstance(called, NotAMember) and "this very process" in str(called)


def test_another_version_is_named():
    with pytest.raises(NotAMember, match="by version 2, and not 1 .install the same"):
        membership._read({"tf_goyal": 2, "anything": []}, member(0))


GOOD = {
    "tf_goyal": 1,
    "cluster": member(0).cluster,
    "rank": 0,
    "instance": "x",
    "number": "00",
    "note": "",
    "asks": False,
}


def says(*frames):
    """What the answering side makes of a stranger that says this."""

    async def body():
        loop = asyncio.get_running_loop()
        came = loop.create_future()
        server = await asyncio.start_server(
            lambda *streams: came.set_result(Frames(*streams)), "127.0.0.1", 0
        )
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for frame in frames:
            text = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
            writer.write(struct.pack(">I", len(text)) + text)
        writer.write_eof()
        answered = membership.answer(await came, member(1))
        try:
            return await asyncio.wait_for(answered, 20)
        finally:
            writer.close()
            server.close()

    return asyncio.run(body())


@pytest.mark.parametrize(
    "proof", [{"proof": "0" * 64}, {"proof": 7}, {"proof": "\ud800"}, {}, [], None]
)
def test_a_stranger_without_the_key_is_not_let_in(proof):
    with pytest.raises(NotAMember, match="another run token"):
        says(GOOD, proof)


def test_the_answerers_proof_is_none_of_the_callers():
    """What a stranger hears cannot be said back: reflected, it proves nothing."""
    me = member(1)
    said = membership._transcript(GOOD, GOOD)
    proof = membership._proof(me.key, "answers", said)
    assert membership._proves({"proof": proof}, me.key, "answers", said)
    assert not membership._proves({"proof": proof}, me.key, "calls", said)


@pytest.mark.parametrize(
    "change",
    [{"rank": "0"}, {"rank": True}, {"instance": 1}, {"note": None}, {"asks": 0}],
)
def test_fields_of_another_type_are_refused(change):
    with pytest.raises(BadFrame, match="lacks something"):
        says({**GOOD, **change}, {"proof": "0" * 64})


@pytest.mark.parametrize("place", ["more", "number", "cluster", "proof"])
def test_depth_is_no_way_in(place):
    """JSON that can be read but not written again, for want of depth: not looked at."""
    hello = {name: value for name, value in GOOD.items() if name != place}
    deep = json.dumps(hello)[:-1] + f', "{place}": ' + "[" * 800 + "]" * 800 + "}"
    with pytest.raises((NotAMember, BadFrame)):
        says(deep.encode(), {"proof": "0" * 64})


@pytest.mark.parametrize("letter", ["x", '"', "é", "п", "\U0001f600", "\udcff"])
def test_a_note_of_any_letters_fits_into_a_frame(letter):
    note = "папка: " + letter * 2000
    heard, _ = introduce(member(0), member(1), note=note)
    assert heard.note.endswith("...") and note.startswith(heard.note[:-3])
    assert len(heard.note) >= 100


@pytest.mark.parametrize("seed", range(30))
def test_random_changes_of_a_hello_are_refused(seed):
    """Fuzz: some bytes of a good hello changed, or cut off; nothing else is raised."""
    random = np.random.default_rng(seed)
    text = bytearray(json.dumps(GOOD).encode())
    for place in random.integers(0, len(text), 5):
        text[place] = random.integers(0, 256)
    cut = bytes(text[: random.integers(1, len(text) + 1)])
    with pytest.raises((NotAMember, BadFrame, EOFError, OSError)):
        says(cut, {"proof": "0" * 64})


def test_the_token_comes_from_the_file_or_else_the_environment(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(b"  " + TOKEN + b"\n")
    environ = {membership.TOKEN_VARIABLE: "of the environment"}
    assert membership.read_token(str(path), environ) == TOKEN
    assert membership.read_token("", environ) == b"of the environment"
    assert membership.read_token("", {}) == b""
    environ[membership.TOKEN_VARIABLE] = "0123456789abcde\udcff"  # a byte, no UTF-8
    assert membership.read_token("", environ) == b"0123456789abcde\xff"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (TOKEN[:15], "at least 16 bytes long, but --run_token_file=.* has 15: make"),
        (b" \n", "has 0: make one"),
        (None, "--run_token_file must be a file that can be read, but .*No such file"),
    ],
)
def test_no_good_token_is_refused(tmp_path, content, why):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=why):
        membership.read_token(str(path), {})


def test_a_short_token_of_the_environment_is_refused():
    with pytest.raises(ValueError, match="TF_GOYAL_RUN_TOKEN has 3: make one"):
        membership.read_token("", {membership.TOKEN_VARIABLE: "abc"})


def test_a_token_is_in_nothing_that_a_member_shows():
    me = member(0)
    shown = json.dumps(membership._hello(me))
    assert me.key.hex() not in shown and TOKEN.decode() not in shown
    assert re.fullmatch("[0-9a-f]{16}", me.cluster)
    assert dataclasses.replace(me, key=b"").cluster == me.cluster
