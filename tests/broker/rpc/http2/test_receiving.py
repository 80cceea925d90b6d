"""What a connection understands, and what it does not stand for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.http2 import (
    ConnectionEnded,
    DataReceived,
    Event,
    Limits,
    RequestReceived,
    StreamReset,
)
from pydanube_core.http2.codes import PREFACE, ErrorCode, FrameType
from pydanube_core.http2.streams import ACTS, NEXT, TRANSITIONS, Act, StreamState

from tests.broker.rpc.http2_conversations import beginnings, hold_a_conversation
from tests.broker.rpc.http2_peer import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    REQUEST,
    Frame,
    Peer,
    data,
    frame,
    message,
    reset,
    settings,
    window_update,
)


def ended(events: list[Event]) -> ConnectionEnded | None:
    return events[-1] if events and isinstance(events[-1], ConnectionEnded) else None


def resets(frames: list[Frame]) -> dict[int, int]:
    return {f.stream_id: int.from_bytes(f.payload, "big") for f in frames if f.kind == FrameType.RST_STREAM}


def shown(events: list[Event]) -> list[object]:
    """Events as plain values, neighbouring data of a stream joined."""
    found: list[object] = []
    for event in events:
        match event:
            case RequestReceived():
                body = event.data[event.start : event.end]
                found.append((event.stream.id, event.head.path, event.varying, event.ended and not body))
                if body:
                    found.append([event.stream.id, body, True])
            case DataReceived():
                piece = event.data[event.start : event.end]
                last = found[-1] if found else None
                if isinstance(last, list) and last[0] == event.stream.id and not last[2]:
                    last[1] += piece
                    last[2] = event.ended
                else:
                    found.append([event.stream.id, piece, event.ended])
            case StreamReset():
                found.append((event.stream.id, int(event.code)))
            case _:
                found.append(type(event).__name__)
    return found


def conversation(peer: Peer) -> bytes:
    """A client's side of some calls: timeouts, padding, priority, CONTINUATION, trailers, pings, resets."""
    sent = PREFACE + settings((4, 1 << 20)) + settings(ack=True) + peer.request(1)
    sent += frame(FrameType.PING, 0, 0, b"12345678") + data(1, message(b"one"), end=True)
    block = peer.block(("grpc-timeout", "5S"))
    sent += frame(FrameType.HEADERS, 0, 3, block[:7])
    sent += frame(FrameType.CONTINUATION, 0, 3, block[7:9])
    sent += frame(FrameType.CONTINUATION, END_HEADERS, 3, block[9:])
    sent += frame(FrameType.DATA, PADDED, 3, b"\x03" + b"two" + bytes(3))
    sent += window_update(0, 1000) + peer.request(5, ("grpc-timeout", "17m"), end=True)
    sent += frame(FrameType.PRIORITY, 0, 5, bytes(5)) + frame(0xFA, 7, 5, b"unknown")
    trailers = peer.encoder.encode([("x-trailer", "of three")])
    sent += frame(FrameType.HEADERS, END_HEADERS | END_STREAM, 3, trailers)
    padded = b"\x02" + bytes(5) + peer.block() + bytes(2)
    sent += frame(FrameType.HEADERS, END_HEADERS | 0x20 | PADDED, 7, padded)
    return sent + reset(7) + peer.request(9) + window_update(9, 1000) + data(9, message(b"four"), end=True)


EXPECTED = [
    (1, b"/test.Test/Echo", None, False),
    [1, message(b"one"), True],
    (3, b"/test.Test/Echo", None, False),
    [3, b"two", False],
    (5, b"/test.Test/Echo", None, True),
    [3, b"", True],
    (7, b"/test.Test/Echo", None, False),
    (7, 8),
    (9, b"/test.Test/Echo", None, False),
    [9, message(b"four"), True],
]


def test_a_small_request_that_came_as_one_is_one_event() -> None:
    peer = Peer()
    peer.greet()
    sent = peer.request(1) + window_update(0, 10) + data(1, message(b"small"), end=True)
    (event,) = peer.send(sent)
    assert isinstance(event, RequestReceived)
    assert event.ended
    assert event.data[event.start : event.end] == message(b"small")
    assert event.stream.state is StreamState.HALF_CLOSED_REMOTE


def test_data_behind_the_end_of_a_request_that_was_one_event_is_refused() -> None:
    peer = Peer()
    peer.greet()
    peer.read()
    events = peer.send(peer.request(1) + data(1, b"all", end=True) + data(1, b"more"))
    assert [type(event) for event in events] == [RequestReceived, StreamReset]
    assert resets(peer.read()) == {1: ErrorCode.STREAM_CLOSED}


def test_a_body_that_is_not_as_long_as_announced_is_refused_though_it_came_with_its_head() -> None:
    peer = Peer()
    peer.greet()
    peer.read()
    block = peer.block(("content-length", "4"))
    events = peer.send(peer.request(1, block=block) + data(1, b"all", end=True))
    assert isinstance(events[-1], StreamReset)
    assert resets(peer.read()) == {1: ErrorCode.PROTOCOL_ERROR}


@given(st.lists(st.integers(0, 600), max_size=12), st.sampled_from([0, 4096]))
def test_any_split_of_the_bytes_means_the_same(cuts: list[int], table_bytes: int) -> None:
    peer = Peer(varying=b"")
    peer.encoder.header_table_size = table_bytes
    sent = conversation(peer)
    events: list[Event] = []
    places = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    for start, end in pairwise(places):
        events += peer.send(sent[start:end])
    found = shown(events)
    assert found == EXPECTED
    assert not peer.server.ended
    assert [f.payload for f in peer.read() if f.kind == FrameType.PING and f.flags & 1] == [b"12345678"]


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=8),
    st.lists(st.integers(0, 700), max_size=5),
)
def test_damaged_bytes_never_raise_and_end_in_order(damage: list[tuple[int, int]], cuts: list[int]) -> None:
    peer = Peer()
    sent = bytearray(conversation(peer))
    for place, value in damage:
        sent[place % len(sent)] = value
    places = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    open_streams: set[int] = set()
    over = False
    for start, end in pairwise(places):
        for event in peer.send(bytes(sent[start:end])):
            assert not over, "nothing follows the end"
            match event:
                case RequestReceived():
                    assert event.stream.id not in open_streams
                    open_streams.add(event.stream.id)
                case DataReceived():
                    assert event.stream.id in open_streams
                case StreamReset():
                    open_streams.remove(event.stream.id)
                case ConnectionEnded():
                    over = True
        for answer in peer.read():
            if over and answer.kind == FrameType.GOAWAY:
                assert int.from_bytes(answer.payload[4:8], "big") != 0
    assert over == peer.server.ended
    assert set(peer.server.streams) == (set() if over else open_streams)


@given(st.binary(max_size=400))
def test_nonsense_after_the_greeting_never_raises(nonsense: bytes) -> None:
    peer = Peer()
    peer.greet()
    peer.send(nonsense)
    peer.read()


@given(
    st.sampled_from(beginnings()), st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=9)), max_size=5)
)
def test_changed_conversations_leave_a_connection_in_order(
    beginning: bytes, changes: list[tuple[int, bytes]]
) -> None:
    for place, piece in changes:
        beginning = beginning[:place] + piece + beginning[place + len(piece) // 2 :]
    hold_a_conversation(beginning)


def test_the_table_of_states_is_whole_and_leads_to_the_end() -> None:
    assert all(
        NEXT[state * ACTS + act] == TRANSITIONS.get((state, act)) for state in StreamState for act in Act
    )
    assert not [key for key in TRANSITIONS if key[0] is StreamState.CLOSED], "closed is the end"
    for act in (Act.RECV_DATA, Act.RECV_END, Act.RECV_HEADERS):
        assert (StreamState.HALF_CLOSED_REMOTE, act) not in TRANSITIONS
    for act in (Act.SEND, Act.SEND_END):
        assert (StreamState.HALF_CLOSED_LOCAL, act) not in TRANSITIONS


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(FrameType.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),  # idle
        (frame(FrameType.HEADERS, END_HEADERS, 2, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (frame(FrameType.HEADERS, END_HEADERS, 1, b"\x3f\xe1\x1f\x82"), ErrorCode.COMPRESSION_ERROR),
        (frame(FrameType.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.SETTINGS, 1, 0, b"123456"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (settings((2, 2)), ErrorCode.PROTOCOL_ERROR),
        (settings((4, 1 << 31)), ErrorCode.FLOW_CONTROL_ERROR),
        (settings((5, 100)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.PING, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (window_update(0, (1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (window_update(1, 1), ErrorCode.PROTOCOL_ERROR),
        (reset(1), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.CONTINUATION, 4, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.DATA, 0, 1, bytes((64 << 10) + 1)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_fault_of_the_connection_ends_it_with_its_code(sent: bytes, code: ErrorCode) -> None:
    peer = Peer()
    peer.greet()
    peer.read()
    end = ended(peer.send(sent))
    assert end is not None
    assert end.code == code
    (goaway,) = [f for f in peer.read() if f.kind == FrameType.GOAWAY]
    assert int.from_bytes(goaway.payload[4:8], "big") == code
    assert peer.send(data(1, b"more")) == []


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (lambda peer: window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: window_update(1, (1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (lambda peer: peer.request(1), ErrorCode.PROTOCOL_ERROR),  # no trailers: END_STREAM is missing
        (lambda peer: data(1, b"x", end=True) + data(1, b"y"), ErrorCode.STREAM_CLOSED),
        (lambda peer: frame(FrameType.PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_fault_of_a_stream_costs_that_stream_alone(more: object, code: ErrorCode) -> None:
    peer = Peer()
    peer.greet()
    peer.send(peer.request(1) + peer.request(3))
    events = peer.send(more(peer))  # type: ignore[operator]
    assert [event.stream.id for event in events if isinstance(event, StreamReset)] == [1]
    assert resets(peer.read()) == {1: code}
    assert shown(peer.send(data(3, b"still there", end=True))) == [[3, b"still there", True]]


@pytest.mark.parametrize(
    "headers",
    [
        REQUEST[1:],
        (*REQUEST, (":path", "/again")),
        (*REQUEST[:2], (":path", ""), *REQUEST[3:]),
        (*REQUEST, ("Upper", "case")),
        (*REQUEST, ("connection", "close")),
        (*REQUEST, ("te", "gzip")),
        (*REQUEST, ("new", "line\nin it")),
        (*REQUEST, ("content-length", "many")),
        (*REQUEST, (":unknown", "x")),
        (("x", "before"), *REQUEST),
    ],
)
def test_a_malformed_request_is_reset_and_the_next_is_served(headers: tuple[tuple[str, str], ...]) -> None:
    peer = Peer(table_bytes=4096)
    peer.greet()
    block = peer.block(headers=headers)
    assert shown(peer.send(peer.request(1, block=block, end=True))) == []
    assert resets(peer.read()) == {1: ErrorCode.PROTOCOL_ERROR}
    assert shown(peer.send(peer.request(3, end=True))) == [(3, b"/test.Test/Echo", None, True)]


def test_content_length_is_held_against_what_comes() -> None:
    peer = Peer()
    peer.greet()
    peer.send(peer.request(1, ("content-length", "3")))
    assert shown(peer.send(data(1, b"1234"))) == [(1, ErrorCode.PROTOCOL_ERROR)]


def test_more_streams_than_announced_are_refused() -> None:
    peer = Peer(Limits(max_streams=2))
    peer.greet()
    peer.send(peer.request(1) + peer.request(3) + peer.request(5))
    assert resets(peer.read()) == {5: ErrorCode.REFUSED_STREAM}
    peer.send(reset(1))
    assert shown(peer.send(peer.request(7, end=True))) == [(7, b"/test.Test/Echo", None, True)]


def test_data_beyond_the_windows_is_refused() -> None:
    peer = Peer(
        Limits(stream_window_bytes=1000, stream_window_max_bytes=1000, connection_window_bytes=65_535)
    )
    peer.greet()
    peer.send(peer.request(1) + peer.request(3))
    peer.server.pause(peer.server.streams[1])
    assert shown(peer.send(data(1, bytes(900)))) == [[1, bytes(900), False]]
    assert shown(peer.send(data(1, bytes(101)))) == [(1, ErrorCode.FLOW_CONTROL_ERROR)]


def test_a_paused_stream_gets_no_window_and_one_that_goes_on_gets_it_back() -> None:
    peer = Peer(Limits(stream_window_bytes=1000, stream_window_max_bytes=1000))
    peer.greet()
    peer.send(peer.request(1))
    stream = peer.server.streams[1]
    peer.server.pause(stream)
    peer.send(data(1, bytes(1000)))
    assert [f for f in peer.read() if f.kind == FrameType.WINDOW_UPDATE and f.stream_id == 1] == []
    peer.server.resume(stream, peer.now)
    (update,) = [f for f in peer.read() if f.kind == FrameType.WINDOW_UPDATE and f.stream_id == 1]
    assert int.from_bytes(update.payload, "big") == 1000


def test_a_window_grows_for_a_peer_that_fills_it_and_not_for_one_that_does_not() -> None:
    for pause_s, grows in ((0.001, True), (5.0, False)):
        peer = Peer(Limits(stream_window_bytes=1 << 16, stream_window_max_bytes=1 << 20))
        peer.greet()
        peer.send(peer.request(1))
        for _ in range(200):
            peer.now += pause_s
            peer.send(data(1, bytes(16 << 10)))
            peer.read()
        window = peer.server.streams[1].receive
        assert window is not None
        size = window.size
        assert size == (1 << 20 if grows else 1 << 16)


def test_pings_are_acknowledged_ten_times_a_second_at_most() -> None:
    peer = Peer()
    peer.greet()
    acked = 0
    for _ in range(50):
        peer.send(frame(FrameType.PING, 0, 0, b"bandwith"))
        answers = [f for f in peer.read() if f.kind == FrameType.PING and f.flags & 1]
        acked += bool(answers)
        peer.now += 0.02
    assert 9 <= acked <= 12
    peer.now += 1
    assert peer.server.control.answer_pings(peer.now) == 0.0
    assert not peer.server.control.pings


def test_streams_under_way_are_taken_until_the_peer_has_heard_of_the_end() -> None:
    peer = Peer()
    peer.greet()
    peer.server.announce_end()
    first = peer.read()
    (ping,) = [f for f in first if f.kind == FrameType.PING]
    assert shown(peer.send(peer.request(1, end=True))) == [(1, b"/test.Test/Echo", None, True)]
    peer.send(frame(FrameType.PING, 1, 0, ping.payload))
    (goaway,) = [f for f in peer.read() if f.kind == FrameType.GOAWAY]
    assert int.from_bytes(goaway.payload[:4], "big") == 1
    peer.send(peer.request(3, end=True))
    assert resets(peer.read()) == {3: ErrorCode.REFUSED_STREAM}


def test_data_of_a_request_do_not_join_one_whose_head_came_in_pieces_meanwhile() -> None:
    """All in one read: the head of a call, that of another in two frames, then all data of the first."""
    peer = Peer()
    peer.greet()
    first, second = peer.block(), peer.block()
    events = peer.send(
        peer.request(1, block=first)
        + frame(FrameType.HEADERS, 0, 3, second[:4])
        + frame(FrameType.CONTINUATION, END_HEADERS, 3, second[4:])
        + data(1, message(b"of the first"), end=True)
    )
    heads = {event.stream.id: event for event in events if isinstance(event, RequestReceived)}
    assert heads.keys() == {1, 3}
    assert not heads[3].ended
    assert heads[3].data == b""
    received = [event for event in events if isinstance(event, DataReceived)]
    assert [(event.stream.id, event.ended) for event in received] == [(1, True)]
