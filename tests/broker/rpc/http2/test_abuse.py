"""A peer that causes work without doing any is told to be calm, and its connection ends; the reason is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hpack import Encoder
from pydanube_core.http2 import ConnectionEnded, Limits
from pydanube_core.http2.budgets import BUDGETS, BudgetKind, Budgets
from pydanube_core.http2.codes import PREFACE, ConnectionFailure, ErrorCode, FrameType, StreamFailure

from tests.broker.rpc.http2_peer import (
    END_HEADERS,
    REQUEST,
    Peer,
    data,
    frame,
    reset,
    settings,
    window_update,
)


def rapid_reset(peer: Peer) -> Iterator[bytes]:
    number = 1
    while True:
        yield peer.request(number) + reset(number)
        number += 2


def faults(peer: Peer) -> Iterator[bytes]:
    number = 1
    while True:
        yield peer.request(number) + window_update(number, 0)
        number += 2


def again(*frames: bytes) -> Callable[[Peer], Iterator[bytes]]:
    def sent(peer: Peer) -> Iterator[bytes]:
        yield peer.request(1)
        while True:
            yield b"".join(frames)

    return sent


def window_game(peer: Peer) -> Iterator[bytes]:
    """Have a large answer waiting, and let it out byte by byte."""
    yield settings((4, 0)) + peer.request(1)
    peer.server.out.data(peer.server.streams[1], bytes(100_000))
    while True:
        yield window_update(1, 1)


FLOODS: list[tuple[BudgetKind, Callable[[Peer], Iterator[bytes]]]] = [
    (BudgetKind.RESETS, rapid_reset),
    (BudgetKind.FAULTS, faults),
    (BudgetKind.SETTINGS, again(settings((4, 70_000)))),
    (BudgetKind.SETTINGS, again(settings())),
    (BudgetKind.PINGS, again(frame(FrameType.PING, 0, 0, bytes(8)))),
    (BudgetKind.EMPTY_DATA, again(data(1, b""))),
    (BudgetKind.PRIORITIES, again(frame(FrameType.PRIORITY, 0, 9, bytes(5)))),
    (BudgetKind.UNKNOWN, again(frame(0xEE, 0, 0))),
    (BudgetKind.TINY_WINDOWS, window_game),
]


@pytest.mark.parametrize(("kind", "flood"), FLOODS)
def test_a_flood_overdraws_its_budget(kind: BudgetKind, flood: Callable[[Peer], Iterator[bytes]]) -> None:
    peer = Peer()
    peer.greet()
    burst, _ = BUDGETS[kind]
    for number, sent in enumerate(flood(peer)):
        assert number <= burst + 3, "the burst is all there is"
        events = peer.send(sent)
        answers = peer.read()
        if events and isinstance(events[-1], ConnectionEnded):
            assert (events[-1].code, events[-1].why) == (ErrorCode.ENHANCE_YOUR_CALM, kind.value)
            assert [f for f in answers if f.kind == FrameType.GOAWAY]
            assert number >= burst - 3
            return


@pytest.mark.parametrize(
    ("kind", "flood"), [item for item in FLOODS if item[0] is not BudgetKind.TINY_WINDOWS]
)
def test_the_same_at_a_steady_rate_is_no_flood(
    kind: BudgetKind, flood: Callable[[Peer], Iterator[bytes]]
) -> None:
    peer = Peer()
    peer.greet()
    burst, rate = BUDGETS[kind]
    for number, sent in enumerate(flood(peer)):
        assert not [event for event in peer.send(sent) if isinstance(event, ConnectionEnded)]
        peer.read()
        peer.now += 1.01 / rate
        if number > burst + 50:
            return


def test_grpcios_small_window_updates_are_no_game() -> None:
    """It answers every small message with an increment of the message's size."""
    peer = Peer()
    peer.greet()
    for number in range(1, 6001, 2):
        assert not [
            event for event in peer.send(peer.request(number, end=True)) if isinstance(event, ConnectionEnded)
        ]
        out, stream = peer.server.out, peer.server.streams[number]
        out.answer(stream, ((b":status", b"200"),), b"1234567", ((b"grpc-status", b"0"),))
        peer.read()
        assert not [
            e
            for e in peer.send(window_update(0, 7) + window_update(number, 7))
            if isinstance(e, ConnectionEnded)
        ]


def test_a_header_block_without_end_is_not_waited_for() -> None:
    peer = Peer()
    peer.greet()
    events = peer.send(frame(FrameType.HEADERS, 0, 1, peer.block()))
    for _ in range(100):
        events += peer.send(frame(FrameType.CONTINUATION, 0, 1, b""))
    assert isinstance(events[-1], ConnectionEnded)
    assert (events[-1].code, events[-1].why) == (ErrorCode.ENHANCE_YOUR_CALM, "continuation_flood")


def test_a_failure_reads_as_the_rule_that_was_broken() -> None:
    code = ErrorCode.PROTOCOL_ERROR
    for failure in (
        ConnectionFailure(code, "padding_too_large"),
        StreamFailure(1, code, "padding_too_large"),
    ):
        assert str(failure) == failure.why == "padding_too_large"


@pytest.mark.parametrize("more", [0, 1])
def test_a_header_block_may_have_as_many_frames_and_bytes_as_the_limits_say(more: int) -> None:
    """`more` than that ends the connection, also if only the last frame is one too many."""
    block = Peer().block(("x-large", "x" * 300))
    for limits, pieces in (
        (Limits(continuations=3), [block[:10], *[b""] * (2 + more), block[10:]]),
        (Limits(header_block_bytes=len(block) - more), [block[:10], block[10:]]),
        (Limits(header_block_bytes=len(block) - more), [block]),
    ):
        peer = Peer(limits)
        peer.greet()
        first, *rest = pieces
        sent = frame(FrameType.HEADERS, 0 if rest else END_HEADERS, 1, first)
        for left, piece in enumerate(rest, 1 - len(rest)):
            sent += frame(FrameType.CONTINUATION, 0 if left else END_HEADERS, 1, piece)
        (event,) = peer.send(sent)
        assert isinstance(event, ConnectionEnded) is bool(more)
        assert (1 in peer.server.streams) is not bool(more)


def test_a_large_header_block_is_refused_before_it_is_read() -> None:
    peer = Peer(Limits(header_block_bytes=1000))
    peer.greet()
    (end,) = peer.send(peer.request(1, ("x-large", "é" * 2000)))
    assert isinstance(end, ConnectionEnded)
    assert end.code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_small_block_that_unpacks_to_much_is_refused() -> None:
    """One large entry in the table, referred to a thousand times; before our SETTINGS are acknowledged."""
    peer = Peer()
    peer.send(PREFACE + settings())
    encoder = Encoder()
    block = encoder.encode((*REQUEST, ("x", "y" * 3000)))
    peer.send(frame(FrameType.HEADERS, 5, 1, block))
    bomb = encoder.encode(REQUEST) + b"\xbe" * 1000
    *_, end = peer.send(frame(FrameType.HEADERS, 5, 3, bomb))
    assert isinstance(end, ConnectionEnded)
    assert end.code == ErrorCode.ENHANCE_YOUR_CALM


def test_what_speaks_no_http2_is_told_at_once() -> None:
    (end,) = Peer().send(b"GET / HTTP/1.1\r\n\r\n")
    assert isinstance(end, ConnectionEnded)
    assert (end.code, end.why) == (ErrorCode.PROTOCOL_ERROR, "not_http2")


def test_requests_before_settings_are_no_http2() -> None:
    peer = Peer()
    (end,) = peer.send(PREFACE + peer.request(1))
    assert isinstance(end, ConnectionEnded)
    assert end.code == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("kind", BudgetKind)
def test_idle_time_saves_up_one_burst_and_no_more(kind: BudgetKind) -> None:
    budgets, (burst, _) = Budgets(), BUDGETS[kind]
    budgets.spend(kind, now=0.0)
    for _ in range(burst):
        budgets.spend(kind, now=1e6)
    with pytest.raises(ConnectionFailure, match=kind.value):
        budgets.spend(kind, now=1e6)
