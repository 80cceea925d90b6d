"""Topics that leave the journal and come into it: a start at any point finds what was handed over, or a part that it knows
for one; and what stood there before never comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from weakref import ref

import pytest
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.copying.arrival import Arrival, confirm, decide_copies, forget_unfinished, release
from pydanube_broker.copying.piece import Piece, decode_piece, encode_piece
from pydanube_broker.journal import Disk, Journal, JournalOptions, RecordKind
from pydanube_broker.journal.helper import InlineSyncer
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import LogState, encode_open_body
from pydanube_core.batch import BatchView, broker_part, encode_batch
from pydanube_core.errors import CorruptObject
from pydanube_core.names import TopicName

from tests.broker.copying.arrivals import copy_in
from tests.broker.journal.ledger import InlinePreparer, SameThread
from tests.broker.journal.record_order import check_order

pytestmark = pytest.mark.anyio

MOVED, BUSY = 7, 8


@asynccontextmanager
async def life(folder: Path, *, tidy: bool) -> AsyncIterator[Hub]:
    """A start of the journal, and its end: closed, or as a crash leaves it."""
    hub, disk = Hub(), Disk()
    hub.journal = Journal(
        folder,
        JournalOptions(segment_bytes=16 << 10, tail_cache_bytes=0),
        hub,
        disk=disk,
        syncer=InlineSyncer(disk),
        preparer=InlinePreparer(disk),
        worker=SameThread(),
    )
    hub.journal.recover(hub.begins)
    await hub.journal.begin()
    hub.fold_replayed()
    try:
        yield hub
    finally:
        if tidy:
            await hub.journal.close()
        else:
            hub.journal.abandon()


def stored(base: int, text: bytes, epoch: int) -> bytes:
    head = broker_part(base_offset=base, last_offset=base + 1, epoch=epoch, append_time_ms=1_000 + base)
    return head + encode_batch([text, text], producer_id=1, producer_epoch=1, first_sequence=base)


def hand_over(text: bytes, batches: int, epoch: int, first: int = 0) -> list[Piece]:
    """Two parts, the second with the state."""
    all_of = [stored(first + 2 * i, text, epoch) for i in range(batches)]
    end, middle = first + 2 * batches, batches // 2
    state = LogState(MOVED, epoch=epoch, start_offset=first, next_offset=end, messages=end, opened=True)
    state.producers.prepare("p", 99)
    cut = first + 2 * middle
    return [
        Piece(
            topic_id=MOVED, epoch=epoch, first_offset=first, end_offset=cut, batches=tuple(all_of[:middle])
        ),
        Piece(
            topic_id=MOVED,
            epoch=epoch,
            first_offset=cut,
            end_offset=end,
            batches=tuple(all_of[middle:]),
            state=state,
        ),
    ]


async def each(pieces: Sequence[Piece], *, fails_after: int | None = None) -> AsyncIterator[Piece]:
    for number, piece in enumerate(pieces):
        if number == fails_after:
            raise ConnectionError
        yield piece


def texts(hub: Hub) -> list[bytes]:
    """What can be read of the topic, from the disk."""
    state, found, at = hub.states[MOVED], list[bytes](), hub.states[MOVED].start_offset
    while batches := hub.journal.read_planned(hub.journal.plan_read(MOVED, at, state.next_offset, 1 << 20))():
        for batch in batches:
            assert batch.base == at, "offsets follow each other"
            found += BatchView.stored(b"".join(batch.buffers)).payloads()
            at = batch.end
    assert at == state.next_offset
    return found


async def fill(hub: Hub, batches: int = 40) -> None:
    """Traffic of another topic: segments come to their end."""
    if BUSY not in hub.states:
        hub.journal.append(RecordKind.TOPIC_OPEN, BUSY, [encode_open_body(1, 0)])
        hub.states[BUSY] = LogState(BUSY, epoch=1, opened=True)
    state = hub.states[BUSY]
    for _ in range(batches):
        base = state.next_offset
        data = stored(base, b"x" * 300, 1)
        while True:
            hub.journal.check_room(len(data))
            break
        hub.journal.append_batch(
            BUSY, data[:48], data[48:], base=base, end=base + 2, count=2, time_ms=1_000 + base
        )
        state.appended(base, base + 2, 2, 1_000 + base, len(data))
        await hub.journal.until_durable()


@pytest.mark.parametrize("tidy", [True, False])
async def test_what_was_handed_over_is_there_after_a_start(tmp_path: Path, tidy: bool) -> None:
    async with life(tmp_path, tidy=tidy) as hub:
        await copy_in(hub, MOVED, Epoch(4), each(hand_over(b"a", 10, 3)))
        assert texts(hub) == [b"a"] * 20
    for _ in range(2):
        async with life(tmp_path, tidy=tidy) as hub:
            state = hub.states[MOVED]
            assert (state.epoch, state.next_offset) == (4, 20)
            assert state.producers.resume(1, 1, 99).name == "p"
            assert texts(hub) == [b"a"] * 20
            await fill(hub)
    check_order(tmp_path)


@pytest.mark.parametrize("tidy", [True, False])
@pytest.mark.parametrize("parts", [0, 1])
async def test_a_copy_that_was_not_finished_is_known_for_one(tmp_path: Path, tidy: bool, parts: int) -> None:
    async with life(tmp_path, tidy=tidy) as hub:
        with pytest.raises(ConnectionError):
            await copy_in(hub, MOVED, Epoch(4), each(hand_over(b"a", 10, 3), fails_after=parts))
        await fill(hub)
    async with life(tmp_path, tidy=tidy) as hub:
        assert MOVED not in hub.states or hub.states[MOVED].epoch == 0
        await copy_in(hub, MOVED, Epoch(5), each(hand_over(b"b", 4, 3)))
    async with life(tmp_path, tidy=tidy) as hub:
        assert hub.states[MOVED].epoch == 5
        assert texts(hub) == [b"b"] * 8


@pytest.mark.parametrize("tidy", [True, False])
@pytest.mark.parametrize("busy", [0, 60])
async def test_what_stood_there_before_never_comes_back(tmp_path: Path, tidy: bool, busy: int) -> None:
    async with life(tmp_path, tidy=tidy) as hub:
        await copy_in(hub, MOVED, Epoch(4), each(hand_over(b"a", 10, 3)))
        await fill(hub, busy)
        release(hub, MOVED)
        assert MOVED not in hub.states
        await fill(hub, busy)
        await hub.journal.until_durable()
    async with life(tmp_path, tidy=tidy) as hub:
        assert MOVED not in hub.states
        await copy_in(hub, MOVED, Epoch(6), each(hand_over(b"b", 6, 5, first=4)))
        assert texts(hub) == [b"b"] * 12
        await fill(hub, busy)
    for _ in range(2):
        async with life(tmp_path, tidy=tidy) as hub:
            assert texts(hub) == [b"b"] * 12
            assert hub.journal.first_offset(MOVED) == 4
            await fill(hub, busy)
    if tidy:  # after a crash the records of the last group stand there twice
        check_order(tmp_path)


async def test_a_released_topic_holds_up_no_segment(tmp_path: Path) -> None:
    async with life(tmp_path, tidy=True) as hub:
        await copy_in(hub, MOVED, Epoch(4), each(hand_over(b"a", 10, 3)))
        await fill(hub, 100)
        hub.states[BUSY].start_offset = hub.states[BUSY].next_offset
        assert hub.collect() == 0
        release(hub, MOVED)
        await hub.journal.until_durable()
        assert hub.collect() > 0


async def test_pieces_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    first, last = hand_over(b"a", 10, 3)
    async with life(tmp_path, tidy=True) as hub:
        for wrong in ([], [first], [last, first], [first, first], [first, last, last]):
            with pytest.raises(CorruptObject):
                await copy_in(hub, MOVED, Epoch(4), each(wrong))
            assert MOVED not in hub.states or hub.states[MOVED].epoch == 0


async def test_what_was_copied_ahead_is_not_copied_again(tmp_path: Path) -> None:
    first, last = hand_over(b"a", 10, 3)
    async with life(tmp_path, tidy=True) as hub:
        arrival = Arrival(hub, MOVED)
        assert arrival.next_offset is None
        await arrival.take(first)
        assert hub.states[MOVED].epoch == 0, "no topic is served from it"
        assert arrival.next_offset == first.end_offset
        before = hub.journal.durable_lsn
        await arrival.take(last)
        state = await arrival.finish(Epoch(4))
        copied = sum(len(batch) for batch in last.batches)
        assert copied < hub.journal.durable_lsn - before < 2 * copied + 1_000
        assert (state.epoch, texts(hub)) == (4, [b"a"] * 20)
    async with life(tmp_path, tidy=False) as hub:
        assert texts(hub) == [b"a"] * 20
    check_order(tmp_path)


class _Bytes(bytearray):
    """Bytes that can be referenced weakly."""


async def test_messages_of_a_copy_do_not_stay_in_memory_until_the_copy_is_safe(tmp_path: Path) -> None:
    async with life(tmp_path, tidy=True) as hub:
        arrival, left = Arrival(hub, MOVED), list[ref[_Bytes]]()
        for piece in hand_over(b"a", 10, 3):
            received = _Bytes(b"".join(encode_piece(piece)))
            left.append(ref(received))
            await arrival.take(decode_piece(memoryview(received)))
            del received
            assert left[-1]() is None
        await arrival.finish(Epoch(4))
        assert texts(hub) == [b"a"] * 20


async def test_a_copy_goes_on_where_it_was_cut_off_in_the_middle_of_a_piece(tmp_path: Path) -> None:
    first, last = hand_over(b"a", 10, 3)
    async with life(tmp_path, tidy=True) as hub:
        arrival = Arrival(hub, MOVED)
        head = replace(first, end_offset=4, batches=first.batches[:2])
        await arrival.take(head)  # as a cancellation leaves it
        with pytest.raises(CorruptObject):
            await arrival.take(first)
        await arrival.take(replace(first, first_offset=4, batches=first.batches[2:]))
        await arrival.take(last)
        await arrival.finish(Epoch(4))
        assert texts(hub) == [b"a"] * 20
        anew = Arrival(hub, MOVED)
        assert not arrival.is_there, "its place is taken"
        arrival.drop()
        assert anew.is_there, "what was given up drops nothing of what has come since"


MOVE = 77


def assigned(moved: int, broker: int = 2) -> Assignment:
    return Assignment(
        topic_id=TopicId(MOVED),
        topic=TopicName("default", "t"),
        broker_id=BrokerId(broker),
        incarnation=Incarnation(1),
        epoch=Epoch(9),
        moved=moved,
    )


@pytest.mark.parametrize("tidy", [True, False])
@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("checkpointed", [True, False])
async def test_a_start_keeps_the_copy_that_the_assignment_names(
    tmp_path: Path, tidy: bool, confirmed: bool, checkpointed: bool
) -> None:
    async with life(tmp_path, tidy=tidy) as hub:
        arrival = Arrival(hub, MOVED)
        for piece in hand_over(b"a", 10, 3):
            await arrival.take(piece)
        await arrival.await_move(MOVE)
        assert (hub.states[MOVED].epoch, hub.states[MOVED].awaiting) == (0, MOVE)
        if checkpointed:
            await fill(hub, 60)  # a head says that it awaits its move
        if confirmed:
            confirm(hub, MOVED, Epoch(9))
            await hub.journal.until_durable()
    async with life(tmp_path, tidy=tidy) as hub:
        assert hub.states[MOVED].awaiting == (0 if confirmed else MOVE)
        decide_copies(hub, BrokerId(2), lambda topic_id: assigned(MOVE))
        forget_unfinished(hub)
        assert (hub.states[MOVED].epoch, hub.states[MOVED].awaiting) == (9, 0)
        assert hub.states[MOVED].producers.resume(1, 1, 99).name == "p"
        assert texts(hub) == [b"a"] * 20


@pytest.mark.parametrize("place", [assigned(MOVE + 1), assigned(MOVE, broker=3), None])
async def test_a_start_forgets_the_copy_of_a_move_that_failed(
    tmp_path: Path, place: Assignment | None
) -> None:
    async with life(tmp_path, tidy=True) as hub:
        arrival = Arrival(hub, MOVED)
        for piece in hand_over(b"a", 10, 3):
            await arrival.take(piece)
        await arrival.await_move(MOVE)
        await fill(hub)
    async with life(tmp_path, tidy=True) as hub:
        decide_copies(hub, BrokerId(2), lambda topic_id: place)
        forget_unfinished(hub)
        assert set(hub.states) == {BUSY}
    async with life(tmp_path, tidy=False) as hub:
        assert set(hub.states) == {BUSY}
    check_order(tmp_path)


async def test_a_start_forgets_a_copy_that_was_not_finished(tmp_path: Path) -> None:
    first, _ = hand_over(b"a", 10, 3)
    async with life(tmp_path, tidy=True) as hub:
        await Arrival(hub, MOVED).take(first)
        await fill(hub)
    async with life(tmp_path, tidy=True) as hub:
        assert set(hub.states) == {MOVED, BUSY}
        forget_unfinished(hub)
        assert set(hub.states) == {BUSY}
    async with life(tmp_path, tidy=False) as hub:
        assert set(hub.states) == {BUSY}
    check_order(tmp_path)


async def test_a_copy_that_is_not_wanted_holds_up_no_segment(tmp_path: Path) -> None:
    first, _ = hand_over(b"a", 10, 3)
    async with life(tmp_path, tidy=True) as hub:
        arrival = Arrival(hub, MOVED)
        await arrival.take(first)
        await fill(hub, 100)
        hub.states[BUSY].start_offset = hub.states[BUSY].next_offset
        assert hub.collect() == 0
        arrival.drop()
        assert MOVED not in hub.states
        await hub.journal.until_durable()
        assert hub.collect() > 0
