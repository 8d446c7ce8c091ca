"""Who is a member of a run: two processes prove to each other that they are.

The key is made of the run token and of the list of all processes. Each side sends a
random number and gets an HMAC-SHA256 of everything that was said, so that both know the
key, and neither sends it. The keys of the frames that follow are made the same way.

    A to B   hello: version, digest of the list, rank, instance, number
    B to A   the same of B, what B wants to say, and B's proof of all this
    A to B   A's proof; none is needed where A only asks who B is
"""

import dataclasses
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tf_goyal.frames import BadFrame, Frames

TOKEN_VARIABLE = "TF_GOYAL_RUN_TOKEN"
_VERSION = 1  # of what is said here, and after it
_LEAST_TOKEN = 16  # bytes
_LONGEST_NOTE = 1200  # bytes of JSON, where a letter may take 12
_SAID = ("tf_goyal", "cluster", "rank", "instance", "number", "note", "asks")


class NotAMember(Exception):
    """Somebody else is at the other end; the message says who, as far as is known."""


def read_token(path: str, environ: Mapping[str, str]) -> bytes:
    """The run token: of a file, or else of the environment, or else none.

    Args:
      path: of --run_token_file; empty: none.
      environ: the environment variables.

    Raises:
      ValueError: the file cannot be read, or the token is too short.
    """
    if path:
        source = f"--run_token_file={path}"
        try:
            with open(path, "rb") as file:
                token = file.read(2**16).strip()
        except (OSError, ValueError) as error:  # ValueError: no path at all
            raise ValueError(
                "--run_token_file must be a file that can be read, but "
                f"{path}: {getattr(error, 'strerror', None) or error}"
            ) from error
    elif TOKEN_VARIABLE in environ:
        source, token = TOKEN_VARIABLE, os.fsencode(environ[TOKEN_VARIABLE].strip())
    else:
        return b""
    if len(token) < _LEAST_TOKEN:
        raise ValueError(
            f"the run token must be at least {_LEAST_TOKEN} bytes long, but {source} "
            f"has {len(token)}: make one with `openssl rand -hex 32`"
        )
    return token


@dataclasses.dataclass(frozen=True)
class Member:
    """This process as it shows itself to others.

    Attributes:
      rank: in the run.
      key: that all members have, see `of`.
      cluster: digest of the list of all processes.
      instance: random, of this very process: one that was started again has another.
    """

    rank: int
    key: bytes
    cluster: str
    instance: str

    @classmethod
    def of(cls, workers: Sequence[str], rank: int, token: bytes) -> "Member":
        """A member with that rank.

        Args:
          workers: host:port of all processes.
          rank: of this one.
          token: the run token; empty: whoever knows the list of processes is a member.
        """
        listed = "\n".join(workers).encode()
        key = hmac.digest(token, b"tf_goyal run\n" + listed, hashlib.sha256)
        cluster = hashlib.sha256(listed).hexdigest()[:16]
        return cls(rank, key, cluster, secrets.token_hex(8))


@dataclasses.dataclass(frozen=True)
class Hello:
    """What the other side says of itself.

    Attributes:
      rank: in the run.
      instance: see `Member`.
      note: what it wants to say to everybody who asks.
      asks: whether it only asks who is there; then nothing of it is proved.
    """

    rank: int
    instance: str
    note: str
    asks: bool


async def call(frames: Frames, me: Member, rank: int, asks: bool = False) -> Hello:
    """Introduces this process to the one it called; seals the frames.

    Args:
      frames: of the new connection.
      me: this process.
      rank: that should answer.
      asks: only finds out who is there; nothing follows.

    Raises:
      NotAMember: somebody else answers.
      BadFrame, OSError, EOFError: nobody who speaks like us.
    """
    mine = _hello(me, asks=asks)
    frames.send(mine)
    theirs = await frames.receive()
    hello = _read(theirs, me)
    said = _transcript(mine, theirs)
    if not _proves(theirs, me.key, "answers", said):
        raise NotAMember("a process with another run token")
    if hello.rank != rank:
        raise NotAMember(f"rank {hello.rank} of this run")
    if hello.instance == me.instance:
        raise NotAMember("this very process")
    if not asks:
        frames.send({"proof": _proof(me.key, "calls", said)})
        frames.seal(_key(me.key, "to answerer", said), _key(me.key, "to caller", said))
    return hello


async def answer(frames: Frames, me: Member, note: str = "") -> Hello:
    """Hears who calls; seals the frames, unless the caller only asks.

    Args:
      frames: of the new connection.
      me: this process.
      note: for everybody who calls.

    Raises:
      NotAMember, BadFrame, OSError, EOFError: no member does.
    """
    theirs = await frames.receive()
    mine = _hello(me, note=note)
    said = _transcript(theirs, mine)
    frames.send({**mine, "proof": _proof(me.key, "answers", said)})
    hello = _read(theirs, me)
    if not hello.asks:
        if not _proves(await frames.receive(), me.key, "calls", said):
            raise NotAMember("a process with another run token")
        frames.seal(_key(me.key, "to caller", said), _key(me.key, "to answerer", said))
    return hello


def _hello(me: Member, *, note: str = "", asks: bool = False) -> dict[str, Any]:
    return {
        "tf_goyal": _VERSION,
        "cluster": me.cluster,
        "rank": me.rank,
        "instance": me.instance,
        "number": secrets.token_hex(32),
        "note": _cut(note),
        "asks": asks,
    }


def _cut(note: str) -> str:
    """A note that fits into a frame, as JSON writes it."""
    left = _LONGEST_NOTE
    for place, letter in enumerate(note):
        left -= len(json.dumps(letter)) - 2
        if left < 0:
            return note[:place] + "..."
    return note


def _read(said: Any, me: Member) -> Hello:
    """What a process says of itself, of which nothing is proved yet.

    Raises:
      BadFrame: it does not speak like us.
      NotAMember: it is of another version or of another run.
    """
    version = said.get("tf_goyal") if isinstance(said, dict) else None
    if type(version) is not int:
        raise BadFrame("a message of another kind")
    if version != _VERSION:
        raise NotAMember(
            f"a tf_goyal that starts runs by version {version}, and not {_VERSION} "
            "(install the same one everywhere)"
        )
    fields = {field.name: said.get(field.name) for field in dataclasses.fields(Hello)}
    types = [type(value) for value in fields.values()]
    if types != [int, str, str, bool]:
        raise BadFrame("a message that lacks something")
    if said.get("cluster") != me.cluster:
        raise NotAMember("a process of a run with another list of processes")
    return Hello(**fields)


def _transcript(caller: Any, answerer: Any) -> bytes:
    """Everything that was said and that counts, whatever a stranger sends."""
    said = [
        {name: each[name] for name in _SAID if isinstance(each.get(name), (str, int))}
        if isinstance(each, dict)
        else None
        for each in (caller, answerer)
    ]
    return json.dumps(said, sort_keys=True).encode()


def _key(key: bytes, purpose: str, said: bytes) -> bytes:
    return hmac.digest(key, purpose.encode() + b"\n" + said, hashlib.sha256)


def _proof(key: bytes, who: str, said: bytes) -> str:
    return _key(key, who, said).hex()


def _proves(message: Any, key: bytes, who: str, said: bytes) -> bool:
    proof = message.get("proof") if isinstance(message, dict) else None
    wanted = _proof(key, who, said).encode()
    return isinstance(proof, str) and hmac.compare_digest(
        proof.encode("utf-8", "replace"), wanted
    )
