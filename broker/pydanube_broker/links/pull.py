"""The copy of one log of a mirror, at its owner: a round that follows the source, into the topic's journal.

It goes on from the topic's own end, also after a crash of either side. Messages that the source deleted before they
were copied are a gap, which is remembered until this process ends, and logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from pydanube_core.batch import MAX_BATCH_BYTES, BatchView, read_broker_part
from pydanube_core.batch.layout import BROKER_PART_BYTES
from pydanube_core.batch.plain import MAX_PUBLISH_TIME_MS
from pydanube_core.batch.validate import validate_batch
from pydanube_core.errors import (
    ClusterError,
    CorruptObject,
    DiskFull,
    Diverged,
    Overloaded,
    PermissionDenied,
    Retryable,
    StoreUnavailable,
    TopicNotFound,
    Unauthenticated,
)
from pydanube_core.links import LinkRecord, MirrorFacts
from pydanube_core.names import MAX_CLIENT_NAME_CHARS

from pydanube_broker.copying.following import append_time_at
from pydanube_broker.copying.messages import MOST_CURSORS, Marks, SessionMark
from pydanube_broker.copying.piece import Buffer, Piece
from pydanube_broker.copying.target import Copies
from pydanube_broker.links.mirror import COPYING, SOURCE_DELETED
from pydanube_broker.slices import Slices
from pydanube_broker.subscription.cursor import CursorSnapshot, decode_snapshot
from pydanube_broker.topics.producers import MAX_PRODUCERS, Opening
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads

log = logging.getLogger("pydanube.links")

DIVERGED: Final = "diverged"
UNREACHABLE: Final = "source_unreachable"
PAUSED: Final = "paused"
FAILED: Final = "failed"  # by an error of this side, such as a full disk
#: an offset, id or epoch of a source. The journal has 64 bits, and more are counted from it
MOST_NUMBER: Final = 1 << 62
MOST_EPOCH: Final = 1 << 31  # of a session, which has 32 bits
# sessions of a log in a second: the first marks bring all that the source has, and new ones may follow
_MOST_OPENED: Final = 2 * MAX_PRODUCERS
_AGAIN_S: Final = 0.5  # first pause after an error
_AGAIN_MOST_S: Final = 5.0


class NotThere(NamedTuple):
    """The source's log cannot be copied now: the mirror's state, and why."""

    state: str
    why: str | None


#: returns the id and the address of the source's log now
Place = Callable[[], tuple[int, str] | NotThere]


class Allowance:
    """The bytes that all copies of a link may take of this broker, first come, first served. 0: no limit."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def take(self, size: int) -> None:
        """Wait until so many bytes may be taken. Meanwhile the source gets no credit for more, and sends none."""
        if not self._bytes_per_s:
            return
        now_s = time.monotonic()
        begin_s = max(self._free_at_s, now_s)
        self._free_at_s = begin_s + size / self._bytes_per_s
        await asyncio.sleep(begin_s - now_s)


class Pull:
    """See the module. Single user: the loop.

    Args:
        source: name of the source's log.
        cluster: that has it.
    """

    def __init__(
        self,
        link: LinkRecord,
        topic: Topic,
        source: str,
        cluster: str,
        copies: Copies,
        place: Place,
        allowance: Allowance,
        now_ms: Callable[[], int],
        worker_threads: WorkerThreads,
    ) -> None:
        self._allowance = allowance
        self._worker_threads = worker_threads
        self.topic = topic
        self._link = link
        self._source = source
        self.cluster = cluster
        self._copies = copies
        self._place = place
        self._now_ms = now_ms
        self._marks: Marks | None = None
        self.cursors: dict[str, CursorSnapshot] = {}  # of the source, that reach beyond the copied end
        self._error: ClusterError | None = None
        self._missing = NotThere(PAUSED, None) if link.paused else None
        self._gap: tuple[int, int] | None = None
        self._opened = 0, 0  # a second of the monotonic clock, and the sessions that were taken in it
        self._at = 0  # where the source's next piece begins
        self._marked_at_ms = 0  # when the source last sent its marks, or a look found it still there

    async def run(self) -> None:
        """Copy until cancelled, or until the topic is no longer this link's or not served here."""
        pause_s = _AGAIN_S
        while self._is_ours:
            place, before = self._place(), self.topic.state.next_offset
            if isinstance(place, NotThere):
                self._missing = place
                await asyncio.sleep(_AGAIN_S)
                continue
            try:
                await self._follow(*place)
            except ClusterError as error:
                if self._error is None or self._error.code != error.code:
                    log.warning(
                        "mirror_waits",
                        extra={"topic": self.topic.name, "code": error.code, "error": error.message},
                    )
                self._error = error
            if self.topic.state.next_offset != before:
                pause_s = _AGAIN_S
            await asyncio.sleep(pause_s)
            pause_s = min(_AGAIN_MOST_S, pause_s * 2)

    @property
    def _is_ours(self) -> bool:
        return self.topic.closed is None and self.topic.link == self._link.name

    async def _follow(self, topic_id: int, url: str) -> None:
        state = self.topic.state
        is_new = not state.next_offset
        if not is_new and (not state.append_time_ms or isinstance(self._error, Diverged)):
            # A state that was rebuilt from objects has no time, or that of another message
            try:
                time_ms = await append_time_at(self.topic, state.next_offset - 1, self._worker_threads)
            except StoreUnavailable as error:  # of this cluster: the source is not at fault
                if not isinstance(self._error, Diverged):
                    self._missing = NotThere(FAILED, error.message)
                return
            state.append_time_ms = time_ms or state.append_time_ms
        self._missing = None
        first = None if is_new and self._link.start == "latest" else state.next_offset
        self._at = state.next_offset
        await self._copies.round(
            url,
            topic_id,
            0,
            first,
            self.take,
            marked=self.marked,
            topic=self._source,
            previous_time_ms=0 if is_new else state.append_time_ms,
        )

    def marked(self, marks: Marks) -> None:
        """Take the state of the source. Raises the errors of the journal."""
        if not self._is_ours:
            return
        cursors = {name: decode_snapshot(each) for name, each in marks.cursors.items()}
        _check_numbers("offset", (marks.start, marks.end))
        _check_numbers("session", (each.producer_id for each in marks.sessions))
        _check_numbers("session's epoch", (each.epoch for each in marks.sessions), most=MOST_EPOCH)
        _check_numbers("generation", (each.generation for each in cursors.values()))
        self._marks = marks
        self._marked_at_ms = self._now_ms()
        topic = self.topic
        if marks.end <= topic.state.next_offset:
            self._error = None  # else a piece shows that it can be written
        if not topic.state.next_offset and self._link.start == "latest" and marks.end:
            topic.begin_at(marks.end)
            self._at = marks.end
        start = min(marks.start, topic.state.next_offset)
        if start > topic.start_offset:
            topic.trim(start)
        self._take_sessions(marks.sessions)
        for name, cursor in cursors.items():
            if name in topic.subscriptions or name in self.cursors or len(self.cursors) < MOST_CURSORS:
                self.cursors[name] = cursor
        self.place_cursors()

    def _take_sessions(self, sessions: Sequence[SessionMark]) -> None:
        """Take producer sessions of the source. Raises `CorruptObject`: they are more than any producers open.

        Each writes a record into the journal, and the topic keeps the newest `MAX_PRODUCERS`.
        """
        if any(len(each.name) > MAX_CLIENT_NAME_CHARS for each in sessions):
            raise CorruptObject(
                f"the source sent a session's name of more than {MAX_CLIENT_NAME_CHARS} characters"
            )
        second, opened = self._opened
        now_second = int(time.monotonic())
        if second != now_second:
            opened = 0
        for each in sessions[-MAX_PRODUCERS:]:
            if not self.topic.take_session(Opening(each.producer_id, each.epoch, each.token, each.name)):
                continue
            opened += 1
            self._opened = now_second, opened
            if opened > _MOST_OPENED:
                raise CorruptObject(
                    f"the source opened more than {_MOST_OPENED} producer sessions of the topic within a second"
                )

    def place_cursors(self) -> None:
        """Bring the mirrored subscriptions to the source's cursors, as far as their messages are copied and durable."""
        end = self.topic.commit
        for name, cursor in list(self.cursors.items()):
            pump = self.topic.subscriptions.get(name)
            if pump is None or not self._is_ours:
                continue  # it is made within a second
            pump.follow(cursor.up_to(end))
            if not cursor.reaches(end):
                del self.cursors[name]

    async def take(self, piece: Piece) -> None:
        """Append a piece. Raises `CorruptObject`, `Diverged`, and the errors of the journal."""
        await self._allowance.take(sum(map(len, piece.batches)))
        topic, state = self.topic, self.topic.state
        _check_numbers("offset", (piece.end_offset,))
        if piece.first_offset < self._at:
            raise CorruptObject(
                f"{topic.name}: a piece begins at {piece.first_offset}, and {self._at} is next"
            )
        if piece.first_offset > self._at and self._is_ours:
            if state.next_offset:
                self._gap = state.next_offset, piece.first_offset
                log.warning(
                    "mirror_has_a_gap",
                    extra={"topic": topic.name, "from": state.next_offset, "until": piece.first_offset},
                )
            topic.begin_at(piece.first_offset)
        slices = Slices()
        for batch in piece.batches:
            await slices()
            try:  # another cluster's bytes: a batch that no reader can decode would stay in the log
                _check_batch(batch)
            except ClusterError as error:
                raise CorruptObject(
                    f"{topic.name}: a batch of the source is not valid: {error.message}"
                ) from error
            while self._is_ours:
                try:
                    topic.append_copy(batch)
                    break
                except Overloaded:  # wait until the next segment exists
                    room = asyncio.Event()
                    topic.when_room(room.set)
                    await room.wait()
        self._at, self._error = piece.end_offset, None

    def source_is_there(self, heard_ms: int) -> None:
        """Note when the source last answered, so that a quiet log's marks still hold."""
        if self.follows:
            self._marked_at_ms = heard_ms

    @property
    def follows(self) -> bool:
        """Return whether the source has this log, and it continues the mirror."""
        return self._marks is not None and self._error is None and self._missing is None

    def _complete_until(self, lag: int | None) -> int | None:
        if lag is None:
            return None
        return self._marked_at_ms if lag == 0 else self.topic.state.append_time_ms or None

    def facts(self) -> MirrorFacts:
        topic, marks, error = self.topic, self._marks, self._error
        end = None if marks is None else max(marks.end, topic.state.next_offset)
        lag = None if end is None else end - topic.commit
        state, why = (COPYING, None) if error is None else (_state_of(error), error.message)
        if self._missing is not None:
            state, why = self._missing
        copied_ms = topic.state.append_time_ms  # 0: unknown
        behind_ms = max(0, marks.time_ms - copied_ms) if marks is not None and copied_ms else None
        return MirrorFacts(
            topic=topic.name,
            source=self._source,
            state=state,
            why=why,
            copied_until=topic.commit,
            source_end=end,
            lag_messages=lag,
            lag_ms=0 if lag == 0 else behind_ms,
            complete_until_ms=self._complete_until(lag),
            gap=self._gap,
            fenced=marks is not None and marks.fenced,
        )


def _check_numbers(kind: str, numbers: Iterable[int], most: int = MOST_NUMBER) -> None:
    """Check numbers of a source. Raises `CorruptObject`: one is too large to be counted on from.

    The next number would not fit into the journal, and no topic of this broker could be written.
    """
    if (largest := max(numbers, default=0)) > most:
        raise CorruptObject(f"the source sent the {kind} {largest}: at most {most} is taken")


def _check_batch(batch: Buffer) -> None:
    """Check a batch of a source. Raises `CorruptObject`, and as `validate_batch`."""
    head, data = read_broker_part(batch[:BROKER_PART_BYTES]), batch[BROKER_PART_BYTES:]
    part = validate_batch(data, max_message_bytes=MAX_BATCH_BYTES, allow_offset_delta=True)
    _check_numbers("number", (head.last_offset, head.epoch, part.producer_id))
    _check_numbers("session's epoch", (part.producer_epoch,), most=MOST_EPOCH)
    if not 0 <= head.append_time_ms <= MAX_PUBLISH_TIME_MS:
        raise CorruptObject(f"the append time {head.append_time_ms} is not in the years 1970 to 9999")
    if BatchView(data, part=part).offset_deltas()[-1] > head.last_offset - head.base_offset:
        raise CorruptObject(f"its {part.count} messages do not end at {head.last_offset}")


def _state_of(error: ClusterError) -> str:
    if isinstance(error, Diverged):
        return DIVERGED
    if isinstance(error, TopicNotFound):
        return SOURCE_DELETED
    if isinstance(error, (PermissionDenied, Unauthenticated)):  # the token is refused
        return UNREACHABLE
    # Retried like a source that is away, but the source answers: a full disk here, or more than a copy holds
    return (
        UNREACHABLE
        if isinstance(error, Retryable) and not isinstance(error, (DiskFull, Overloaded))
        else FAILED
    )
