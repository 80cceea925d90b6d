"""Carry out this broker's part in moves: seats (`cluster.move_seat`) decide, this module acts.

A seat is there for every topic that is on its way to or from this broker, and for those that were handed over and stand
in its journal. Its effects are carried out one after the other; what a newer record has overtaken is given up. At most
`_AT_ONCE` topics are read, written or copied ahead at a time. As many more, whose clients wait since they were stopped,
pass those by: what there is of a topic beforehand may be much.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, assert_never

import anyio
from anyio.abc import TaskGroup, TaskStatus
from pydanube_core.errors import ClusterError, Conflict, JournalReadOnly
from pydanube_core.names import TopicName
from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.metadata import GuardFailed, MetadataStore, Revision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.move import Change, Step, Witnesses, transaction
from pydanube_broker.cluster.move_record import MAX_PARTS, HandOverPart, Stage
from pydanube_broker.cluster.move_seat import (
    Commit,
    Copy,
    CopyAhead,
    DropCopy,
    Effect,
    Hold,
    Phase,
    Read,
    Release,
    Seat,
    Serve,
    WriteParts,
)
from pydanube_broker.cluster.removal import check_not_removed
from pydanube_broker.serving.hand_over_writer import HandOverWriter
from pydanube_broker.tier.fragments import Fragments
from pydanube_broker.topics.fragment import SECTION_BYTES, read_section
from pydanube_broker.topics.hand_over_sections import sections_of
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.journal_transfer import Arrival, release
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads

log = logging.getLogger("pydanube.cluster")

_AT_ONCE: Final = 32
_TICK_S: Final = 1.0
_AGAIN_S: Final = 0.2


class TopicSwitch(Protocol):
    """How topics are taken into service here, held, and released."""

    async def serve(self, assignment: Assignment) -> None:
        """Serve a topic from what the journal has of it; one that is served already stays so.

        Raises `StoreUnavailable`: to be asked again.
        """

    async def hold(self, topic_id: TopicId, epoch: Epoch) -> None:
        """Take nothing more for a topic; return when everything accepted is committed, cursors too.

        One that is not served is only made ready to be read.
        """

    async def topic(self, topic_id: TopicId, epoch: Epoch) -> Topic:
        """Return a topic that is served, or was until `hold`, or is deleted and restorable.

        Raises `TopicNotFound`: it is gone for good.
        """

    def gone(self, topic_id: TopicId) -> None:
        """The topic is another broker's now, and the journal has forgotten it."""

    def folder(self, topic_id: TopicId, name: TopicName) -> str:
        """Return the folder of the topic's objects, whether or not there are any."""


class _Lane:
    """Topics that share objects and wait for one another."""

    def __init__(
        self, fragments: Fragments, me: BrokerId, on_their_way: Callable[[], int], *, awaited: bool
    ) -> None:
        self.writer = HandOverWriter(fragments, me, on_their_way, awaited=awaited)
        self.limit = anyio.CapacityLimiter(_AT_ONCE)


@dataclass(slots=True)
class _Drive:
    """The work on one topic: what is due, and what is under way."""

    effects: list[Effect] = field(default_factory=list)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Mover:
    """Carries out moves: `run` does the work, `see` takes in assignments. Single user: the loop."""

    def __init__(
        self,
        store: MetadataStore,
        hub: Hub,
        fragments: Fragments,
        doors: TopicSwitch,
        *,
        me: BrokerId,
        incarnation: Incarnation,
        worker_threads: WorkerThreads,
        wall_ms: Callable[[], int],
    ) -> None:
        self.seats: dict[TopicId, Seat] = {}
        self._store = store
        self._hub = hub
        self._fragments = fragments
        self.coming = 0  # topics whose move a drain is about to begin
        self._ahead = _Lane(fragments, me, self._on_their_way, awaited=False)
        self._stopped = _Lane(fragments, me, self._on_their_way, awaited=True)
        self._doors = doors
        self._me = me
        self._incarnation = incarnation
        self._worker_threads = worker_threads
        self._wall_ms = wall_ms
        self._objects = ObjectCatalog(store, wall_ms=wall_ms)
        self._drives: dict[TopicId, _Drive] = {}
        self._arrivals: dict[TopicId, Arrival] = {}  # copies that are not finished
        self._group: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carry out the work that assignments call for, until cancelled."""
        try:
            async with anyio.create_task_group() as self._group:
                task_status.started()
                while True:
                    await anyio.sleep(_TICK_S)
                    for topic_id in list(self.seats):
                        self._act(topic_id, lambda seat: seat.tick())
        finally:
            self._group = None
            with anyio.CancelScope(shield=True):
                await self._ahead.writer.aclose()
                await self._stopped.writer.aclose()

    def _on_their_way(self) -> int:
        return len(self.seats) + self.coming

    def see(self, topic_id: TopicId, record: Assignment | None, revision: Revision) -> None:
        """Take in an assignment as read or watched at a revision, while `run` runs; None: it was deleted."""
        if self._group is None:
            return
        seat = self.seats.get(topic_id)
        if seat is None:
            state = self._hub.states.get(topic_id)
            held = Epoch(0 if state is None or not state.opened else state.epoch)
            stale = record is not None and 0 < held <= record.sealed_epoch
            if record is None or not (stale or self._concerns(record)):
                return
            seat = self.seats[topic_id] = Seat(self._me, self._incarnation, held=held)
        self._act(topic_id, lambda seat: seat.see(record, revision))

    def _concerns(self, record: Assignment) -> bool:
        """Return whether this broker has a part in a move under way."""
        if record.stage is Stage.SERVING:
            return False
        return record.broker_id == self._me or (
            record.move is not None and record.move.target == str(self._me)
        )

    def _act(self, topic_id: TopicId, event: Callable[[Seat], list[Effect]]) -> None:
        seat = self.seats.get(topic_id)
        if seat is None:
            return
        effects = event(seat)
        if effects:
            drive = self._drives.get(topic_id)
            if drive is None:
                assert self._group is not None
                drive = self._drives[topic_id] = _Drive()
                self._group.start_soon(self._drive, topic_id, seat, drive)
            drive.effects += effects
            drive.scope.cancel()
        elif topic_id not in self._drives and self._is_over(seat):
            del self.seats[topic_id]

    @staticmethod
    def _is_over(seat: Seat) -> bool:
        """Return whether nothing is left to do: the topic is served for good, here or elsewhere."""
        record = seat.record
        if record is None or record.stage is not Stage.SERVING:
            return record is None and seat.phase is Phase.AWAY
        return seat.phase is Phase.SERVING or (seat.phase is Phase.AWAY and not seat.held)

    async def _drive(self, topic_id: TopicId, seat: Seat, drive: _Drive) -> None:
        try:
            while drive.effects:
                effect = drive.effects.pop(0)
                if getattr(effect, "turn", seat.turn) != seat.turn:
                    continue  # overtaken before it was begun
                drive.scope = anyio.CancelScope()
                with drive.scope:
                    await self._perform(topic_id, seat, effect)
        finally:
            del self._drives[topic_id]
        self._act(topic_id, lambda seat: [])

    async def _perform(self, topic_id: TopicId, seat: Seat, effect: Effect) -> None:
        match effect:
            case Serve():
                with anyio.CancelScope(shield=True):  # it is said once: what comes next stands on it
                    await self._serve(topic_id, seat)
            case Hold():
                if seat.record is not None:  # else it was deleted for good: nobody is at it
                    with anyio.CancelScope(shield=True):
                        await self._hold(topic_id, seat.record.epoch)
            case WriteParts(turn, final):
                await self._write(topic_id, seat, turn, final=final)
            case CopyAhead(turn, parts):
                done = await self._copy_ahead(topic_id, seat, parts)
                self._act(topic_id, lambda seat: seat.copied_ahead(turn, done=done))
            case Copy(turn, epoch, parts):
                await self._copy(topic_id, turn, epoch, parts)
            case DropCopy():
                self._drop_copy(topic_id)
            case Commit(turn, change):
                await self._commit(topic_id, turn, change)
            case Read():
                await self._read(topic_id)
            case Release(turn, _):
                await self._release(topic_id, turn)
            case _:
                assert_never(effect)

    async def _serve(self, topic_id: TopicId, seat: Seat) -> None:
        while seat.record is not None and seat.serving:
            try:
                await self._doors.serve(seat.record)
                return
            except ClusterError as error:
                self._failed("topic_not_served_yet", topic_id, error)
                await anyio.sleep(_AGAIN_S)

    async def _hold(self, topic_id: TopicId, epoch: Epoch) -> None:
        try:
            await self._doors.hold(topic_id, epoch)
        except ClusterError as error:  # writing the hand-over will say so, and end the move
            self._failed("topic_not_settled", topic_id, error)

    # -- work ------------------------------------------------------------------------------------------------

    async def _write(self, topic_id: TopicId, seat: Seat, turn: int, *, final: bool) -> None:
        record = seat.record
        assert record is not None
        assert record.move is not None
        parts = list(record.move.parts)
        first = parts[-1].end_offset if parts else None
        lane = self._stopped if final else self._ahead
        try:
            topic = await self._doors.topic(topic_id, record.epoch)
            async with lane.limit:
                async for section in sections_of(topic, first, self._worker_threads, final=final):
                    if len(parts) == MAX_PARTS:
                        raise Conflict(
                            f"{record.topic} cannot be handed over: of what the object store does not have yet there is "
                            f"more than {MAX_PARTS} parts of {SECTION_BYTES} bytes take",
                            topic=str(record.topic),
                        )
                    parts.append(await lane.writer.write(section))
        except ClusterError as error:
            self._failed("hand_over_not_written", topic_id, error)
            self._act(topic_id, lambda seat: seat.not_written(turn))
            return
        at_ms = self._wall_ms()
        self._act(topic_id, lambda seat: seat.written(turn, tuple(parts), at_ms=at_ms))

    async def _copy_ahead(self, topic_id: TopicId, seat: Seat, parts: tuple[HandOverPart, ...]) -> bool:
        try:
            async with self._ahead.limit:
                if not seat.held:
                    await self._take(topic_id, parts, awaited=False)
                    await self._hub.journal.until_durable()
                else:  # what stands there goes only when it was sealed: that the parts can be read has to do
                    for part in parts:
                        read_section(await self._fragments.read(part), digest=part.digest)
        except ClusterError as error:
            self._failed("hand_over_not_copied_ahead", topic_id, error)
            return False
        return True

    async def _take(self, topic_id: TopicId, parts: tuple[HandOverPart, ...], *, awaited: bool) -> Arrival:
        """Copy the missing parts into the journal; `awaited`: clients wait for them."""
        arrival = self._arrivals.get(topic_id)
        if arrival is None or not arrival.continues(parts):
            arrival = self._arrivals[topic_id] = Arrival(self._hub, topic_id)
        for part in parts[len(arrival.parts) :]:
            section = read_section(await self._fragments.read(part, awaited=awaited), digest=part.digest)
            await arrival.take(part, section)
        return arrival

    def _drop_copy(self, topic_id: TopicId) -> None:
        arrival = self._arrivals.pop(topic_id, None)
        if arrival is not None:
            try:
                arrival.drop()
            except ClusterError as error:
                self._failed("copy_not_dropped", topic_id, error)

    async def _copy(
        self, topic_id: TopicId, turn: int, epoch: Epoch, parts: tuple[HandOverPart, ...]
    ) -> None:
        try:
            async with self._stopped.limit:
                arrival = await self._take(topic_id, parts, awaited=True)
                await arrival.finish(epoch)
        except ClusterError as error:
            self._failed("hand_over_not_copied", topic_id, error)
            self._act(topic_id, lambda seat: seat.failed(turn))
            return
        del self._arrivals[topic_id]
        self._act(topic_id, lambda seat: seat.copied(turn, epoch))

    async def _release(self, topic_id: TopicId, turn: int) -> None:
        try:
            await check_not_removed(self._store, self._me)  # what it has alone stays in its journal then
            await self._hub.journal.until_durable(release(self._hub, topic_id))
        except JournalReadOnly:  # the next start sees by the assignment that it was handed over
            self._hub.forget(topic_id)
        except ClusterError as error:
            self._failed("release_not_noted", topic_id, error)
            self._act(topic_id, lambda seat: seat.failed(turn))
            return
        self._doors.gone(topic_id)
        self._act(topic_id, lambda seat: seat.released(turn))

    async def _commit(self, topic_id: TopicId, turn: int, change: Change) -> None:
        try:
            writes, guards = transaction(change, await self._witnesses(topic_id, change))
            revision = await self._store.transact(writes, guards=guards)
        except GuardFailed:
            self._act(topic_id, lambda seat: seat.refused(turn))
        except ClusterError as error:
            self._failed("move_step_unknown", topic_id, error)
            self._act(topic_id, lambda seat: seat.unknown(turn))
        else:
            log.info("move_step", extra={"step": change.step.value, "topic": str(change.after.topic)})
            self._act(topic_id, lambda seat: seat.committed(turn, revision))

    async def _witnesses(self, topic_id: TopicId, change: Change) -> Witnesses:
        if change.step is not Step.SEAL:
            return Witnesses()
        topic = await self._doors.topic(topic_id, change.after.epoch)
        return Witnesses(
            head=await self._objects.head(topic_id),
            folder=self._doors.folder(topic_id, change.after.topic),
            start_offset=topic.state.start_offset,
        )

    async def _read(self, topic_id: TopicId) -> None:
        try:
            page = await self._store.range(keys.only(keys.assignment_key(topic_id)))
        except ClusterError as error:
            self._failed("assignment_not_read", topic_id, error)
            return
        record = Assignment.of(page.items[0].key, page.items[0].value) if page.items else None
        revision = page.items[0].mod_revision if page.items else page.revision
        self._act(topic_id, lambda seat: seat.see(record, revision))

    def _failed(self, event: str, topic_id: TopicId, error: ClusterError) -> None:
        log.warning(
            event, extra={"event": event, "topic_id": topic_id, "code": error.code, "error": error.message}
        )
