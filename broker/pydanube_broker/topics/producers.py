"""Idempotent producers of one topic: who may append what, and what a retry is answered.

A session is (producer id, epoch); ids are never given out twice in a topic. Batches carry the sequence of their
first message. The next one is appended; one of the last eight gets the answer of its first time; an older one is a
duplicate; a gap is refused, and with it everything behind it, so that a lost batch cannot be overtaken. An unknown
id is refused: its batches may be stored already, and only the producer can decide what that means.

Pure: the journal rebuilds this state from heads, producer records and the batches themselves.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pydanube_core.errors import OutOfSequence, ProducerFenced, ProducerUnknown

__all__ = ["Appended", "ProducerSession", "Producers"]

RECENT: Final = 8
MAX_PRODUCERS: Final = (
    1000  # remembered a topic; the least recently used of those without a connection go first
)


class Appended(NamedTuple):
    """A batch as it was appended. `base_offset` is None for a duplicate whose offsets are forgotten.

    A tuple, not a frozen dataclass: one is made for each batch, in a third of the time.
    """

    first_sequence: int
    count: int  # type: ignore[assignment]  # it hides the tuple's method
    base_offset: int | None
    append_time_ms: int


@dataclass(slots=True)
class ProducerSession:
    producer_id: int
    epoch: int
    name: str
    next_sequence: int = 0
    connections: int = 0
    recent: deque[Appended] = field(default_factory=lambda: deque(maxlen=RECENT))


class Producers:
    """All sessions of one topic."""

    __slots__ = ("_sessions", "changes", "next_id")

    def __init__(self) -> None:
        self.next_id = 1
        self.changes = 0  # rises with every change of what a head says of these sessions
        self._sessions: OrderedDict[int, ProducerSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def sessions(self) -> list[ProducerSession]:
        return list(self._sessions.values())

    def add(self, producer_id: int, epoch: int, name: str) -> ProducerSession:
        """Note a session that was opened, or that a record tells of."""
        self.changes += 1
        session = self._sessions.get(producer_id)
        if session is None:
            session = self._sessions[producer_id] = ProducerSession(producer_id, epoch, name)
        session.epoch = max(session.epoch, epoch)
        self.next_id = max(self.next_id, producer_id + 1)
        if len(self._sessions) > MAX_PRODUCERS:
            self._forget_one()
        return session

    def begin(self, name: str, *, exclusive: bool = False) -> ProducerSession:
        """A new session: with a new id or, for an exclusive producer that comes again by its name, with its id and the
        next epoch, which fences what it was before."""
        if exclusive:
            for session in reversed(self._sessions.values()):
                if session.name == name:
                    return self.add(session.producer_id, session.epoch + 1, name)
        return self.add(self.next_id, 1, name)

    def _forget_one(self) -> None:
        for producer_id, session in self._sessions.items():
            if not session.connections:
                del self._sessions[producer_id]
                self.changes += 1
                return

    def resume(self, producer_id: int, epoch: int) -> ProducerSession:
        """The session of an earlier connection.

        Raises:
            ProducerUnknown, ProducerFenced.
        """
        session = self._sessions.get(producer_id)
        if session is None or epoch > session.epoch:
            raise ProducerUnknown(
                f"producer {producer_id} (epoch {epoch}) is not known to this topic: what it had in flight may be "
                "stored. Open a new producer and decide what to send again",
                field="producer_id",
                value=str(producer_id),
                outcome="unknown",
            )
        if epoch < session.epoch:
            raise ProducerFenced(
                f"producer {producer_id} was opened again with epoch {session.epoch}; this one has epoch {epoch}",
                field="producer_epoch",
                value=epoch,
                outcome="unknown",
            )
        self._sessions.move_to_end(producer_id)
        self.changes += 1  # a head keeps their order
        return session

    def check(self, producer_id: int, epoch: int, first_sequence: int, count: int) -> Appended | None:
        """What to do with a batch.

        Returns:
            None to append it; else the answer it was given before.

        Raises:
            ProducerUnknown, ProducerFenced, OutOfSequence: nothing is stored.
        """
        session = self._sessions.get(producer_id)
        if session is None or session.epoch != epoch:
            session = self.resume(producer_id, epoch)
        if first_sequence == session.next_sequence:
            return None
        for appended in session.recent:
            if appended.first_sequence == first_sequence and appended.count == count:
                return appended
        if first_sequence + count <= session.next_sequence:
            return Appended(first_sequence, count, None, 0)
        raise OutOfSequence(
            f"producer {producer_id}: sequence {first_sequence} came, {session.next_sequence} is next",
            field="first_sequence",
            value=first_sequence,
            expected=session.next_sequence,
        )

    def appended(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        count: int,
        base_offset: int,
        append_time_ms: int,
    ) -> Appended:
        """Note a batch that was appended, or that the journal holds. Batches of id 0 belong to no session."""
        appended = Appended(first_sequence, count, base_offset, append_time_ms)
        session = self._sessions.get(producer_id)
        if session is None:
            if not producer_id:
                return appended
            session = self.add(producer_id, epoch, "")
        self.changes += 1
        session.next_sequence = first_sequence + count
        session.recent.append(appended)
        return appended
