"""Costs of numbers that a peer may multiply: frames, entries of a frame, and open streams. Bounded by processor time."""

from __future__ import annotations

import pytest
from pydanube_core.http2 import ClientConnection, ConnectionEnded, Limits, StreamReset
from pydanube_core.http2.budgets import BUDGETS, BudgetKind
from pydanube_core.http2.codes import PREFACE, ErrorCode, FrameType

from tests.broker.rpc.http2_peer import Peer, frame, reset, settings, window_update
from tests.support.processor import at_most

HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/t.T/Echo"),
    (b":authority", b"localhost"),
)
HEAD = ((b":status", b"200"),)
STREAMS = 8000
#: entries of the largest SETTINGS frame that is taken
ENTRIES = 10_922
WINDOW_SIZES = [(4, 65_000 + number % 2) for number in range(ENTRIES)]


def ends(events: list[object]) -> list[tuple[ErrorCode, str]]:
    return [(event.code, event.why) for event in events if isinstance(event, ConnectionEnded)]


@pytest.fixture(scope="module")
def requests() -> bytes:
    """The heads of all streams: they are written once."""
    peer = Peer()
    block = peer.block()
    return b"".join(peer.request(1 + 2 * number, block=block) for number in range(STREAMS))


@pytest.fixture
def crowded(requests: bytes) -> Peer:
    """A peer that has all its streams open."""
    peer = Peer()
    peer.greet((4, 0))
    peer.send(requests)
    assert len(peer.server.streams) == STREAMS
    peer.read()
    return peer


def queue_everywhere(peer: Peer) -> None:
    """Have something queued in each stream, behind a window that is used up."""
    for stream in peer.server.streams.values():
        peer.server.out.data(stream, b"queued")


def a_client(streams: int) -> ClientConnection:
    client = ClientConnection(Limits(), now=0.0)
    client.receive(settings((4, 0)), 0.0)
    for _ in range(streams):
        client.out.head(client.open(), HEADERS)
    client.take(0.0)
    return client


@pytest.mark.parametrize("queued", [False, True])
def test_one_frame_with_one_setting_ten_thousand_times_is_cheap_however_many_streams_are_open(
    crowded: Peer, queued: bool
) -> None:
    if queued:
        queue_everywhere(crowded)
    with at_most(0.2):
        events = crowded.send(settings(*WINDOW_SIZES))
    assert ends(events) == [(ErrorCode.ENHANCE_YOUR_CALM, "settings_flood")]


def test_a_hostile_server_does_not_stop_a_client_with_one_frame() -> None:
    client = a_client(STREAMS)
    for stream in client.streams.values():
        client.out.data(stream, b"queued")
    with at_most(0.2):
        events = client.receive(settings(*WINDOW_SIZES), 0.0)
    assert ends(events) == [(ErrorCode.ENHANCE_YOUR_CALM, "settings_flood")]


def test_the_first_settings_of_a_connection_are_charged_as_later_ones_are() -> None:
    assert ends(Peer().send(PREFACE + settings(*WINDOW_SIZES))) == [
        (ErrorCode.ENHANCE_YOUR_CALM, "settings_flood")
    ]


def test_settings_that_are_no_flood_yet_cost_little_for_all_streams_together(crowded: Peer) -> None:
    """Frames with some entries each that make all streams' windows grow, but not so far that one may send."""
    queue_everywhere(crowded)
    for stream in crowded.server.streams.values():
        stream.credit = -10  # sent before the window was made smaller
    frames = 0
    with at_most(0.2):
        while not ends(crowded.send(settings(*[(4, frames % 2)] * 45))):
            frames += 1
    burst, _ = BUDGETS[BudgetKind.SETTINGS]
    assert frames < burst * 2 // 3, "the streams that each second one walks are charged"


def test_many_streams_that_end_at_once_cost_what_each_of_them_costs(crowded: Peer) -> None:
    """In the order that is worst: the one whose turn is last goes first."""
    queue_everywhere(crowded)
    crowded.send(settings((4, 1000)))
    assert len(crowded.server.out.turns) == STREAMS
    with at_most(0.3):
        for number in range(STREAMS - 1, -1, -1):
            crowded.now += 0.01  # within the budget of resets
            crowded.send(reset(1 + 2 * number))
    assert not crowded.server.streams
    assert not crowded.server.out.turns


def test_the_end_of_a_connection_costs_what_its_streams_cost(crowded: Peer) -> None:
    queue_everywhere(crowded)
    for number in range(STREAMS - 1, -1, -1):
        crowded.send(window_update(1 + 2 * number, 100))
    with at_most(0.2):
        events = crowded.send(window_update(0, 0))
    assert sum(isinstance(event, StreamReset) for event in events) == STREAMS


def test_a_goaway_costs_a_client_the_streams_that_it_ends() -> None:
    client = a_client(STREAMS)
    last = (1 + 2 * STREAMS).to_bytes(4, "big")
    with at_most(0.2):
        for _ in range(900):
            assert not ends(client.receive(frame(FrameType.GOAWAY, 0, 0, last + bytes(4)), 0.0))
    assert len(client.streams) == STREAMS


@pytest.mark.parametrize("queued", [False, True])
def test_settings_that_overflow_a_stream_window_end_the_connection(queued: bool) -> None:
    peer = Peer()
    peer.greet()
    peer.send(peer.request(1) + window_update(1, (1 << 31) - 1 - 65_535))
    if queued:
        peer.server.out.window = 0
        peer.server.out.data(peer.server.streams[1], b"queued")
    assert not ends(peer.send(settings((4, 65_535))))
    assert ends(peer.send(settings((4, 65_536)))) == [(ErrorCode.FLOW_CONTROL_ERROR, "window_too_large")]


def test_an_overflow_on_the_way_to_a_value_that_fits_ends_the_connection_too() -> None:
    peer = Peer()
    peer.greet()
    peer.send(peer.request(1) + window_update(1, (1 << 31) - 1 - 65_535))
    events = peer.send(settings((4, 65_536), (4, 0)))
    assert ends(events) == [(ErrorCode.FLOW_CONTROL_ERROR, "window_too_large")]


def test_a_stream_that_is_gone_overflows_no_window() -> None:
    peer = Peer()
    peer.greet()
    peer.send(peer.request(1) + peer.request(3) + window_update(1, (1 << 31) - 1 - 65_535) + reset(1))
    assert not ends(peer.send(settings((4, 1 << 30))))


def test_the_values_of_a_frame_are_checked_one_by_one() -> None:
    peer = Peer()
    peer.greet()
    assert ends(peer.send(settings((4, 1 << 31), (4, 0)))) == [(ErrorCode.FLOW_CONTROL_ERROR, "bad_setting")]
