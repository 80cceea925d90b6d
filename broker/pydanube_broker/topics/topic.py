"""One concrete reliable topic on its owner: append, commit, read.

`append` assigns offsets and returns without a promise. When the journal reports the batch as durable and the rule
agrees (`safe_position`), the batch is safe and the commit offset passes it. Only then does the producer get its answer,
and only then is the batch visible: reads, answers to duplicates, cursors and start positions see only messages below
the commit offset. All other records, such as cursors, sessions and trims, are safe by the same rule: `when_safe` is the
one place to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from pydanube_core.batch import (
    BROKER_PART_BYTES,
    ProducerPart,
    broker_part,
    read_broker_part,
    read_producer_part,
)
from pydanube_core.commit_point import safe_position
from pydanube_core.errors import ClusterError, Diverged, InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.positions import Position, PositionKind
from pydanube_core.refusals import mirror_is_read_only, system_is_closed, written_elsewhere

from pydanube_broker.cluster.ids import Epoch, numbers_of
from pydanube_broker.journal import CachedBatch, Journal, RecordKind
from pydanube_broker.outcome import OutcomeCallback, outcome_of
from pydanube_broker.schema.guard import SchemaGuard
from pydanube_broker.topics.brake import Brake
from pydanube_broker.topics.gate import TopicGate, monotonic_ms
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.list_changes import ListChanges
from pydanube_broker.topics.log_state import LogState, encode_open_body, encode_session_body, encode_trim_body
from pydanube_broker.topics.producers import Appended, Opening, ProducerSession
from pydanube_broker.wall_clock import WallClock, append_time
from pydanube_broker.worker_threads import WorkerThreads

#: called with batches, with nothing, or with an error
Filled = Callable[[Any], None]


class LogListener(Protocol):
    """Listener notified when the commit offset rises, to deliver messages."""

    def grew(self) -> None:
        """Note that the commit offset rose."""


class ColdReader(Protocol):
    """Reads messages that the journal no longer has (`tier.cold_reads`)."""

    def read(self, topic: Topic, offset: int, end: int, max_bytes: int) -> list[CachedBatch] | None: ...

    def fill(
        self, topic: Topic, offset: int, end: int, max_bytes: int, worker_threads: WorkerThreads, done: Filled
    ) -> None: ...

    def may_hold_time(self, topic: Topic, found: int | None) -> bool: ...

    def offset_at_time(self, topic: Topic, time_ms: int) -> int | None: ...

    async def prepare_time(self, topic: Topic, time_ms: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLeft:
    """The producer that left last."""

    at_ms: int
    name: str
    abrupt: bool  # its connection broke


class TopicHub(Protocol):
    """The part of the hub that a topic uses."""

    journal: Journal
    cold: ColdReader | None
    trimmed_lsn: int
    connections: Iterator[int]
    changes: ListChanges

    def appended(self, lsn: int, topic: Topic) -> None:
        """Have `topic.advance` called once the journal is durable up to `lsn`."""


def _new_token() -> int:
    return secrets.randbits(64) or 1


CLOCK: Final = WallClock()


def now_ms() -> int:
    """Return the broker's clock: milliseconds since 1970."""
    return CLOCK.now_ms()


def earliest_ms() -> int:
    """Return the earliest time by the broker's clock and its witnesses, in milliseconds since 1970. For deletions by age."""
    return CLOCK.earliest_ms()


class Topic:
    """See the module. Used by the event loop only."""

    stores: ClassVar[bool] = True  # messages can be read after their delivery

    __slots__ = (
        "_brake", "_hub", "_unsafe", "_waiters", "assigned_epoch", "awaited", "bytes_in", "bytes_out", "changes", "closed",
        "commit", "durability", "failed_over_to", "gate", "in_store", "is_system", "link", "listeners", "messages_in", "messages_out", "name",
        "options", "position", "producer_left", "producer_seen", "producers_connected", "readers", "safe",
        "schema", "sessions", "state", "subscriptions",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        state: LogState,
        hub: TopicHub,
        *,
        options: Any,
        limits: Limits,
        epoch: Epoch,
        durability: str = "fsynced",
    ) -> None:
        self.name = name
        self.state = state
        self.options = options  # the catalog's record of the topic
        self.is_system = TopicName.parse(name).is_system
        self.link: str | None = None  # the link that writes the topic, which is a mirror. None: producers do
        self.failed_over_to: str | None = None  # the cluster that writes and serves the topic now
        self.durability = durability  # promised by a receipt
        self.in_store = durability == "stored"  # its records count once the object store has them
        self.gate = TopicGate(name, limits, hub.connections)
        # Checks published messages. None: no check, and no cost
        self.schema: SchemaGuard | None = None
        self.commit = state.next_offset
        # Journal address behind the newest record written since the start. Recovered records are safe already
        self.position = 0
        self.safe = 0  # records up to here are as durable as promised
        self.awaited = 0  # the object store has to have the journal up to here (`await_store`)
        self.listeners: set[LogListener] = set()
        self.subscriptions: dict[str, Any] = {}
        self.readers = 0
        self.producers_connected = 0
        self.producer_seen = False  # any since the start. The broker itself writes audit and dead letters
        self.producer_left: ProducerLeft | None = None
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.assigned_epoch = epoch
        self.sessions = numbers_of(epoch)  # ids of consumers' and readers' sessions
        self.closed: ClusterError | None = None
        self.changes = hub.changes
        self._hub = hub
        self._brake: Brake | None = None
        # Batches above the commit offset: (position, end offset)
        self._unsafe: deque[tuple[int, int]] = deque()
        self._waiters: deque[tuple[int, OutcomeCallback]] = deque()  # by position

    @property
    def topic_id(self) -> int:
        return self.state.topic_id

    @property
    def max_message_bytes(self) -> int:
        """The largest message that the topic accepts."""
        return self.gate.limits.max_message_size

    @property
    def start_offset(self) -> int:
        return self.state.start_offset

    def connection_id(self) -> int:
        """Return an id for a new connection of a consumer."""
        return next(self._hub.connections)

    # -- write -----------------------------------------------------------------------------------------------

    def append(
        self, data: bytes | memoryview, part: ProducerPart, *, limited: bool = True, system: bool = False
    ) -> tuple[Appended, bool]:
        """Append a validated batch, or find the answer that it got before if it is a retry.

        Args:
            limited: False for the broker's own messages, which the publish rate does not delay.
            system: True for the audit's messages. A system topic accepts no others, on any path, and they may begin
                the journal's last segment.

        Returns:
            The batch's place, and whether it is a duplicate. Wait with `when_committed` before answering.

        Raises:
            PermissionDenied, ProducerUnknown, ProducerFenced, OutOfSequence, RateLimited, DiskFull, Unavailable,
            JournalReadOnly: nothing was stored.
        """
        if (known := self.stored(part, system=system)) is not None:
            return known, True
        state = self.state
        journal = self._hub.journal
        if not system:
            journal.check_room(len(data))
        if limited:
            if self._brake is not None:
                self._take(len(data))
            self.gate.take(part.count)
        if not state.opened or state.epoch < self.assigned_epoch:
            self.open_epoch()
        count, size = part.count, BROKER_PART_BYTES + len(data)
        base = state.next_offset
        end = base + count
        time_ms = append_time(now_ms(), state.append_time_ms)
        head = broker_part(base_offset=base, last_offset=end - 1, epoch=state.epoch, append_time_ms=time_ms)
        lsn = journal.append_batch(
            state.topic_id, head, data, base=base, end=end, count=count, time_ms=time_ms
        )
        state.appended(base, end, count, time_ms, size)
        self.messages_in += count
        self.bytes_in += size
        self._unsafe.append((lsn, end))
        self._appended(lsn)
        if end == self.commit + 1:
            for pump in self.subscriptions.values():
                pump.build_ahead()
        self.changes.note(self.name)
        noted = state.producers.appended(
            part.producer_id, part.producer_epoch, part.first_sequence, count, base, time_ms
        )
        return noted, False

    def stored(self, part: ProducerPart, *, system: bool) -> Appended | None:
        """Return the place of a batch that a retry sends again, or None for a new one. Raises as `append`."""
        if self.is_system and not system:
            raise system_is_closed(self.name)
        self.check_open()
        if not part.producer_id:
            return None
        return self.state.producers.check(
            part.producer_id, part.producer_epoch, part.first_sequence, part.count
        )

    def check_open(self) -> None:
        """Raise the error for producers of a topic that is closed, or a mirror."""
        if self.closed is not None:
            raise self.closed
        if self.link is not None:
            raise mirror_is_read_only(self.name, self.link)
        if self.failed_over_to is not None:
            raise written_elsewhere(self.name, self.failed_over_to)

    # -- mirrors ---------------------------------------------------------------------------------------------

    def begin_at(self, offset: int) -> None:
        """Begin a mirror at an offset of its source. Messages below it are deleted. Raises the errors of the journal."""
        state = self.state
        epoch = max(state.epoch, self.assigned_epoch)
        body = encode_open_body(epoch, offset)
        lsn = self._hub.journal.append(RecordKind.TOPIC_OPEN, self.topic_id, [body])
        state.epoch, state.opened = epoch, True
        state.start_offset = max(state.start_offset, offset)
        state.next_offset = max(state.next_offset, offset)
        self._hub.trimmed_lsn = lsn
        self._unsafe.append((lsn, state.next_offset))
        self._appended(lsn)

    def append_copy(self, batch: bytes | memoryview) -> None:
        """Append a batch of the mirror's source as it is: at its offsets, with its epoch and its append time.

        Raises `Overloaded`, `DiskFull`, `Unavailable`, `JournalReadOnly`: nothing was appended.
        """
        head, data = bytes(batch[:BROKER_PART_BYTES]), bytes(batch[BROKER_PART_BYTES:])
        part, sent = read_broker_part(head), read_producer_part(data, verify=False)
        state, base, end = self.state, part.base_offset, part.last_offset + 1
        if base < state.next_offset:
            raise Diverged(
                f"{self.name} was to get a batch at offset {base}, and {state.next_offset} is next",
                topic=self.name,
            )
        self._hub.journal.check_room(len(data))
        if not state.opened or state.epoch < self.assigned_epoch:
            self.open_epoch()
        lsn = self._hub.journal.append_batch(
            state.topic_id, head, data, base=base, end=end, count=sent.count, time_ms=part.append_time_ms
        )
        state.appended(base, end, sent.count, part.append_time_ms, len(batch))
        state.producers.used(sent.producer_id)
        state.producers.appended(
            sent.producer_id,
            sent.producer_epoch,
            sent.first_sequence,
            sent.count,
            base,
            part.append_time_ms,
        )
        self._unsafe.append((lsn, end))
        self._appended(lsn)

    def take_session(self, session: Opening) -> bool:
        """Take a producer session of the source, so that its producer may go on here after a fail-over.

        Returns whether it is new, and so is written.
        """
        known = self.state.producers.find(session.producer_id)
        if known is not None and (known.epoch, known.token) == (session.epoch, session.token):
            return False
        self.append_record(RecordKind.SESSION, encode_session_body(session))
        self.state.producers.add(session.producer_id, session.epoch, session.name, session.token)
        return True

    # -- facts of traffic ------------------------------------------------------------------------------------

    def sent(self, messages: int, stored_bytes: int) -> None:
        """Count messages sent to a consumer or reader, redeliveries included."""
        self.messages_out += messages
        self.bytes_out += stored_bytes

    def when_room(self, done: Callable[[], None]) -> None:
        """Call `done` once, when an append that failed with `Overloaded` should be retried."""
        wait_ms = 0 if self._brake is None else self._brake.wait_ms(monotonic_ms())
        if wait_ms:
            asyncio.get_running_loop().call_later(wait_ms / 1000, done)
        else:
            self._hub.journal.when_room(done)

    def slow_down(self, bytes_per_s: int) -> None:
        """Limit the bytes that producers append, until 20 s after the last `keep_slow`."""
        self._brake = Brake(bytes_per_s, monotonic_ms())

    def keep_slow(self) -> None:
        """Keep a limit of `slow_down` in force, because the copy that needs it makes progress."""
        if self._brake is not None:
            self._brake.renew(monotonic_ms())

    def _take(self, size: int) -> None:
        assert self._brake is not None
        now = monotonic_ms()
        if self._brake.is_over(now):
            self._brake = None
        else:
            self._brake.take(size, now)

    def write_now(self) -> None:
        """Write the appended records now: no more come in this turn of the loop."""
        self._hub.journal.write_now()

    def when_committed(self, end_offset: int, done: OutcomeCallback) -> None:
        """Call `done` once everything below `end_offset` is committed, immediately if it is."""
        if end_offset <= self.commit:
            done(None)
        elif end_offset == self.state.next_offset:
            self.when_safe(self._unsafe[-1][0], done)
        else:  # a retry, which finds its batch under way
            self.when_safe(next(at for at, end in self._unsafe if end >= end_offset), done)

    def when_safe(self, position: int, done: OutcomeCallback) -> None:
        """Call `done` once this topic's records up to `position` are as durable as promised, immediately if they are."""
        waiters = self._waiters
        if position <= self.safe:
            done(None)
        elif self._hub.journal.read_only is not None:
            done(self._hub.journal.read_only)  # for records under way when the journal failed
        elif waiters and waiters[-1][0] > position:
            waiters.insert(
                next(i for i, waiter in enumerate(waiters) if waiter[0] > position), (position, done)
            )
        else:
            waiters.append((position, done))

    async def settled(self) -> None:
        """Wait until everything appended so far is as durable as promised. Raises the error that prevents it."""
        await outcome_of(lambda done: self.when_safe(self.position, done))

    async def ended(self) -> None:
        """Wait until all records are safe. If the journal has failed, drop the uncommitted ones instead."""
        state = self.state
        try:
            self.open_epoch()  # so that a topic that never had a record has one to hand over
            await self.settled()
        except ClusterError:
            if self.is_writable:
                raise
            self._unsafe.clear()
            state.epoch, state.opened = max(state.epoch, self.assigned_epoch), True
            state.next_offset = self.commit
            state.producers.take_back(self.commit)

    def resume_producer(self, producer_id: int, epoch: int, token: int) -> ProducerSession:
        """Return the session of an earlier connection. Raises `ProducerUnknown`, `ProducerFenced`."""
        return self.state.producers.resume(producer_id, epoch, token)

    async def open_producer(self, name: str, *, exclusive: bool = False) -> Opening:
        """Prepare a session, safe on return: with a new id, or an exclusive name's id in its next epoch.

        The caller opens it with `state.producers.open`, or gives it up with `give_up_producer`. Until then an exclusive
        producer of that name continues.
        """
        if self.is_system:
            raise system_is_closed(self.name)
        self.check_open()
        opening = self.state.producers.prepare(name, _new_token(), exclusive=exclusive)
        try:
            position = self.append_record(RecordKind.SESSION, encode_session_body(opening))
            await outcome_of(lambda done: self.when_safe(position, done))
        except ClusterError:
            self.state.producers.give_up(opening)
            raise
        return opening

    def give_up_producer(self, opening: Opening) -> None:
        """Give up an unused session: its former holder keeps it, also after a restart."""
        holder = self.state.producers.give_up(opening)
        if holder is not None:
            # Without room for it, the producer is fenced if the broker dies now. That is safe, and the producer gets an
            # error.
            with contextlib.suppress(ClusterError):
                self.append_record(RecordKind.SESSION, encode_session_body(holder))

    def open_epoch(self) -> None:
        """Write that an epoch begins, before the first record of the epoch."""
        state = self.state
        if not state.opened or state.epoch < self.assigned_epoch:
            epoch = max(state.epoch, self.assigned_epoch)
            self._hub.journal.append(
                RecordKind.TOPIC_OPEN, self.topic_id, [encode_open_body(epoch, state.start_offset)]
            )
            state.epoch, state.opened = epoch, True

    def append_record(self, kind: RecordKind, body: bytes) -> int:
        """Append a record of this topic that is not a batch. Return its position, for `when_safe`."""
        self.open_epoch()
        return self._appended(self._hub.journal.append(kind, self.topic_id, [body]))

    def _appended(self, position: int) -> int:
        self.position = position
        self._hub.appended(position, self)
        return position

    @property
    def is_writable(self) -> bool:
        """Whether the journal takes records: its disk has not failed, and no other broker has replaced this one."""
        return self._hub.journal.read_only is None

    def check_writable(self) -> None:
        """Raise the error that prevents any record of this topic."""
        if self._hub.journal.read_only is not None:
            raise self._hub.journal.read_only

    def trim(self, start_offset: int) -> None:
        """Delete everything below an offset (retention, tiering)."""
        if start_offset > self.state.start_offset:
            self._hub.trimmed_lsn = self.append_record(RecordKind.TRIM_PREFIX, encode_trim_body(start_offset))
            self.state.start_offset = start_offset
            self.changes.note(self.name)

    def producer_attached(self) -> None:
        """Count a producer in `producers_connected`, until `producer_detached`."""
        self.producers_connected += 1
        self.producer_seen = True
        self.changes.note(self.name)

    def producer_detached(self) -> None:
        """Note that a producer has disconnected."""
        self.producers_connected -= 1
        self.changes.note(self.name)
        assert self.producers_connected >= 0, "more producers have gone than had come"

    def reader_attached(self) -> None:
        """Count a plain reader in `readers`, until `reader_detached`."""
        self.readers += 1
        self.changes.note(self.name)

    def reader_detached(self) -> None:
        """Note that a reader has disconnected."""
        self.readers -= 1
        self.changes.note(self.name)
        assert self.readers >= 0, "more readers have gone than had come"

    def raise_tiered_offset(self, offset: int) -> None:
        """Record that all messages below an offset are in the cold tier. A lower offset is ignored."""
        self.state.tiered_offset = max(self.state.tiered_offset, offset)
        self.changes.note(self.name)

    def check_consumer(self, of_subscription: int) -> None:
        """Raise `LimitReached` if the subscription or the topic has too many consumers for another."""
        self.gate.check_consumer(self.subscriptions.values(), self.readers, of_subscription)

    # -- commit ----------------------------------------------------------------------------------------------

    def recovered(self) -> None:
        """Commit all recovered messages. Called after `Journal.begin`, which makes them durable."""
        self.commit = self.state.next_offset

    def await_store(self, lsn: int) -> None:
        """Until the object store has everything below `lsn`, commit only messages that an earlier start had committed.

        These are the messages in objects, and those that were delivered.
        """
        state = self.state
        known = max(state.tiered_offset, state.start_offset)
        for cursor in state.cursors.values():
            ends = (end for _, end in cursor.acknowledged[-1:])
            known = max(known, cursor.floor, *ends, *(each.end for each in cursor.attempts[-1:]))
        if known < state.next_offset:
            self.commit = known
            self.position = self.awaited = lsn
            self._unsafe.append((lsn, state.next_offset))
            self._hub.appended(lsn, self)

    @property
    def awaits_store(self) -> bool:
        """Whether recovered messages are not committed yet (`await_store`)."""
        return self.safe < self.awaited

    def advance(self, held: int) -> None:
        """Advance the safe position and the commit offset, and notify listeners and waiters.

        `held`: the address below which the journal is on disk, or for a stored topic in the object store.
        """
        safe = self.safe = safe_position(safe=self.safe, local_durable=held)
        before, unsafe, waiters = self.commit, self._unsafe, self._waiters
        while unsafe and unsafe[0][0] <= safe:
            self.commit = unsafe.popleft()[1]
        if self.commit != before:
            self.changes.note(self.name)
            for listener in tuple(self.listeners):
                listener.grew()  # first, so that they send with the receipts and not a turn of the loop later
        while waiters and waiters[0][0] <= safe:
            # From here on a receipt holds after a power cut: a completed fdatasync of the journal covers the record and
            # all before it in this topic. Records of a stored topic are in the object store, under a name that no other
            # process could take, and survive the loss of this machine.
            waiters.popleft()[1](None)

    def fail(self, error: ClusterError) -> None:
        """Fail all waiters: their records will not be committed, as far as the broker can determine."""
        waiters, self._waiters = self._waiters, deque()
        for _, done in waiters:
            done(error)

    def journal_bytes(self, offset: int) -> int:
        """Return the bytes of the batches from an offset on that the cold tier does not have."""
        return self._hub.journal.stored_bytes(self.topic_id, max(self.state.needed_offset, offset))

    # -- read ------------------------------------------------------------------------------------------------

    def read(self, offset: int, end: int, max_bytes: int) -> list[CachedBatch] | None:
        """Return committed batches from `offset` on, see `Journal.read`."""
        cold = self._hub.cold
        if cold is not None and offset < self.state.tiered_offset:
            return cold.read(self, offset, min(end, self.commit), max_bytes)
        return self._hub.journal.read(self.topic_id, offset, min(end, self.commit), max_bytes)

    def read_ahead(self) -> CachedBatch | None:
        """Return the only uncommitted message, which must not be visible yet. None if there are several, or none."""
        if self.state.next_offset != self.commit + 1:
            return None
        found = self._hub.journal.cache.read(self.topic_id, self.commit, self.commit + 1, 1)
        return found[0] if found else None

    def fill(
        self, offset: int, end: int, max_bytes: int, worker_threads: WorkerThreads, done: Filled
    ) -> None:
        """Load the batches that `read` missed. `done` gets an error, batches from `offset`, or nothing: read again."""
        cold = self._hub.cold
        if cold is not None and offset < self.state.tiered_offset:
            cold.fill(self, offset, min(end, self.commit), max_bytes, worker_threads, done)
        else:
            worker_threads.run(self.plan_cold_read(offset, end, max_bytes), done)

    def plan_cold_read(self, offset: int, end: int, max_bytes: int) -> Callable[[], Sequence[CachedBatch]]:
        """Return the work for a worker thread after `read` returned None."""
        journal = self._hub.journal
        plan = journal.plan_read(self.topic_id, offset, min(end, self.commit), max_bytes)
        return journal.read_planned(plan)

    async def prepare(self, position: Position) -> None:
        """Look up a time in the cold tier for `resolve`. Without it, a time before the journal is the topic's start.

        Raises `StoreUnavailable`, `ObjectMissing`, `CorruptObject`, `MissingExtra`.
        """
        cold = self._hub.cold
        if cold is None or position.kind is not PositionKind.TIME:
            return
        if cold.may_hold_time(self, self._hub.journal.offset_at_time(self.topic_id, position.value)):
            await cold.prepare_time(self, position.value)

    def resolve(self, position: Position) -> int:
        """Return the offset of a position: between start and commit offset, both inclusive.

        Raises `InvalidArgument`: an offset beyond the end.
        """
        match position.kind:
            case PositionKind.EARLIEST:
                return self.start_offset
            case PositionKind.LATEST:
                return self.commit
            case PositionKind.OFFSET:
                if position.value > self.commit:
                    raise InvalidArgument(
                        f"offset {position.value} is beyond the end of {self.name}: {self.commit} is next",
                        field="position",
                        value=str(position),
                        next_offset=self.commit,
                    )
                return max(position.value, self.start_offset)
            case PositionKind.TIME:
                found = self._hub.journal.offset_at_time(self.topic_id, position.value)
                cold = self._hub.cold
                if cold is not None and cold.may_hold_time(self, found):
                    earlier = cold.offset_at_time(self, position.value)
                    if earlier is not None and earlier < self.state.tiered_offset:
                        found = earlier
                return self.commit if found is None else min(max(found, self.start_offset), self.commit)
