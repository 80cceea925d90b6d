"""A client of HTTP/2 for tests: it writes what it is told to, right or wrong, and reads what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct

from hpack import Decoder, Encoder
from pydanube_core.http2 import Event, Limits, ServerConnection
from pydanube_core.http2.codes import PREFACE, FrameType

_HEADER = Struct(">HBBBI")
END_STREAM, END_HEADERS, ACK, PADDED = 1, 4, 1, 8

REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Test/Echo"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def settings(*values: tuple[int, int], ack: bool = False) -> bytes:
    body = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values)
    return frame(FrameType.SETTINGS, ACK if ack else 0, 0, body)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def reset(stream_id: int, code: int = 8) -> bytes:
    return frame(FrameType.RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def data(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(FrameType.DATA, END_STREAM if end else 0, stream_id, payload)


def message(payload: bytes) -> bytes:
    """A gRPC message as it travels."""
    return b"\0" + len(payload).to_bytes(4, "big") + payload


@dataclass
class Frame:
    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def end(self) -> bool:
        return self.kind in (FrameType.DATA, FrameType.HEADERS) and bool(self.flags & END_STREAM)


class FrameReader:
    """Frames out of bytes, however they are cut."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        self._rest += data
        frames = []
        while len(self._rest) >= 9:
            high, low, kind, flags, stream_id = _HEADER.unpack_from(self._rest)
            end = 9 + (high << 8 | low)
            if len(self._rest) < end:
                break
            frames.append(Frame(kind, flags, stream_id, self._rest[9:end]))
            self._rest = self._rest[end:]
        return frames


@dataclass
class Peer:
    """The client, and the server's connection it talks to without a wire."""

    limits: Limits = field(default_factory=Limits)
    varying: bytes = b"grpc-timeout"
    table_bytes: int = 0  # of the client's encoder, once it has heard our SETTINGS

    def __post_init__(self) -> None:
        self.now = 1000.0
        self.server = ServerConnection(self.limits, varying=self.varying, now=self.now)
        self.encoder = Encoder()
        self.decoder = Decoder()
        self._reader = FrameReader()

    def greet(self, *values: tuple[int, int]) -> list[Frame]:
        """Preface, SETTINGS and their acknowledgement; what the server said to it."""
        self.send(PREFACE + settings(*values))
        found = self.read()
        self.send(settings(ack=True))
        self.encoder.header_table_size = self.table_bytes
        return found

    def block(self, *more: tuple[str, str], headers: tuple[tuple[str, str], ...] = REQUEST) -> bytes:
        return self.encoder.encode((*headers, *more))

    def request(
        self, stream_id: int, *more: tuple[str, str], end: bool = False, block: bytes | None = None
    ) -> bytes:
        flags = END_HEADERS | (END_STREAM if end else 0)
        return frame(FrameType.HEADERS, flags, stream_id, self.block(*more) if block is None else block)

    def send(self, data: bytes) -> list[Event]:
        return self.server.receive(data, self.now)

    def read(self) -> list[Frame]:
        """What the server has to say."""
        found: list[Frame] = []
        while part := self.server.take(self.now):
            found += self._reader.feed(part)
        return found
