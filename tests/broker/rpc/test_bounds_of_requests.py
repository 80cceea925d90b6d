"""What one request may cost, and what a client that reads no answers may pile up."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.services.answer_ranges import MAX_MASK_BYTES, MAX_MASKS, MAX_RANGES, masks_of, pairs_of
from pydanube_broker.services.consume import MAX_UNREAD_ANSWERS, RANGES_AT_ONCE, ConsumeStream
from pydanube_broker.services.publish import PublishStream
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.generated import danube_stream_pb2 as pb


class Reply:
    """Holds a hundred answers before it is full."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.reading = True

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    @property
    def writable(self) -> bool:
        return len(self.sent) < 100

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def end(self, error: ClusterError | None = None) -> None:
        raise AssertionError(error)


def test_an_ack_of_millions_of_ranges_is_refused_before_it_is_parsed() -> None:
    stream = ConsumeStream(Reply(), cast(Any, None), lambda stream: None)
    flat = [edge for start in range(0, 4_000_000, 2) for edge in (start, start + 1)]
    message = pb.ConsumeRequest(ack=pb.Ack(session=1, ranges=flat)).SerializeToString()
    began = time.process_time()
    with pytest.raises(InvalidArgument, match="at most 2097152"):
        stream.on_message(message)
    assert time.process_time() - began < 0.05


def test_ranges_have_a_number() -> None:
    assert len(pairs_of([0, 1] * MAX_RANGES)) == MAX_RANGES
    with pytest.raises(InvalidArgument, match="ranges in one request") as caught:
        pairs_of([0, 1] * (MAX_RANGES + 1))
    assert caught.value.details["limit"] == MAX_RANGES


def test_masks_have_a_number_and_a_size() -> None:
    full = pb.OffsetMask(first=7, bits=b"\x05" * MAX_MASK_BYTES)
    [(first, mask)] = masks_of([full])
    assert (first, mask.bit_length()) == (7, 8 * MAX_MASK_BYTES - 5)
    assert masks_of([pb.OffsetMask(first=1 << 63, bits=b"\0\0")]) == []
    with pytest.raises(InvalidArgument, match="a mask of") as caught:
        masks_of([pb.OffsetMask(first=7, bits=b"\x01" * (MAX_MASK_BYTES + 1))])
    assert caught.value.details["limit"] == MAX_MASK_BYTES
    with pytest.raises(InvalidArgument, match="masks in one request"):
        masks_of([pb.OffsetMask(first=7, bits=b"\x01")] * (MAX_MASKS + 1))


def test_a_consumer_that_reads_no_answers_is_not_read() -> None:
    reply = Reply()
    stream = ConsumeStream(reply, cast(Any, None), lambda stream: None)
    sent = 0
    while reply.reading:
        sent += 1
        stream.confirmed(sent, None)  # number 0 would ask for no answer
        assert sent <= 100 + MAX_UNREAD_ANSWERS
    reply.sent.clear()
    stream.on_credit()
    assert reply.reading


def test_a_producer_that_reads_no_refusals_is_not_read() -> None:
    reply = Reply()
    stream = PublishStream(reply, cast(Any, None), lambda stream: None)
    for sequence in range(100):
        assert reply.reading
        stream.refuse(InvalidArgument("wrong", field="batch"), sequence, 1)
    assert not reply.reading
    reply.sent.clear()
    stream.on_credit()
    assert reply.reading


class Pump:
    """Takes what it is told."""

    def __init__(self) -> None:
        self.acked: list[list[tuple[int, int]]] = []
        self.confirmed_after: int | None = None

    def ack(
        self, consumer_id: int, session: int, ranges: list[tuple[int, int]], masks: list[tuple[int, int]]
    ) -> None:
        self.acked.append(ranges)

    def confirm(self, done: object) -> None:
        self.confirmed_after = len(self.acked)


def test_many_ranges_are_taken_some_at_a_time_and_others_have_their_turn() -> None:
    count = 5 * RANGES_AT_ONCE + 7
    ranges = [(number, number + 1) for number in range(0, 2 * count, 2)]

    async def scenario() -> None:
        tasks: list[asyncio.Task[None]] = []
        broker = SimpleNamespace(spawn=lambda work: tasks.append(asyncio.ensure_future(work)))
        reply, pump = Reply(), Pump()
        stream = ConsumeStream(reply, cast(Any, broker), lambda stream: None)
        stream._opening = stream._opened = True
        stream._pump = cast(Any, pump)
        flat = [edge for pair in ranges for edge in pair]
        stream.on_message(
            pb.ConsumeRequest(ack=pb.Ack(session=1, ranges=flat, confirm=9)).SerializeToString()
        )
        assert not reply.reading, "what follows waits"
        turns = 0
        while not tasks[0].done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 6, "somebody else ran between the slices"
        assert [pair for part in pump.acked for pair in part] == ranges
        assert max(map(len, pump.acked)) <= RANGES_AT_ONCE
        assert pump.confirmed_after == len(pump.acked), "confirmed with the last"
        assert reply.reading

    asyncio.run(scenario())


def test_too_many_ranges_are_refused_before_the_first_is_taken() -> None:
    reply, pump = Reply(), Pump()
    stream = ConsumeStream(reply, cast(Any, None), lambda stream: None)
    stream._opening = stream._opened = True
    stream._pump = cast(Any, pump)
    failed: list[ClusterError] = []
    stream._fail = failed.append  # type: ignore[method-assign]
    flat = [0, 1] * (MAX_RANGES + 1)
    stream.on_message(pb.ConsumeRequest(ack=pb.Ack(session=1, ranges=flat)).SerializeToString())
    assert failed[0].details["limit"] == MAX_RANGES
    assert not pump.acked
    assert reply.reading
