"""The idempotent producers of one topic: which session may append which batch, and the answers to retries.

A session is (producer id, epoch, token). Ids count from 1 in every topic, and a topic that is created again, or a data
directory that is restored, assigns numbers again, so only the random token identifies a session. Batches carry the id,
the epoch and the sequence of their first message. Their stream has shown the token. The next batch in sequence is
appended. One of the last eight gets its first answer again. An older one is a duplicate. A gap is refused together with
everything behind it, so that a lost batch cannot be overtaken. A batch of an unknown session is refused: it may be
stored already, and only the producer can decide whether to send it again.

State is bounded: a session without a connection is forgotten after `SESSION_AGE_S`, or as the one of
`MAX_PRODUCERS` that was used least recently.

Pure: the journal rebuilds this state from heads, producer records and the batches themselves.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pydanube_core.errors import OutOfSequence, ProducerFenced, ProducerUnknown

RECENT: Final = 8
# Per topic. The least recently used sessions without a connection are forgotten first
MAX_PRODUCERS: Final = 1000
# Many times the 60 s for which a client waits in an outage before it gives up its messages in flight
SESSION_AGE_S: Final = 3600.0


class Opening(NamedTuple):
    """A session about to be opened, as in its record. It has no effect yet."""

    producer_id: int
    epoch: int
    token: int
    name: str


class Appended(NamedTuple):
    """An appended batch. `base_offset` is None for a duplicate whose offsets were forgotten.

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
    token: int = 0  # 0: opened by a version without tokens, and cannot be resumed
    next_sequence: int = 0
    connections: int = 0
    # Monotonic. None while connected, and until `expire` sees it
    idle_since_s: float | None = None
    begins_anywhere: bool = False  # accepts any sequence next: this broker has seen none
    promised: Opening | None = None  # the newest prepared opening that has not taken over yet
    recent: deque[Appended] = field(default_factory=lambda: deque(maxlen=RECENT))


class Producers:
    """All sessions of one topic."""

    __slots__ = ("_sessions", "changes", "next_id")

    def __init__(self) -> None:
        self.next_id = 1
        self.changes = 0  # rises with every change of these sessions in a head
        self._sessions: OrderedDict[int, ProducerSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def sessions(self) -> list[ProducerSession]:
        return list(self._sessions.values())

    def find(self, producer_id: int) -> ProducerSession | None:
        return self._sessions.get(producer_id)

    def add(self, producer_id: int, epoch: int, name: str, token: int = 0) -> ProducerSession:
        """Add a session that was opened, or is in a record. The last one with a name holds the name."""
        self.changes += 1
        session = self._sessions.get(producer_id)
        if session is None:
            session = self._sessions[producer_id] = ProducerSession(producer_id, epoch, name, token)
        session.epoch, session.token = epoch, token
        self.next_id = max(self.next_id, producer_id + 1)
        if len(self._sessions) > MAX_PRODUCERS:
            self._forget_one(session)
        return session

    def prepare(self, name: str, token: int, *, exclusive: bool = False) -> Opening:
        """Prepare a session with a new id, or for an exclusive producer's name with its id and the next epoch.

        `open` opens it. Until then the present holder of the name continues.
        """
        if exclusive:
            for session in reversed(self._sessions.values()):
                if session.name == name:
                    newest = max(session.epoch, session.promised.epoch if session.promised else 0)
                    session.promised = Opening(session.producer_id, newest + 1, token, name)
                    self.changes += 1
                    return session.promised
        session = self.add(self.next_id, 1, name, token)
        return Opening(session.producer_id, session.epoch, token, name)

    def open(self, opening: Opening) -> ProducerSession:
        """Open the session, whose record is durable. From here on only this session may write.

        Raises `ProducerFenced`: another connection has taken the name since.
        """
        session = self._sessions.get(opening.producer_id)
        if session is not None and session.token == opening.token:
            return session
        if session is not None and session.epoch >= opening.epoch:
            raise ProducerFenced(
                f"another connection opened the exclusive producer {opening.name!r} first",
                field="producer_name",
                value=opening.name,
            )
        self._keep_promise(session, opening)
        return self.add(opening.producer_id, opening.epoch, opening.name, opening.token)

    def give_up(self, opening: Opening) -> Opening | None:
        """Give up an opening. Return the session's holder, to be recorded. None: the session had no other holder."""
        session = self._sessions.get(opening.producer_id)
        self._keep_promise(session, opening)
        if session is None or session.token == opening.token:
            return None
        return Opening(session.producer_id, session.epoch, session.token, session.name)

    def _keep_promise(self, session: ProducerSession | None, opening: Opening) -> None:
        if session is not None and session.promised == opening:
            session.promised = None
            self.changes += 1

    def expire(self, now_s: float) -> None:
        """Forget sessions without a connection for `SESSION_AGE_S` of this process' time. O(sessions)."""
        gone = []
        for producer_id, session in self._sessions.items():
            if session.connections:
                session.idle_since_s = None
            elif session.idle_since_s is None:
                session.idle_since_s = now_s
            elif now_s - session.idle_since_s >= SESSION_AGE_S:
                gone.append(producer_id)
        for producer_id in gone:
            del self._sessions[producer_id]
            self.changes += 1

    def take_back(self, from_offset: int) -> None:
        """Forget batches from an offset on, which will never be committed: they may be sent again.

        A session without a remembered older batch is forgotten, because it could not distinguish these from older ones.
        """
        self.changes += 1
        for session in self.sessions():
            recent, known = session.recent, len(session.recent)
            while recent and recent[-1].base_offset is not None and recent[-1].base_offset >= from_offset:
                session.next_sequence = recent.pop().first_sequence
            if not recent and known == RECENT:
                del self._sessions[session.producer_id]

    def _forget_one(self, kept: ProducerSession) -> None:
        """Make room for `kept`. If all are connected, there is one more than the bound."""
        for producer_id, session in self._sessions.items():
            if not session.connections and session is not kept:
                del self._sessions[producer_id]
                self.changes += 1
                return

    def resume(self, producer_id: int, epoch: int, token: int) -> ProducerSession:
        """Return the session of an earlier connection. Raises `ProducerUnknown`, `ProducerFenced`."""
        session = self._known(producer_id, epoch)
        if not token or token != session.token:
            raise _unknown(producer_id, epoch)
        self._sessions.move_to_end(producer_id)
        self.changes += 1  # a head keeps their order
        return session

    def used(self, producer_id: int) -> None:
        """Note that a session of a mirror's source is in use, so that it is not the one to be forgotten. O(1)."""
        if producer_id in self._sessions:
            self._sessions.move_to_end(producer_id)

    def resume_foreign(self, producer_id: int, epoch: int, token: int) -> ProducerSession:
        """As `resume`, also for a session opened before this start or at another broker. For topics that store no sessions.

        Raises `ProducerFenced`.
        """
        session = self._sessions.get(producer_id)
        if session is None and token:
            next_id = self.next_id
            session = self.add(producer_id, epoch, "", token)
            session.begins_anywhere = True
            self.next_id = next_id  # a client does not decide the ids of others
        return self.resume(producer_id, epoch, token)

    def _known(self, producer_id: int, epoch: int) -> ProducerSession:
        session = self._sessions.get(producer_id)
        if session is None or epoch > session.epoch:
            raise _unknown(producer_id, epoch)
        if epoch < session.epoch:
            raise ProducerFenced(
                f"producer {producer_id} was opened again with epoch {session.epoch}. This one has epoch {epoch}",
                field="producer_epoch",
                value=epoch,
                outcome="unknown",
            )
        return session

    def check(self, producer_id: int, epoch: int, first_sequence: int, count: int) -> Appended | None:
        """Decide whether a batch is appended, answered as a duplicate, or refused.

        Returns:
            None to append it, else the answer that it got before.

        Raises:
            ProducerUnknown, ProducerFenced, OutOfSequence: nothing is stored.
        """
        session = self._sessions.get(producer_id)
        if session is None or session.epoch != epoch:
            session = self._known(producer_id, epoch)
        if first_sequence == session.next_sequence or session.begins_anywhere:
            session.begins_anywhere = False
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
        """Note a batch that was appended, or is in the journal. Batches of id 0 belong to no session."""
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


def _unknown(producer_id: int, epoch: int) -> ProducerUnknown:
    return ProducerUnknown(
        f"producer {producer_id} (epoch {epoch}) does not exist on this topic: its messages in flight may be "
        "stored. Open a new producer and decide which messages to send again",
        field="producer_id",
        value=str(producer_id),
        outcome="unknown",
    )
