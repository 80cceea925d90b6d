"""The state of a topic that the journal recovers after a crash, and its encoding in heads and records.

Pure. Little-endian. A head is a count of topics and, for each, the fields below. Cursors are opaque here
(`subscription.cursor`). Bodies of the records that belong to a topic (ids are in the record's header)::

    TOPIC_OPEN    u64 epoch, u64 start offset          PRODUCER   u64 producer id, u32 epoch, name (UTF-8)
    TRIM_PREFIX   u64 new start offset                 SESSION    u64 producer id, u32 epoch, u64 token, name (UTF-8)
    TOPIC_CLOSE   nothing: the topic was deleted       CURSOR     u64 subscription id, cursor delta
    RELEASE       u64 epoch, u64 end offset            ADOPT      a head of this one topic, u64 move or nothing

A topic that is moved arrives as TOPIC_OPEN in epoch 0, its batches, and ADOPT with all the rest. ADOPT with a move (the
metadata revision of that move's last step before the assignment) leaves the state in epoch 0, `awaiting` that move: the
copy is complete, and the assignment decides whether it becomes the topic. TOPIC_OPEN in an epoch above 0 confirms it.
ADOPT without a move has the epoch in which the topic is taken over. Any other state of epoch 0 is an unfinished copy.
RELEASE removes the topic or the copy from this journal.

A subscription id with its highest bit set (`ORIGIN`) is that of another topic's subscription whose dead letters are
copied to this topic. The record lists the messages that have copies here. It follows the batch of the copies
immediately, so that the journal has both, or only the batch, and then the messages are copied again.

PRODUCER is a SESSION from before tokens, and heads of format 1 have no tokens either: both are read, not written. Heads
of format 3 have behind each entry a u64, the address from which on batches belong to the topic. Heads of format 4,
written only while a copy awaits its move, have one more u64, the move.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part
from pydanube_core.batch.layout import PRODUCER_PART, UNKNOWN_OFFSET
from pydanube_core.errors import FormatTooNew

from pydanube_broker.journal.records import RecordHeader, RecordKind
from pydanube_broker.subscription.cursor import (
    CursorDelta,
    CursorSnapshot,
    apply_deltas,
    decode_delta,
    decode_snapshot,
    encode_snapshot,
)
from pydanube_broker.subscription.handover import Handover
from pydanube_broker.subscription.ranges import Range, normalise
from pydanube_broker.topics.producers import Appended, Opening, Producers

_COUNT: Final = struct.Struct("<II")  # topics, format of the entries
_ENTRY: Final = struct.Struct("<QQQQQqQQQII")
_PRODUCER_1: Final = struct.Struct("<QIIQI")  # id, epoch, name bytes, next sequence, recent batches
_PRODUCER: Final = struct.Struct("<QIIQIQ")  # and the token
_RECENT: Final = struct.Struct("<QIIQq")
_CURSOR: Final = struct.Struct("<QI")  # subscription id, snapshot bytes
_TWO: Final = struct.Struct("<QQ")
_ONE: Final = struct.Struct("<Q")
_OPEN_PRODUCER: Final = struct.Struct("<QI")
_SESSION: Final = struct.Struct("<QIQ")
_FORMAT: Final = 2
# And behind each entry, u64: `since_lsn`. Written only if a topic has come from another broker
_WITH_SINCE: Final = 3
_WITH_MOVE: Final = 4  # and u64: `awaiting`
# Replayed deltas of a subscription before they are folded into its cursor, which bounds memory
_DELTAS: Final = 4096
ORIGIN: Final = 1 << 63
# Remembered per topic: subscriptions whose dead letters it has, and ranges of each. The oldest are forgotten first, and
# would be copied again if requested again.
_ORIGINS: Final = 256
_COPIED_RANGES: Final = 1024


@dataclass(slots=True)
class LogState:
    """One concrete topic's log, up to the last append. `next_offset` is one past the last message."""

    topic_id: int
    epoch: int = 0
    start_offset: int = 0
    next_offset: int = 0
    tiered_offset: int = 0
    append_time_ms: int = 0
    messages: int = 0
    stored_bytes: int = 0
    opened: bool = False
    since_lsn: int = 0  # batches below it are from an earlier stay of the topic here, and do not count
    awaiting: int = 0  # the move of a complete copy that is not the topic yet, 0: none
    producers: Producers = field(default_factory=Producers)
    cursors: dict[int, CursorSnapshot] = field(default_factory=dict)
    #: for dead letters that are here, by their subscription: every message acknowledged in the cursor was copied
    copied: dict[int, CursorSnapshot] = field(default_factory=dict)
    deltas: dict[int, list[CursorDelta]] = field(default_factory=dict)  # replayed and not in `cursors` yet
    #: while the topic moves to another broker, by subscription. In memory only: a crash redelivers all that is held
    handovers: dict[int, Handover] = field(default_factory=dict, repr=False, compare=False)
    #: this topic's entry in the last head, and the values that it was encoded from
    _encoded: tuple[tuple[object, ...], bytes] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def needed_offset(self) -> int:
        """Return the offset below which all is in the cold tier or trimmed, so that the journal may delete it."""
        return max(self.start_offset, self.tiered_offset)

    def apply(self, header: RecordHeader, body: memoryview) -> None:
        """Apply one record of this topic."""
        match header.kind:
            case RecordKind.BATCH:
                part = read_broker_part(body[:BROKER_PART_BYTES])
                fields = PRODUCER_PART.unpack_from(body, BROKER_PART_BYTES)
                count, producer_id, producer_epoch, sequence = fields[4], fields[8], fields[9], fields[11]
                self.appended(part.base_offset, part.last_offset + 1, count, part.append_time_ms, len(body))
                self.producers.appended(
                    producer_id, producer_epoch, sequence, count, part.base_offset, part.append_time_ms
                )
            case RecordKind.TOPIC_OPEN:
                epoch, start = _TWO.unpack_from(body)
                if epoch:
                    self.awaiting = 0
                else:
                    self.since_lsn = header.lsn
                self.opened = True
                self.epoch = max(self.epoch, epoch)
                self.start_offset = max(self.start_offset, start)
                self.next_offset = max(self.next_offset, start)
            case RecordKind.TRIM_PREFIX:
                self.start_offset = max(self.start_offset, _ONE.unpack_from(body)[0])
            case RecordKind.PRODUCER:
                producer_id, epoch = _OPEN_PRODUCER.unpack_from(body)
                self.producers.add(producer_id, epoch, bytes(body[_OPEN_PRODUCER.size :]).decode())
            case RecordKind.SESSION:
                producer_id, epoch, token = _SESSION.unpack_from(body)
                self.producers.add(producer_id, epoch, bytes(body[_SESSION.size :]).decode(), token)
            case RecordKind.CURSOR:
                (subscription_id,) = _ONE.unpack_from(body)
                deltas = self.deltas.setdefault(subscription_id, [])
                deltas.append(decode_delta(bytes(body[_ONE.size :])))
                if len(deltas) >= _DELTAS:
                    self._fold(subscription_id)
            case _:
                raise AssertionError(f"a record of kind {header.kind} does not belong to a topic")

    def fold_replayed(self) -> None:
        """Bring `cursors` up to date with the replayed records."""
        for subscription_id in tuple(self.deltas):
            self._fold(subscription_id)

    def _fold(self, subscription_id: int) -> None:
        deltas = self.deltas.pop(subscription_id)
        if subscription_id & ORIGIN:
            self.note_copied(subscription_id ^ ORIGIN, *deltas)
        else:
            old = self.cursors.get(subscription_id, CursorSnapshot(floor=0))
            self.cursors[subscription_id] = apply_deltas(old, deltas)

    def note_copied(self, subscription_id: int, *deltas: CursorDelta) -> None:
        """Note that messages of another topic's subscription have copies here."""
        known = apply_deltas(self.copied.pop(subscription_id, CursorSnapshot(floor=0)), deltas)
        self.copied[subscription_id] = replace(known, acknowledged=known.acknowledged[-_COPIED_RANGES:])
        if len(self.copied) > _ORIGINS:
            del self.copied[next(iter(self.copied))]

    def copies(self, subscription_id: int, generation: int) -> list[Range]:
        """Return the messages of another topic's subscription with copies here, for this generation of its cursor."""
        known = self.copied.get(subscription_id)
        if known is None or known.generation != generation:
            return []
        return normalise([(0, known.floor), *known.acknowledged])

    def appended(self, base: int, end: int, count: int, time_ms: int, stored_bytes: int) -> None:
        """Note a batch [base, end)."""
        assert base >= self.next_offset, f"offset {base} was given out already ({self.next_offset} is next)"
        self.next_offset = end
        self.append_time_ms = time_ms  # may go back: `wall_clock.append_time`
        self.messages += count
        self.stored_bytes += stored_bytes

    def encode(self) -> bytes:
        """Encode this topic's entry in a head.

        The entry is cached until one of its values changes, because most of many topics are idle from one head to the
        next, and 10 000 entries take 90 ms to encode, but 8 ms to compare. Values are compared, and not marked as
        changed: a forgotten mark would make a head that assigns offsets twice after a crash.
        """
        self.fold_replayed()
        made_from = (
            self.epoch,
            self.start_offset,
            self.next_offset,
            self.tiered_offset,
            self.append_time_ms,
            self.messages,
            self.stored_bytes,
            self.producers.changes,
            *self.cursors,
            *self.cursors.values(),  # frozen: comparing identical objects is cheap
            *self.copied,
            *self.copied.values(),
        )
        if self._encoded is None or self._encoded[0] != made_from:
            self._encoded = (made_from, self._encode())
        return self._encoded[1]

    def _encode(self) -> bytes:
        sessions = self.producers.sessions()
        pieces = [
            _ENTRY.pack(
                self.topic_id,
                self.epoch,
                self.start_offset,
                self.next_offset,
                self.tiered_offset,
                self.append_time_ms,
                self.messages,
                self.stored_bytes,
                self.producers.next_id,
                len(sessions),
                len(self.cursors) + len(self.copied),
            )
        ]
        for session in sessions:
            name = session.name.encode()
            # A promised session counts as if it had taken over: its record may be older than this head.
            owner = session.promised or session
            pieces.append(
                _PRODUCER.pack(
                    session.producer_id,
                    owner.epoch,
                    len(name),
                    session.next_sequence,
                    len(session.recent),
                    owner.token,
                )
            )
            pieces.append(name)
            for batch in session.recent:
                base = UNKNOWN_OFFSET if batch.base_offset is None else batch.base_offset
                pieces.append(_RECENT.pack(batch.first_sequence, batch.count, 0, base, batch.append_time_ms))
        origins = ((number | ORIGIN, snapshot) for number, snapshot in self.copied.items())
        for subscription_id, snapshot in chain(self.cursors.items(), origins):
            data = encode_snapshot(snapshot)
            pieces += (_CURSOR.pack(subscription_id, len(data)), data)
        return b"".join(pieces)


def encode_head(states: Iterable[LogState]) -> list[bytes]:
    """Encode the head of these topics, in pieces."""
    opened = [state for state in states if state.opened]
    entries = [state.encode() for state in opened]
    if not any(state.since_lsn for state in opened):
        return [_COUNT.pack(len(entries), _FORMAT), *entries]
    if any(state.awaiting for state in opened):
        version, behind = _WITH_MOVE, [_TWO.pack(state.since_lsn, state.awaiting) for state in opened]
    else:
        version, behind = _WITH_SINCE, [_ONE.pack(state.since_lsn) for state in opened]
    return [_COUNT.pack(len(entries), version), *chain.from_iterable(zip(entries, behind, strict=True))]


def decode_head(head: memoryview) -> dict[int, LogState]:
    """Decode the states in a head, whose checksum was verified."""
    return _decode_head(head)[0]


def _decode_head(head: memoryview) -> tuple[dict[int, LogState], int]:
    """Return the states in a head, and where it ends."""
    count, version = _COUNT.unpack_from(head)
    if version > _WITH_MOVE:
        raise FormatTooNew(
            f"the journal's state has format {version}, this version reads up to {_WITH_MOVE}: use the newer version",
            value=version,
        )
    producer = _PRODUCER_1 if version == 1 else _PRODUCER
    at = _COUNT.size
    states: dict[int, LogState] = {}
    for _ in range(count):
        (
            topic_id,
            epoch,
            start,
            following,
            tiered,
            time_ms,
            messages,
            stored,
            next_producer,
            producers,
            cursors,
        ) = _ENTRY.unpack_from(head, at)
        at += _ENTRY.size
        state = LogState(topic_id, epoch, start, following, tiered, time_ms, messages, stored, opened=True)
        state.producers.next_id = next_producer
        for _ in range(producers):
            producer_id, producer_epoch, name_bytes, sequence, recent, *token = producer.unpack_from(head, at)
            at += producer.size
            session = state.producers.add(
                producer_id, producer_epoch, bytes(head[at : at + name_bytes]).decode(), *token
            )
            at += name_bytes
            session.next_sequence = sequence
            for _ in range(recent):
                first, n, _, base, appended_ms = _RECENT.unpack_from(head, at)
                at += _RECENT.size
                offset = None if base == UNKNOWN_OFFSET else base
                session.recent.append(Appended(first, n, offset, appended_ms))
        for _ in range(cursors):
            subscription_id, length = _CURSOR.unpack_from(head, at)
            at += _CURSOR.size
            into = state.copied if subscription_id & ORIGIN else state.cursors
            into[subscription_id & ~ORIGIN] = decode_snapshot(bytes(head[at : at + length]))
            at += length
        if version >= _WITH_SINCE:
            (state.since_lsn,) = _ONE.unpack_from(head, at)
            at += _ONE.size
        if version >= _WITH_MOVE:
            (state.awaiting,) = _ONE.unpack_from(head, at)
            at += _ONE.size
        states[topic_id] = state
    return states, at


def replay_record(states: dict[int, LogState], header: RecordHeader, body: memoryview) -> None:
    """Apply one record about a topic to the states of all topics."""
    topic_id = header.topic_id
    match header.kind:
        case RecordKind.TOPIC_CLOSE | RecordKind.RELEASE:
            states.pop(topic_id, None)
        case RecordKind.ADOPT:
            since_lsn = states[topic_id].since_lsn
            found, end = _decode_head(body)
            adopted = states[topic_id] = found[topic_id]
            adopted.since_lsn = since_lsn
            if len(body) > end:
                (adopted.awaiting,) = _ONE.unpack_from(body, end)
                adopted.epoch = 0
        case _:
            state = states.get(topic_id)
            if state is None:
                state = states[topic_id] = LogState(topic_id)
            state.apply(header, body)


def starts_in(records: Iterable[tuple[RecordHeader, bytes]]) -> dict[int, int]:
    """Return topic id → the highest begin that these records set, without topics that they do not mention."""
    starts: dict[int, int] = {}
    for header, body in records:
        match header.kind:
            case RecordKind.TOPIC_OPEN:
                start = _TWO.unpack_from(body)[1]
            case RecordKind.TRIM_PREFIX:
                (start,) = _ONE.unpack_from(body)
            case _:
                continue
        starts[header.topic_id] = max(start, starts.get(header.topic_id, 0))
    return starts


def encode_open_body(epoch: int, start_offset: int) -> bytes:
    return _TWO.pack(epoch, start_offset)


def encode_release_body(epoch: int, end_offset: int) -> bytes:
    return _TWO.pack(epoch, end_offset)


def encode_state(state: LogState) -> bytes:
    """Encode a head of one topic for another journal, or for ADOPT: without an address in this one."""
    return _COUNT.pack(1, _FORMAT) + state.encode()


def encode_adopt_body(state: LogState) -> bytes:
    """Encode an ADOPT of a topic in its epoch, or of a copy that awaits its move."""
    return encode_state(state) + (_ONE.pack(state.awaiting) if state.awaiting else b"")


def encode_trim_body(start_offset: int) -> bytes:
    return _ONE.pack(start_offset)


def encode_session_body(opening: Opening) -> bytes:
    return _SESSION.pack(opening.producer_id, opening.epoch, opening.token) + opening.name.encode()


def encode_cursor_body(subscription_id: int, delta: bytes) -> bytes:
    return _ONE.pack(subscription_id) + delta
