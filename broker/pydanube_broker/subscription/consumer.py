"""One attached consumer of a subscription: its session and its credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from pydanube_broker.subscription.handling import Handling, HandlingStatistics
from pydanube_broker.subscription.ranges import head_of_mask
from pydanube_broker.subscription.terms import ConsumerTerms

# A `Chunk` or `Flight`. Their module imports this one.
Place: TypeAlias = Any


class Unhandled:
    """Messages in a consumer's buffer that its application has not taken, in the order of sending.

    A consumer that reports sends how many messages of its session its application has taken. The order of
    sending determines which messages these are. Acknowledged and expired messages stay here, and count, until
    they are passed over. `messages` counts the messages here, `taken` those taken in this session.
    """

    __slots__ = ("_sent", "messages", "taken")

    def __init__(self) -> None:
        self._sent: deque[tuple[Place, int]] = deque()
        self.messages = 0
        self.taken = 0

    def sent(self, chunk: Place, mask: int) -> None:
        """Add messages of one chunk as sent, in the order of their offsets."""
        self._sent.append((chunk, mask))
        self.messages += mask.bit_count()

    def take(self, total: int) -> list[tuple[Place, int]]:
        """Note that the application has taken `total` messages of this session. Return the new ones.

        A smaller total than before has no effect. A total above the number sent takes everything.
        O(new ones).
        """
        left = min(total - self.taken, self.messages)
        found: list[tuple[Place, int]] = []
        if left <= 0:
            return found
        self.taken += left
        self.messages -= left
        while left:
            chunk, mask = self._sent.popleft()
            count = mask.bit_count()
            if count > left:
                first = head_of_mask(mask, left)
                self._sent.appendleft((chunk, mask ^ first))
                mask, count = first, left
            found.append((chunk, mask))
            left -= count
        return found

    def parts(self) -> list[tuple[Place, int]]:
        """Return everything in the buffer, in the order of sending. O(parts)."""
        return list(self._sent)

    def given_back(self, back: dict[Place, int]) -> None:
        """Remove messages that were given back. If one is here twice, remove the one sent last. O(parts)."""
        left = dict(back)
        kept: deque[tuple[Place, int]] = deque()
        while self._sent:
            chunk, mask = self._sent.pop()
            gone = mask & left.get(chunk, 0)
            if gone:
                left[chunk] ^= gone
                self.messages -= gone.bit_count()
                mask ^= gone
            if mask:
                kept.appendleft((chunk, mask))
        self._sent = kept

    def clear(self) -> None:
        """Clear everything, when a new session begins."""
        self._sent.clear()
        self.messages = self.taken = 0


class Standing(StrEnum):
    """Whether a consumer handles the messages it is sent. See `set_aside`."""

    ANSWERING = "answering"
    SET_ASIDE = "set_aside"  # let everything expire, so it is sent nothing
    ON_TRIAL = "on_trial"  # was set aside, and is sent one message at a time until it answers


class Consumer:
    """Mutable state of one attachment. Only its `Subscription` changes and reads it.

    Credit is the number of messages, and of bytes where `credit_bytes` is not None, that may still be sent.
    Bytes may go below zero by one message that is larger than the rest, so that no message is withheld for
    ever. With `credit_returns` a message gives its credit back when it leaves flight (a window, for clients
    that grant nothing themselves), otherwise only `grant` adds. `reports`: the consumer reports the messages
    that its application takes. While `paused` (its connection is full) or set aside it has no credit,
    regardless of the numbers.
    """

    __slots__ = (
        "ack_timeout_ms", "answered_at_ms", "consumer_id", "credit_bytes", "credit_messages", "credit_returns",
        "delivered", "expired", "flights", "handling", "has_answered", "in_flight", "keeps", "key_filters",
        "max_extend_ms", "name", "notes", "paused", "rank", "recall_at_ms", "refresh_at_ms", "reports", "resumed",
        "session", "single", "slot_index", "standing", "standing_since_ms", "took_at_ms", "trial_at_ms", "trials",
        "unhandled",
    )  # fmt: skip

    def __init__(
        self,
        *,
        consumer_id: int,
        name: str,
        session: int,
        ack_timeout_ms: int,
        terms: ConsumerTerms,
        now_ms: int = 0,
    ) -> None:
        window = terms.window_messages
        self.consumer_id = consumer_id
        self.name = name
        self.rank = 0  # its place in the order of the consumers, ascending
        # Shared: where it notes that its credit or the number of its messages changed. See `Takers`.
        self.notes: set[Consumer] | None = None
        self.session = session
        self.ack_timeout_ms = ack_timeout_ms  # 0: deliveries do not expire
        self.single = terms.single
        self.credit_messages = terms.credit_messages if window is None else window
        self.credit_bytes = terms.credit_bytes if window is None else None
        self.credit_returns = window is not None
        self.key_filters = terms.key_filters
        self.paused = False
        self.in_flight = 0
        self.flights: dict[Place, None] = {}  # its `Flight`s, in the order of sending
        self.delivered = 0  # messages sent, redeliveries included
        self.refresh_at_ms = 0  # earliest time at which an answer extends the deadlines behind it again
        self.reports = terms.reports
        # Maximum time that taken messages are kept while the consumer reports.
        self.max_extend_ms = terms.max_extend_ms
        self.unhandled = Unhandled()  # messages in its buffer, if it reports
        self.took_at_ms = -1  # time of the last report that its application takes messages
        self.keeps: Sequence[tuple[int, int, int | None]] = ()  # absent: messages kept for it (`handover`)
        self.resumed = False  # it continues with the messages kept for it
        self.recall_at_ms = 0  # earliest time of the next recall
        self.slot_index = -1  # key-shared: its place in the slot table
        self.standing = Standing.ANSWERING
        self.standing_since_ms: int | None = None  # since when it has a standing other than answering
        self.trial_at_ms: int | None = None  # set aside: time of its next trial
        self.trials = 0  # since its last answer
        self.expired = 0  # messages that expired since its last answer
        self.handling = Handling(now_ms)
        # Answers come without a time. This notes that there was one, and the next call with a time sets it.
        self.has_answered = False
        self.answered_at_ms = -1

    @property
    def absent(self) -> bool:
        """Return whether only its place is reserved, since its topic came from another broker."""
        return bool(self.keeps)

    @property
    def set_aside(self) -> bool:
        return self.standing is Standing.SET_ASIDE

    @property
    def has_credit(self) -> bool:
        return (
            self.credit_messages > 0
            and not self.paused
            and (self.credit_bytes is None or self.credit_bytes > 0)
            and (self.standing is Standing.ANSWERING or (not self.set_aside and not self.in_flight))
        )

    @property
    def room_messages(self) -> int:
        """Return how many messages one plan may send it, if it has credit."""
        return self.credit_messages if self.standing is Standing.ANSWERING else 1

    @property
    def well_supplied(self) -> bool:
        """Return whether it holds at least fifteen messages for each one that it may still be sent."""
        return self.in_flight > 15 * self.credit_messages

    def takes_all_of(self, other: Consumer) -> bool:
        """Return whether it accepts every key that `other` accepts. A reserved place accepts nothing."""
        if self.absent or (not self.credit_messages and not self.in_flight):
            return False
        return not self.key_filters or self.key_filters == other.key_filters

    def date_answers(self, now_ms: int) -> None:
        """Set the time of the answers since the last call to `now_ms`."""
        if self.has_answered:
            self.has_answered = False
            self.answered_at_ms = now_ms
            self.expired = 0

    def changed(self) -> None:
        """Note that its credit, its standing or the number of its messages changed."""
        if self.notes is not None:
            self.notes.add(self)

    def launched(self, messages: int, size_bytes: int) -> None:
        self.in_flight += messages
        self.delivered += messages
        self.credit_messages -= messages
        if self.credit_bytes is not None:
            self.credit_bytes -= size_bytes
        self.changed()

    def landed(self, messages: int) -> None:
        self.in_flight -= messages
        assert self.in_flight >= 0, "more messages landed than were in flight"
        if self.credit_returns:
            self.credit_messages += messages
        self.changed()

    def statistics(
        self, now_ms: int, *, active: bool, oldest_age_ms: int | None, slots: int | None
    ) -> ConsumerStatistics:
        """Return its statistics, completed with those that only the subscription has."""
        return ConsumerStatistics(
            consumer_id=self.consumer_id,
            name=self.name,
            session=self.session,
            active=active,
            credit_messages=self.credit_messages,
            credit_bytes=self.credit_bytes,
            in_flight=self.in_flight,
            delivered=self.delivered,
            expired=0 if self.has_answered else self.expired,
            standing=self.standing,
            standing_ms=None if self.standing_since_ms is None else now_ms - self.standing_since_ms,
            oldest_in_flight_age_ms=oldest_age_ms,
            slots=slots,
            handling=self.handling.statistics(now_ms, from_taken=self.reports),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """One consumer, for screens and lag reports."""

    consumer_id: int
    name: str
    session: int
    active: bool  # may be sent messages, False for a failover standby
    credit_messages: int
    credit_bytes: int | None  # None: bytes are not limited
    in_flight: int
    delivered: int
    expired: int  # messages that expired since its last answer
    standing: Standing
    standing_ms: int | None  # how long it has had this standing, None while it answers
    oldest_in_flight_age_ms: int | None  # None: nothing is in flight
    slots: int | None  # None: not key-shared
    handling: HandlingStatistics | None = None  # None: of a non-reliable topic
    dropped: int = 0  # of a non-reliable topic: messages it was too slow for
