"""gRPC on HTTP/2, as bytes: messages in frames, statuses in trailers, metadata in headers (gRPC's PROTOCOL-HTTP2).

Pure. A message is five bytes, a flag and a length, and the message. It may begin and end anywhere in the DATA of its
stream.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from pydanube_core.calling_program import package_version
from pydanube_core.errors import GrpcStatus

Headers = tuple[tuple[bytes, bytes], ...]

SDK_AGENT: Final = "pydanube"  # the user agent of our SDK, before its version
PREFIX_BYTES: Final = 5
#: of every response that has a message
HEAD: Final[Headers] = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity,gzip"),
)
OK_TRAILERS: Final[Headers] = ((b"grpc-status", b"0"),)
_GZIP: Final = 16 + zlib.MAX_WBITS
# gzip packs zeros to a thousandth, and the single loop has to unpack them. Real data shrink to a twentieth at best.
_REAL_TIMES: Final = 20
_LARGEST_BYTES: Final = 16 << 20  # unpacked, of messages that shrink further
_SMALL_BYTES: Final = 4096
_BURST_BYTES: Final = 32 << 20  # of such messages, unpacked
_REFILL_BYTES_A_S: Final = 4 << 20
_SAFE: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # printable ASCII but "%"
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST_S: Final = 10 * 365 * 86400.0


@cache
def sdk_agent() -> str:
    """Return the user agent of this SDK, `pydanube/1.2.3`."""
    return f"{SDK_AGENT}/{package_version()}"


def is_sdk_agent(agent: object) -> bool:
    """Return whether a user agent is that of our SDK, of any version. Early versions sent none."""
    return isinstance(agent, str) and (agent == SDK_AGENT or agent.startswith(f"{SDK_AGENT}/"))


class WireError(Exception):
    """The bytes are not valid gRPC. The call ends with this status.

    Args:
        limit: in bytes, for a message that is larger.
    """

    def __init__(self, status: GrpcStatus, why: str, limit: int | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.limit = limit


# -- messages ----------------------------------------------------------------------------------------------------


def frame(message: bytes) -> bytes:
    """Return a message with its gRPC prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def frame_gzip(message: bytes) -> bytes:
    """Return a frame of the message, compressed by gzip."""
    packer = zlib.compressobj(wbits=_GZIP)
    packed = packer.compress(message) + packer.flush()
    return b"\1" + len(packed).to_bytes(4, "big") + packed


def unpack(packed: bytes, limit: int) -> bytes:
    """Decompress a gzip message. Refuses more than `limit` bytes, and beyond 16 MiB more than 20 times its size.

    Raises `WireError` if it is larger, or not gzip.
    """
    limit = min(limit, max(_LARGEST_BYTES, _REAL_TIMES * len(packed)))
    unpacker = zlib.decompressobj(wbits=_GZIP)
    try:
        message = unpacker.decompress(packed, limit + 1)
    except zlib.error as error:
        raise WireError(GrpcStatus.INTERNAL, f"a compressed message cannot be read: {error}") from error
    if len(message) > limit:
        raise too_large(len(message), limit)
    if not unpacker.eof or unpacker.unused_data:
        raise WireError(GrpcStatus.INTERNAL, "a compressed message is cut off")
    return message


class Unpacker:
    """Decompresses the messages of one connection, with a budget for implausibly compressed ones.

    Args:
        limit: of a message.
        clock: seconds.
    """

    __slots__ = ("_clock", "_left", "_limit", "_since")

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._left = float(_BURST_BYTES)
        self._since = clock()

    def __call__(self, packed: bytes) -> bytes:
        """Decompress a message. Raises `WireError` as `unpack`, and if the budget is used up."""
        now = self._clock()
        self._left = min(_BURST_BYTES, self._left + (now - self._since) * _REFILL_BYTES_A_S)
        self._since = now
        if self._left <= 0:
            raise WireError(
                GrpcStatus.RESOURCE_EXHAUSTED, "too many messages that unpack to many times their size"
            )
        try:
            message = unpack(packed, self._limit)
        except WireError:
            self._left -= min(self._limit, _LARGEST_BYTES)
            raise
        self._left -= max(0, len(message) - _REAL_TIMES * len(packed))
        return message


def too_large(size: int, limit: int) -> WireError:
    return WireError(
        GrpcStatus.RESOURCE_EXHAUSTED,
        f"a message of {size} bytes or more. At most {limit} bytes are taken",
        limit,
    )


class MessageReader:
    """The messages of one stream.

    Args:
        limit: of a message's size in bytes, packed or not.
        unpacker: of packed messages. None if the stream's headers do not allow them.
    """

    __slots__ = ("_limit", "_need", "_pieces", "_unpacker", "held")

    def __init__(self, *, limit: int, unpacker: Callable[[bytes], bytes] | None) -> None:
        self._limit = limit
        self._unpacker = unpacker
        self._pieces: list[bytes] = []
        self.held = 0  # bytes of an incomplete message
        self._need = PREFIX_BYTES  # of them, before it is worth looking again

    def drop(self) -> None:
        """Drop buffered data. Nothing more is read."""
        self._pieces.clear()
        self.held = 0

    def feed(self, data: bytes, start: int, end: int) -> Sequence[bytes]:
        """Add received bytes and return the messages that are now complete.

        Raises `WireError` if a message is too large, or packed without announcement. Nothing more can be read.
        """
        if self.held:
            if len(self._pieces[-1]) < _SMALL_BYTES:  # a piece for each byte would take fifty times its room
                self._pieces[-1] += data[start:end]
            else:
                self._pieces.append(data[start:end])
            self.held += end - start
            if self.held < self._need:
                return ()
            data = b"".join(self._pieces)
            self._pieces.clear()
            self.held = 0
            start, end = 0, len(data)
        messages: list[bytes] = []
        while end - start >= PREFIX_BYTES:
            size = int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big")
            if size > self._limit:
                raise too_large(size, self._limit)
            stop = start + PREFIX_BYTES + size
            if stop > end:
                self._need = PREFIX_BYTES + size
                break
            message = data[start + PREFIX_BYTES : stop]
            if flag := data[start]:
                if flag != 1 or self._unpacker is None:
                    raise WireError(GrpcStatus.INTERNAL, "a packed message without grpc-encoding")
                message = self._unpacker(message)
            messages.append(message)
            start = stop
        else:
            self._need = PREFIX_BYTES
        if start < end:
            self._pieces.append(data[start:end])
            self.held = end - start
        return messages


# -- statuses and metadata ---------------------------------------------------------------------------------------


def percent_encode(text: str) -> bytes:
    """Encode a status message: printable ASCII as it is, everything else as %XX of its UTF-8."""
    return quote(text, safe=_SAFE, errors="replace").encode()


def percent_decode(value: bytes) -> str:
    return unquote_to_bytes(value).decode(errors="replace")


def trailers(status: int, message: str = "", metadata: Sequence[tuple[str, str | bytes]] = ()) -> Headers:
    """Return the trailers for the end of a call."""
    found = [(b"grpc-status", b"%d" % status)]
    if message:
        found.append((b"grpc-message", percent_encode(message)))
    return (*found, *encode_metadata(metadata))


def encode_metadata(metadata: Sequence[tuple[str, str | bytes]]) -> Headers:
    """Encode metadata as header fields. Names that end in `-bin` have bytes."""
    found = []
    for name, value in metadata:
        if name.endswith("-bin"):
            raw = value if isinstance(value, bytes) else value.encode()
            found.append((name.encode(), base64.b64encode(raw).rstrip(b"=")))
        else:
            found.append((name.encode(), value.encode() if isinstance(value, str) else value))
    return tuple(found)


def decode_metadata(fields: Headers) -> tuple[tuple[str, str | bytes], ...]:
    """Return the caller's metadata: all fields except HTTP's and gRPC's own. Invalid base64 or text is left out."""
    found: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name.startswith(b"grpc-") or name in (b"content-type", b"te"):
            continue
        try:
            if name.endswith(b"-bin"):
                for part in value.split(b","):
                    text = part.strip()
                    raw = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
                    found.append((name.decode(), raw))
            else:
                found.append((name.decode(), value.decode("ascii")))
        except (binascii.Error, UnicodeDecodeError):
            continue
    return tuple(found)


@lru_cache(maxsize=2048)
def timeout_s(value: bytes) -> float:
    """Parse `grpc-timeout` into seconds. Cached, because one client's values repeat.

    Raises `WireError` if it is invalid.
    """
    number, unit = value[:-1], _UNITS.get(value[-1:])
    if unit is None or not number.isdigit() or len(number) > 8:
        raise WireError(GrpcStatus.INTERNAL, f"grpc-timeout {ascii(value[:20])[1:]} is none")
    return min(int(number) * unit, _LONGEST_S)
