"""What leaves, in which order, and never more than the peer has room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.http2 import Limits, Stream
from pydanube_core.http2.codes import ErrorCode, FrameType

from tests.broker.rpc.http2_peer import Frame, Peer, data, frame, reset, settings, window_update

HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS = ((b"grpc-status", b"0"),)


def stream(peer: Peer, number: int, *, end: bool = False) -> Stream:
    peer.send(peer.request(number, end=end))
    return peer.server.streams[number]


def body(frames: list[Frame], number: int) -> bytes:
    return b"".join(f.payload for f in frames if f.kind == FrameType.DATA and f.stream_id == number)


def test_an_answer_is_one_write_of_three_frames() -> None:
    peer = Peer()
    peer.greet()
    asked = stream(peer, 1, end=True)
    peer.read()
    peer.server.out.answer(asked, HEAD, b"abc", TRAILERS)
    found = peer.read()
    assert [(f.kind, f.end) for f in found] == [
        (FrameType.HEADERS, False),
        (FrameType.DATA, False),
        (FrameType.HEADERS, True),
    ]
    assert dict(peer.decoder.decode(found[0].payload))[":status"] == "200"
    assert body(found, 1) == b"abc"
    assert peer.decoder.decode(found[2].payload) == [("grpc-status", "0")]
    assert not peer.server.streams


@given(
    sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 30_000)), max_size=60),
    window=st.integers(0, 70_000),
    frame_bytes=st.sampled_from([16_384, 65_536]),
)
def test_windows_are_kept_to_and_everything_arrives_in_order(
    sizes: list[int], steps: list[tuple[int, int]], window: int, frame_bytes: int
) -> None:
    peer = Peer()
    peer.greet((4, window), (5, frame_bytes))
    whole = {2 * i + 1: bytes((i + 1,)) * size for i, size in enumerate(sizes)}
    got = dict.fromkeys(whole, b"")
    room = {0: 65_535, **dict.fromkeys(whole, window)}
    for number, text in whole.items():
        opened = stream(peer, number, end=True)
        peer.server.out.head(opened, HEAD)
        half = len(text) // 2
        peer.server.out.data(opened, text[:half])
        peer.server.out.owe(opened, number)
        peer.server.out.data(opened, text[half:])
        peer.server.out.finish(opened, TRAILERS, repeats=True)
    ended = set()

    def receive() -> None:
        for f in peer.read():
            if f.kind == FrameType.DATA:
                assert f.stream_id not in ended
                assert len(f.payload) <= frame_bytes
                got[f.stream_id] += f.payload
                for key in (0, f.stream_id):
                    room[key] -= len(f.payload)
                    assert room[key] >= 0, "more than the window"
            elif f.end:
                ended.add(f.stream_id)
        waiting = [each for each in peer.server.streams.values() if each.queue is not None]
        stuck = [each.queued_bytes + each.owed_bytes for each in waiting if peer.server.out.room(each) <= 0]
        assert peer.server.out.stuck_bytes == sum(stuck)

    receive()
    for which, more in steps:
        number = 0 if which == 0 else 2 * which - 1
        if number in room and number not in ended:
            room[number] += more
            peer.send(window_update(number, more))
            receive()
    for number in room:
        if number not in ended:
            room[number] += 1 << 20
            peer.send(window_update(number, 1 << 20))
    receive()
    assert got == whole
    assert ended == set(whole)
    assert not peer.server.streams


def test_streams_take_turns_and_an_answer_waits_for_none_of_them() -> None:
    peer = Peer()
    peer.greet((4, 1 << 20), (5, 1 << 16))
    peer.send(window_update(0, 1 << 24))
    out = peer.server.out
    first, second, asked = stream(peer, 1), stream(peer, 3), stream(peer, 5, end=True)
    for opened in (first, second):
        out.head(opened, HEAD)
    peer.read()
    for _ in range(8):
        out.data(first, bytes(64 << 10))
    out.data(second, bytes(1000))
    out.answer(asked, HEAD, b"answer", TRAILERS)
    found = [f.stream_id for f in peer.read() if f.kind == FrameType.DATA]
    assert found.index(5) <= 2, "only what was handed out before goes before an answer"
    assert found.index(3) <= 4, "one turn of each stream"
    assert found.count(1) == 8


def test_streams_leave_room_in_the_window_for_answers() -> None:
    peer = Peer()
    peer.greet((4, 1 << 20))
    out = peer.server.out
    consumer, asked = stream(peer, 1), stream(peer, 3, end=True)
    out.head(consumer, HEAD)
    out.answers_open = 1
    for _ in range(10):
        out.data(consumer, bytes(16_000))
    sent = len(body(peer.read(), 1))
    assert 65_535 - 4096 - 16_000 < sent <= 65_535 - 4096
    out.answer(asked, HEAD, bytes(200), TRAILERS)
    assert len(body(peer.read(), 3)) == 200
    out.answers_open = 0
    assert len(body(peer.read(), 1)) > 0


def test_a_stream_that_is_full_is_told_when_there_is_room() -> None:
    peer = Peer(Limits(buffer_bytes=100_000))
    peer.greet((4, 0))
    peer.send(window_update(0, 1 << 20))
    waiting = stream(peer, 1)
    out = peer.server.out
    for _ in range(10):
        out.data(waiting, bytes(10_000))
    assert waiting.full
    peer.send(window_update(1, 30_000))
    peer.read()
    assert not out.relieved
    peer.send(window_update(1, 60_000))
    peer.read()
    assert out.relieved == [waiting]
    assert not waiting.full


def test_streams_share_the_buffer() -> None:
    peer = Peer(Limits(buffer_bytes=100_000))
    peer.greet((4, 0))
    opened = [stream(peer, number) for number in (1, 3, 5, 7)]
    for one in opened:
        peer.server.out.data(one, bytes(30_000))
    assert [one.full for one in opened] == [False, False, False, True]


def test_what_waits_in_all_streams_of_a_connection_is_bounded() -> None:
    peer = Peer(Limits(queued_bytes=100_000))
    peer.greet((4, 0))
    peer.send(window_update(0, 1 << 20))
    opened = [stream(peer, number) for number in range(1, 41, 2)]
    out = peer.server.out
    for one in opened:
        if out.admits(one):
            out.data(one, bytes(40_000))
    handed = [one for one in opened if one.queue is not None]
    assert len(handed) == 3, "a frame beyond the bound at the most"
    peer.send(window_update(1, 40_000))
    peer.read()
    assert not out.relieved, "more than half of it waits"
    peer.send(window_update(3, 40_000))
    peer.read()
    assert out.relieved[:2] == opened[3:5], "in the order in which they asked"
    assert all(out.admits(one) for one in opened[3:])
    for one in opened[:3]:
        peer.send(reset(one.id))
    assert out.waiting_bytes == 0


def test_what_a_peer_makes_the_server_hold_is_counted_and_nothing_of_it_stays() -> None:
    peer = Peer()
    peer.greet((4, 0))
    empty = peer.server.held_bytes
    opened = stream(peer, 1)
    peer.send(peer.request(3, ("x-long", "v" * 20_000)))
    assert peer.server.held_bytes > empty + 20_000
    peer.server.out.data(opened, bytes(5000))
    peer.send(frame(FrameType.DATA, 0, 1, bytes(9000))[:5000])
    assert peer.server.held_bytes > empty + 30_000
    peer.send(bytes(4009) + reset(1) + reset(3))
    peer.read()
    assert peer.server.held_bytes < empty + 1000, "but for the head that may come again"


def test_the_settings_of_the_peer_change_windows_that_are_open() -> None:
    peer = Peer()
    peer.greet((4, 10))
    opened = stream(peer, 1)
    peer.server.out.data(opened, bytes(30))
    assert len(body(peer.read(), 1)) == 10
    peer.send(settings((4, 5)))
    assert peer.server.out.room(opened) == -5
    peer.send(settings((4, 22)))
    assert len(body(peer.read(), 1)) == 12


def test_what_waits_of_a_stream_that_is_reset_is_dropped() -> None:
    peer = Peer()
    peer.greet((4, 10))
    opened, other = stream(peer, 1), stream(peer, 3)
    for one in (opened, other):
        peer.server.out.data(one, bytes(30))
    peer.send(reset(1))
    peer.server.out.data(opened, b"nobody reads this")
    peer.server.out.finish(opened, TRAILERS, repeats=True)
    peer.send(window_update(3, 100))
    found = peer.read()
    assert {f.stream_id for f in found if f.kind == FrameType.DATA} == {3}
    assert not peer.server.out.pending


def test_a_response_before_the_end_of_the_request_stops_the_request() -> None:
    peer = Peer()
    peer.greet()
    asked = stream(peer, 1)
    peer.read()
    peer.server.out.finish(asked, (*HEAD, *TRAILERS), repeats=False)
    assert [f.kind for f in peer.read()] == [FrameType.HEADERS, FrameType.RST_STREAM]
    assert peer.send(frame(FrameType.DATA, 1, 1, b"was under way")) == []
    assert peer.read() == []


def test_frames_that_were_under_way_when_a_stream_was_reset_are_no_fault_of_the_peer() -> None:
    peer = Peer()
    peer.greet()
    asked = stream(peer, 1)
    peer.read()
    peer.server.out.reset(asked, ErrorCode.CANCEL)
    assert [f.kind for f in peer.read()] == [FrameType.RST_STREAM]
    late = (data(1, b"late"), window_update(1, 5), peer.request(1, end=True), reset(1))
    assert [peer.send(each) for each in late] == [[], [], [], []]
    assert peer.read() == []


@given(
    answers=st.lists(st.tuples(*[st.sampled_from([0, 1, 100, 255, 256, 300, 511, 512, 700])] * 3), max_size=4)
)
def test_whole_answers_with_headers_of_any_length_arrive_as_they_were_sent(
    answers: list[tuple[int, int, int]],
) -> None:
    peer = Peer()
    peer.greet()
    peer.read()
    for number, (head, size, tail) in enumerate(answers):
        asked = stream(peer, 2 * number + 1, end=True)
        more, last = b"h" * head, b"t" * tail
        peer.server.out.answer(asked, (*HEAD, (b"x-more", more)), bytes(size), (*TRAILERS, (b"x-last", last)))
        begin, *middle, end = peer.read()
        assert dict(peer.decoder.decode(begin.payload))["x-more"].encode() == more
        assert b"".join(f.payload for f in middle) == bytes(size)
        assert dict(peer.decoder.decode(end.payload)) == {"grpc-status": "0", "x-last": last.decode()}
        assert [begin.flags, *(f.flags for f in middle), end.flags] == [4, *[0] * len(middle), 5]


def test_a_block_larger_than_a_frame_is_continued() -> None:
    peer = Peer()
    peer.greet()
    asked = stream(peer, 1, end=True)
    peer.read()
    long = bytes(range(33, 120)) * 400
    peer.server.out.finish(asked, (*HEAD, *TRAILERS, (b"grpc-message", long)), repeats=False)
    found = peer.read()
    assert [f.kind for f in found] == [FrameType.HEADERS, FrameType.CONTINUATION, FrameType.CONTINUATION]
    headers = dict(peer.decoder.decode(b"".join(f.payload for f in found)))
    assert headers["grpc-message"].encode() == long
