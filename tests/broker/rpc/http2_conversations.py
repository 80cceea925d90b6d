"""Whatever a client may say to the HTTP/2 connection, and what must hold then: for hypothesis, and for atheris
(`tools/fuzz_http2.py`).

The first bytes say where the rest is cut and what the server answers. What must hold: `receive` never raises, whatever
is left of a fault is a well-formed GOAWAY or RST_STREAM, and nothing is said about a stream that is not open.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pydanube_core.http2 import ConnectionEnded, DataReceived, RequestReceived, StreamReset
from pydanube_core.http2.codes import PREFACE, FrameType

from tests.broker.rpc.http2_peer import REQUEST, Peer, data, frame, message, reset, settings, window_update

HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS = ((b"grpc-status", b"0"),)


def hold_a_conversation(given: bytes) -> None:
    """Let a client say these bytes, answer some of its calls, and look at what must hold."""
    steer, sent = given[:8], given[8:]
    peer = Peer()
    if not steer or steer[0] & 1:
        peer.greet()
    places = [0, *sorted(min(step * 7, len(sent)) for step in steer[1:5]), len(sent)]
    open_streams: dict[int, Any] = {}
    for start, end in pairwise(places):
        over = peer.server.ended
        events = peer.send(sent[start:end])
        assert not (over and events), "nothing follows the end"
        for event in events:
            match event:
                case RequestReceived():
                    assert event.stream.id not in open_streams
                    open_streams[event.stream.id] = event.stream
                case DataReceived():
                    assert event.stream.id in open_streams
                    assert 0 <= event.start <= event.end <= len(event.data)
                case StreamReset():
                    del open_streams[event.stream.id]
                case ConnectionEnded():
                    assert event is events[-1]
                    open_streams.clear()
        for number, stream in list(open_streams.items()):
            if number % 4 == steer[5:6].count(b"\1"):
                peer.server.out.answer(stream, HEAD, message(b"x" * min(number, 1 << 20)), TRAILERS)
            elif number % 4 == 2:
                peer.server.reset(stream, 8)  # type: ignore[arg-type]
        for answer in peer.read():
            if answer.kind == FrameType.GOAWAY:
                assert len(answer.payload) >= 8
        for number in list(open_streams):
            if number not in peer.server.streams:
                del open_streams[number]


def beginnings() -> list[bytes]:
    """Conversations that make sense, to be changed."""
    peer = Peer()
    calls = b"".join(
        peer.request(number, ("grpc-timeout", "5S")) + data(number, message(b"call"), end=True)
        for number in (1, 3, 5)
    )
    block = peer.block(headers=REQUEST)
    pieces = frame(FrameType.HEADERS, 0, 7, block[:9]) + frame(FrameType.CONTINUATION, 4, 7, block[9:])
    rest = window_update(0, 100) + window_update(7, 5) + reset(7) + frame(FrameType.PING, 0, 0, bytes(8))
    return [
        b"\1" + bytes(7) + calls,
        b"\1\3\5\7\11\1\0\0" + pieces + rest,
        bytes(8) + PREFACE + settings((4, 100), (1, 0)) + settings(ack=True) + calls,
    ]
