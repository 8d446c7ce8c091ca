"""Messages between the processes of a run: JSON in frames of bounded size.

A frame is a length (4 bytes, big-endian) and that many bytes. Until the two sides have
agreed on keys, these are JSON; from then on an HMAC-SHA256 and JSON. The HMAC is over
the number of the frame too, so that none can be altered, left out or sent twice.
Nothing is unpickled.
"""

import asyncio
import hashlib
import hmac
import json
import struct
from typing import Any

_OPEN_BYTES = 2048  # the longest frame from somebody who has not proved anything
_SEALED_BYTES = 2**24  # from a member of the run
_MAC_BYTES = 32


class BadFrame(Exception):
    """What came is no frame of a member of the run."""


class Frames:
    """One connection.

    Args:
      reader: of the connection.
      writer: of the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        writer.transport.set_write_buffer_limits(high=0)  # see `sent`
        self._keys: tuple[bytes, bytes] | None = None
        self._length: int | None = None  # of a frame whose head has come
        self._sent = self._received = 0

    def seal(self, send_key: bytes, receive_key: bytes) -> None:
        """From here on every frame carries an HMAC, of one key for each direction."""
        self._keys = send_key, receive_key

    def send(self, message: Any) -> None:
        """Hands a JSON value to the system, or keeps it until the system takes it.

        Raises:
          ValueError: it is too long for a frame.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        if self._keys:
            body = _mac(self._keys[0], self._sent, body) + body
            self._sent += 1
        if len(body) > self._limit:
            raise ValueError(
                f"a message between processes must be at most {self._limit} bytes "
                f"long, got {len(body)}"
            )
        if not self._writer.is_closing():
            self._writer.write(struct.pack(">I", len(body)) + body)

    async def receive(self) -> Any:
        """The next message. May be cancelled, and called again.

        Raises:
          BadFrame: what came is no message, or not of the other side.
          OSError, EOFError: the connection has ended.
        """
        if self._length is None:
            head = await self._reader.readexactly(4)
            (self._length,) = struct.unpack(">I", head)
        if self._length > self._limit:
            raise BadFrame(f"a frame of {self._length} bytes")
        body = await self._reader.readexactly(self._length)
        self._length = None
        if self._keys:
            mac, body = body[:_MAC_BYTES], body[_MAC_BYTES:]
            wanted = _mac(self._keys[1], self._received, body)
            if not hmac.compare_digest(mac, wanted):
                raise BadFrame("a frame that was altered")
            self._received += 1
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise BadFrame("a frame that is not JSON") from None

    async def sent(self) -> None:
        """Returns when the system has taken all of it.

        Raises:
          OSError: the connection has ended.
        """
        await self._writer.drain()

    def close(self) -> None:
        """Ends the connection when the system has taken what was sent."""
        self._writer.close()

    @property
    def _limit(self) -> int:
        return _SEALED_BYTES if self._keys else _OPEN_BYTES


def _mac(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, struct.pack(">Q", number) + body, hashlib.sha256)
