"""The client's side of HTTP/2 without I/O: against our own server's side, and against a server that says what it should not."""

from __future__ import annotations

from typing import Any

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.http2 import (
    AnswerEvent,
    ClientConnection,
    ConnectionEnded,
    DataReceived,
    GoingAway,
    HeadReceived,
    Limits,
    RequestReceived,
    ServerConnection,
    Stream,
    StreamReset,
)
from pydanube_core.http2.codes import PREFACE, ErrorCode, FrameType
from pydanube_core.http2.head import AnswerHead, MalformedHead

from tests.broker.rpc.http2_peer import data, frame, reset, settings, window_update

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/t.T/Echo"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS = ((b"grpc-status", b"0"),)
END_STREAM, END_HEADERS = 1, 4
SMALL = Limits(stream_window_bytes=1000, stream_window_max_bytes=1000, connection_window_bytes=65_535, connection_window_max_bytes=65_535)  # fmt: skip


class Talk:
    """A client that has said its greeting and heard the server's."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.client = ClientConnection(limits or Limits(), now=0.0)
        assert self.client.take(0.0).startswith(PREFACE)
        self._encoder = Encoder()
        assert self.hear(settings()) == []

    def hear(self, *frames: bytes) -> list[AnswerEvent]:
        return self.client.receive(b"".join(frames), 0.0)

    def ask(self) -> Stream:
        stream = self.client.open()
        self.client.out.request(stream, REQUEST, b"x")
        self.client.take(0.0)
        return stream

    def headers(self, stream_id: int, *headers: tuple[bytes, bytes], end: bool = False) -> bytes:
        block = self._encoder.encode(headers)
        return frame(FrameType.HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id, block)


@given(
    bodies=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
    cuts=st.lists(st.one_of(st.integers(1, 40), st.integers(41, 3000)), min_size=1, max_size=20),
    window=st.sampled_from([1000, 4000, 100_000]),
)
def test_both_sides_understand_each_other_however_bytes_are_cut(
    bodies: list[int], cuts: list[int], window: int
) -> None:
    limits = Limits(stream_window_bytes=window, stream_window_max_bytes=window)
    client, server = ClientConnection(limits, now=0.0), ServerConnection(limits, now=0.0)
    assert server.receive(client.take(0.0), 0.0) == []
    assert client.receive(server.take(0.0), 0.0) == []  # windows below the usual hold from here on
    sent: dict[int, bytes] = {}
    asked: dict[int, bytes] = {}
    answered: dict[int, bytes] = {}
    over: set[int] = set()
    turn = 0

    def pieces(whole: bytes) -> list[bytes]:
        nonlocal turn
        found = []
        while whole:
            size = cuts[turn % len(cuts)]
            turn += 1
            found.append(whole[:size])
            whole = whole[size:]
        return found

    for number, size in enumerate(bodies):
        stream = client.open()
        body = bytes((number,)) * size
        sent[stream.id] = body
        if number % 2:
            client.out.request(stream, REQUEST, body)
        else:
            client.out.head(stream, REQUEST)
            client.out.data(stream, body)
            client.out.finish(stream, None, repeats=False)
    for _ in range(400):
        for piece in pieces(client.take(0.0)):
            for event in server.receive(piece, 0.0):
                assert isinstance(event, RequestReceived | DataReceived)
                got = asked.get(event.stream.id, b"") + event.data[event.start : event.end]
                asked[event.stream.id] = got
                if event.ended:
                    server.out.answer(event.stream, HEAD, got, TRAILERS)
        for piece in pieces(server.take(0.0)):
            for answer in client.receive(piece, 0.0):
                match answer:
                    case DataReceived():
                        part = answer.data[answer.start : answer.end]
                        answered[answer.stream.id] = answered.get(answer.stream.id, b"") + part
                    case HeadReceived():
                        assert (answer.head.status == b"200") is not answer.ended
                        over |= {answer.stream.id} if answer.ended else set()
                    case _:
                        pytest.fail(f"{answer} in an orderly talk")
        if len(over) == len(sent):
            break
    assert asked == sent
    assert {number: answered.get(number, b"") for number in sent} == sent
    assert not client.streams
    client.take(0.0)
    assert not server.streams


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_raise_and_the_end_is_the_last_event(noise: bytes, asked: bool) -> None:
    talk = Talk()
    if asked:
        talk.ask()
    events = talk.hear(noise)
    assert [type(event) for event in events[:-1]].count(ConnectionEnded) == 0
    if talk.client.ended:
        assert isinstance(events[-1], ConnectionEnded)
        assert talk.hear(noise) == []


FRAMES = st.builds(
    frame,
    st.integers(0, 11),
    st.sampled_from([0, 1, 4, 5, 8, 9, 0x20, 0x2D, 0xFF]),
    st.sampled_from([0, 1, 1, 1, 2, 3, 5, 99]),
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from(
            [
                b"\x88",
                b"\x88\x5f\x10application/grpc",
                b"\x00\x0bgrpc-status\x010",
                bytes(4),
                bytes(8),
                bytes(70_000),
            ]
        ),
    ),
)


@given(st.lists(FRAMES, max_size=12), st.integers(1, 5000))
def test_frames_of_any_shape_leave_a_connection_in_order(said: list[bytes], cut: int) -> None:
    talk = Talk(SMALL)
    streams = [talk.ask(), talk.ask()]
    over: dict[int, int] = {}
    whole = b"".join(said)
    for at in range(0, len(whole), cut):
        for event in talk.client.receive(whole[at : at + cut], 0.0):
            if isinstance(event, StreamReset):
                over[event.stream.id] = over.get(event.stream.id, 0) + 1
            elif isinstance(event, HeadReceived | DataReceived):
                assert event.stream.id not in over, "nothing comes of a stream that is over"
                if event.ended:
                    over[event.stream.id] = 1
        talk.client.take(0.0)
    assert set(over) <= {1, 3}
    assert set(over.values()) <= {1}, "the end of a stream is told once"
    for stream in streams:
        assert (stream.id in talk.client.streams) is (stream.id not in over)
    assert not talk.client.out.waiting_bytes


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not_http2"),
        (data(1, b"x"), "no_settings_first"),
        (b"\xff\xff\xff" + bytes(6), "frame_too_large"),
    ],
)
def test_what_speaks_no_http2_ends_the_connection(said: bytes, why: str) -> None:
    client = ClientConnection(Limits(), now=0.0)
    [event] = client.receive(said, 0.0)
    assert isinstance(event, ConnectionEnded)
    assert event.why == why


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (data(2, b"x"), "frame_on_idle_stream"),
        (data(7, b"x"), "frame_on_idle_stream"),
        (reset(9), "frame_on_idle_stream"),
        (frame(FrameType.HEADERS, END_HEADERS, 5, b""), "frame_on_idle_stream"),
        (frame(FrameType.PUSH_PROMISE, END_HEADERS, 1, bytes(4)), "unexpected_frame"),
        (frame(FrameType.CONTINUATION, END_HEADERS, 1, b""), "unexpected_frame"),
        (frame(FrameType.HEADERS, 0, 1, b"") + data(1, b""), "header_block_interrupted"),
        (frame(FrameType.HEADERS, END_HEADERS, 1, b"\xff"), "header block"),
        (window_update(0, 0), "window_update_of_zero"),
        (window_update(0, 2**31 - 1), "window_too_large"),
        (frame(FrameType.PING, 0, 0, b"short"), "bad_frame_size"),
        (frame(FrameType.GOAWAY, 0, 0, b"short"), "bad_frame_size"),
    ],
)
def test_a_fault_of_the_connection_ends_it_and_its_streams(said: bytes, why: str) -> None:
    talk = Talk()
    stream = talk.ask()
    events = talk.hear(said)
    assert isinstance(events[-1], ConnectionEnded)
    assert why in events[-1].why
    assert [event.stream for event in events if isinstance(event, StreamReset)] == [stream]
    assert talk.client.going


@pytest.mark.parametrize(
    "said",
    [
        lambda talk: data(1, b"before the head"),
        lambda talk: talk.headers(1, (b"grpc-status", b"0"), end=True),  # no :status
        lambda talk: talk.headers(1, *HEAD) + talk.headers(1, *TRAILERS),  # trailers that end nothing
        lambda talk: talk.headers(1, *HEAD) + talk.headers(1, *HEAD, end=True),
        lambda talk: talk.headers(1, (b":status", b"200"), (b"Upper", b"x")),
        lambda talk: talk.headers(1, (b":status", b"2xx")),
        lambda talk: talk.headers(1, (b":status", b"100"), end=True),
        lambda talk: talk.headers(1, *HEAD, (b"content-length", b"3")) + data(1, b"four", end=True),
        lambda talk: window_update(1, 0),
        lambda talk: talk.headers(1, *HEAD) + data(1, bytes(1001)),  # beyond the window
    ],
)
def test_a_fault_of_a_stream_costs_that_stream_alone(said: Any) -> None:
    talk = Talk(SMALL)
    stream, other = talk.ask(), talk.ask()
    events = talk.hear(said(talk))
    assert [event.stream for event in events if isinstance(event, StreamReset)] == [stream]
    assert not talk.client.ended
    answered = talk.hear(talk.headers(other.id, *HEAD), data(other.id, b"fine"))
    assert [type(event) for event in answered] == [HeadReceived, DataReceived]


def test_a_stream_that_the_server_resets_ends_with_its_code_and_no_other_does() -> None:
    talk = Talk()
    stream, other = talk.ask(), talk.ask()
    [event] = talk.hear(reset(stream.id, ErrorCode.ENHANCE_YOUR_CALM))
    assert isinstance(event, StreamReset)
    assert (event.stream, event.code) == (stream, ErrorCode.ENHANCE_YOUR_CALM)
    assert list(talk.client.streams) == [other.id]
    assert talk.hear(reset(stream.id)) == []


def test_an_informational_head_is_read_past() -> None:
    talk = Talk()
    stream = talk.ask()
    [event] = talk.hear(talk.headers(1, (b":status", b"103")), talk.headers(1, *HEAD))
    assert isinstance(event, HeadReceived)
    assert (event.stream, event.head.status) == (stream, b"200")


def test_streams_that_a_goaway_leaves_out_were_not_looked_at() -> None:
    talk = Talk()
    first, second = talk.ask(), talk.ask()
    goaway = frame(FrameType.GOAWAY, 0, 0, first.id.to_bytes(4, "big") + bytes(4) + b"shutting down")
    gone, going = talk.hear(goaway)
    assert isinstance(gone, StreamReset)
    assert (gone.stream, gone.code) == (second, ErrorCode.REFUSED_STREAM)
    assert isinstance(going, GoingAway)
    assert going.why == "shutting down"
    assert talk.client.going
    assert [
        type(each) for each in talk.hear(talk.headers(1, *HEAD), talk.headers(1, *TRAILERS, end=True))
    ] == [
        HeadReceived,
        HeadReceived,
    ]
    assert not talk.client.streams


def test_an_answer_before_the_end_of_the_question_ends_both() -> None:
    talk = Talk()
    stream = talk.client.open()
    talk.client.out.head(stream, REQUEST)
    talk.client.take(0.0)
    talk.hear(talk.headers(1, *HEAD, *TRAILERS, end=True))
    assert talk.client.take(0.0) == reset(1, ErrorCode.NO_ERROR)
    assert not talk.client.streams
    assert talk.hear(data(1, b"late"), reset(1)) == []  # were under way


def test_a_paused_stream_opens_its_window_when_it_goes_on() -> None:
    talk = Talk(SMALL)
    stream = talk.ask()
    talk.client.take(0.0)
    talk.client.pause(stream)
    talk.hear(talk.headers(1, *HEAD), data(1, bytes(1000)))
    assert talk.client.take(0.0) == b""
    talk.client.resume(stream, 0.0)
    assert talk.client.take(0.0) == window_update(1, 1000)


def test_half_of_the_connections_window_is_granted_again_before_the_rest_is_used_up() -> None:
    talk = Talk(Limits(connection_window_bytes=65_535, connection_window_max_bytes=65_535))
    talk.ask()
    talk.hear(talk.headers(1, *HEAD), data(1, bytes(16_384)), data(1, bytes(16_383)))
    assert talk.client.take(0.0) == b""
    talk.hear(data(1, b"x"))
    assert talk.client.take(0.0) == window_update(0, 32_768)


def test_an_even_window_is_granted_again_at_exactly_its_half() -> None:
    """Of the connection and of the stream, which the server counts on by RFC 9113 6.9 as soon as it may."""
    size = 1 << 16
    talk = Talk(Limits(connection_window_bytes=size, connection_window_max_bytes=size, stream_window_bytes=size, stream_window_max_bytes=size))  # fmt: skip
    talk.ask()
    talk.hear(talk.headers(1, *HEAD), data(1, bytes(size // 2 - 1)))
    assert talk.client.take(0.0) == b""
    talk.hear(data(1, b"x"))
    assert talk.client.take(0.0) == window_update(0, size // 2) + window_update(1, size // 2)


def test_data_waits_for_the_servers_window() -> None:
    talk = Talk()
    stream = talk.client.open()
    talk.hear(settings((4, 10)))  # INITIAL_WINDOW_SIZE
    talk.client.out.request(stream, REQUEST, bytes(25))
    talk.client.take(0.0)
    assert talk.client.out.room(stream) == 0
    talk.hear(window_update(1, 10))
    assert talk.client.take(0.0) == data(1, bytes(10))
    talk.hear(window_update(1, 10))
    assert talk.client.take(0.0) == data(1, bytes(5)) + data(1, b"", end=True)


def test_the_servers_limit_of_streams_is_seen() -> None:
    talk = Talk()
    talk.hear(settings((3, 2)))  # MAX_CONCURRENT_STREAMS
    talk.ask()
    assert not talk.client.full
    talk.ask()
    assert talk.client.full


def test_a_flood_of_empty_frames_ends_the_connection() -> None:
    talk = Talk()
    talk.ask()
    talk.hear(talk.headers(1, *HEAD))
    events = talk.hear(data(1, b"") * 300)
    assert isinstance(events[-1], ConnectionEnded)
    assert events[-1].code == ErrorCode.ENHANCE_YOUR_CALM


def test_an_answer_has_its_fields_and_none_whose_value_could_not_be_one() -> None:
    head = AnswerHead([(b":status", b"200"), (b"grpc-status", b"0"), (b"content-length", b"3")])
    assert (head.status, head.content_length) == (b"200", 3)
    assert head.fields == ((b"grpc-status", b"0"), (b"content-length", b"3"))
    for value in (b"0\r\nset-cookie: a", b"0\n", b"0\0", b" 0", b"0\t"):
        with pytest.raises(MalformedHead, match="the value of 'grpc-status' is none"):
            AnswerHead([(b":status", b"200"), (b"grpc-status", value)])
