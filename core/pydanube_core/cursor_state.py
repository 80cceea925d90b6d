"""One subscription of one log at one moment, and the table of the fields that describe its lag.

The cursor is read before its head, so lag is never negative and at most a few messages too high. A state that was made
from two sources may break that order. Its lag is still never below 0.

`LAG_FIELDS` names every field once. Telemetry, the lists of the admin core, the command line, the console, MCP and the
reports derive their columns from it. To add a counter, edit three modules: the one that counts, `Subscription.marks`
(`broker/pydanube_broker/subscription/subscription.py`), and this one (a field of `CursorState` and a row of the table).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, NamedTuple


class CursorState(NamedTuple):
    """A cursor's numbers. Integers only, so that a ring of them is one array: a round may have ten thousand.

    Offsets are of the log. Counters count since the broker started, which its incarnation identifies.
    """

    taken_at_ms: int  # milliseconds since 1970, by the broker's clock
    start_offset: int  # offset below which messages are trimmed
    next_offset: int  # one past the newest committed message
    next_unacked: int  # everything below is acknowledged
    acked_above: int  # messages acknowledged above next_unacked
    in_flight: int  # delivered and not answered
    members: int  # consumers attached
    redelivered: int = 0
    failed: int = 0  # nacked or not answered in time
    dead_lettered: int = 0
    dropped: int = 0  # lost on purpose: poison policy drop, or no room on a non-reliable topic
    generation: int = 0  # rises with every seek
    acknowledged: int = 0
    unrouted: int = 0  # key-shared: passed over because no consumer's filter accepts their key
    unanswered: int = 0  # of the failed: not answered in time

    @property
    def lag_messages(self) -> int:
        """The messages that can still be read and are not acknowledged."""
        lag: int = lag_messages(self.start_offset, self.next_offset, self.next_unacked, self.acked_above)
        return lag

    @property
    def lost_messages(self) -> int:
        """The messages that were trimmed before they were read."""
        lost: int = lost_messages(self.start_offset, self.next_unacked)
        return lost

    @property
    def unread_offsets(self) -> int:
        """The distance of the cursor from the head. Telemetry writes it because it changes less than the cursor."""
        return self.next_offset - self.next_unacked

    @property
    def oldest_unread(self) -> int:
        """Offset of the first message that is not acknowledged and not trimmed."""
        return max(self.next_unacked, self.start_offset)


def lag_messages(
    start: Any, head: Any, next_unacked: Any, acked_above: Any, larger: Callable[[Any, Any], Any] = max
) -> Any:
    """Compute lag, for numbers, or for whole columns with `larger=numpy.maximum`."""
    return larger(0, head - larger(next_unacked, start) - acked_above)


def lost_messages(start: Any, next_unacked: Any, larger: Callable[[Any, Any], Any] = max) -> Any:
    """Compute the lost messages, for numbers or columns as `lag_messages`."""
    return larger(0, start - next_unacked)


class Join(Enum):
    """How the values of a subscription's partitions become one value."""

    SUM = auto()
    MAX = auto()
    MIN = auto()
    FIRST = auto()  # the first known value
    LAST_TO_END = auto()  # the largest among partitions with unread messages, unknown if one of those is
    WORST = auto()  # the value of the partition with the worst status
    NONE = auto()  # a partition's alone


@dataclass(frozen=True, slots=True, kw_only=True)
class LagField:
    """A field of a subscription's lag, and where it appears."""

    name: str
    type: Any = int
    join: Join = Join.SUM
    nullable: bool = False
    reasoned: bool = False  # unknown values have a reason in `<name>_reason`
    counter: bool = False  # rises while the broker runs: findings and reports use its rise in a period
    listed: bool = False  # in items of `subscriptions.lag`
    described: bool = False  # in the partitions of `subscriptions.describe`
    # Among columns of the command line, which drops the last where it has no room
    position: int | None = None
    title: str | None = None  # text after the number on a screen. None: screens leave it out
    telemetry: str | None = None  # meaning of its column in the table `cursors`. None: it has no column there
    unit: str = ""  # of that column


#: in the order of the columns, wherever they appear
LAG_FIELDS: Final = (
    LagField(name="topic", type=str, join=Join.WORST, listed=True, position=10),
    # None: the topic is not partitioned
    LagField(name="partition", join=Join.NONE, nullable=True, listed=True, position=20),
    LagField(name="subscription", type=str, join=Join.WORST, listed=True, position=30),
    LagField(name="type", type=str, join=Join.WORST, listed=True, position=120),
    LagField(name="consumers", listed=True, position=90),
    LagField(name="start_offset", join=Join.NONE, telemetry="of the log at that moment", unit="offset"),
    # One past the last committed message
    LagField(
        name="next_offset",
        join=Join.NONE,
        listed=True,
        described=True,
        telemetry="of the log at that moment",
        unit="offset",
    ),
    # Everything below is acknowledged
    LagField(name="next_unacked", join=Join.NONE, listed=True, described=True),
    LagField(
        name="unread_offsets",
        telemetry="next_offset - next_unacked, where everything below next_unacked is acknowledged",
        unit="offsets",
    ),
    LagField(
        name="acked_above", described=True, telemetry="acknowledged above next_unacked", unit="messages"
    ),
    LagField(name="lag_messages", listed=True, described=True, position=50),
    LagField(name="lag_bytes", nullable=True, reasoned=True, listed=True, position=110),
    # By the broker's append time. Reasons: caught_up, not_known
    LagField(
        name="oldest_unread_age_s",
        type=float,
        join=Join.MAX,
        nullable=True,
        reasoned=True,
        listed=True,
        position=60,
    ),
    # exact, bounded, interpolated or unknown
    LagField(name="age_quality", type=str, join=Join.WORST, listed=True),
    # On a non-reliable topic: waiting in the consumers' queues
    LagField(
        name="in_flight",
        listed=True,
        described=True,
        position=100,
        telemetry="delivered and not answered",
        unit="messages",
    ),
    LagField(name="members", telemetry="consumers attached"),
    # Messages sent again
    LagField(
        name="redelivered",
        counter=True,
        listed=True,
        described=True,
        position=130,
        title="redelivered",
        telemetry="since the broker started",
        unit="messages",
    ),
    LagField(
        name="failed",
        counter=True,
        telemetry="nacked or not answered in time, since the broker started",
        unit="messages",
    ),
    LagField(
        name="unanswered",
        counter=True,
        telemetry="of the failed, those not answered in time, since the broker started",
        unit="messages",
    ),
    # Copied to the dead-letter topic
    LagField(
        name="dead_lettered",
        counter=True,
        listed=True,
        described=True,
        position=140,
        title="dead letters",
        telemetry="since the broker started",
        unit="messages",
    ),
    # By the poison policy `drop`, or on a non-reliable topic where a consumer had no room
    LagField(
        name="dropped",
        counter=True,
        listed=True,
        described=True,
        telemetry="lost on purpose since the broker started",
        unit="messages",
    ),
    LagField(name="generation", join=Join.NONE, telemetry="rises with every seek"),
    LagField(name="acknowledged", counter=True),
    LagField(name="unrouted", counter=True),
    # The message that stops the subscription, or its key
    LagField(
        name="blocked_by",
        type=str,
        join=Join.FIRST,
        nullable=True,
        listed=True,
        described=True,
        position=150,
    ),
    # Messages per second over the window of [diagnosis]
    LagField(name="produce_rate", type=float, nullable=True, reasoned=True, listed=True),
    LagField(name="consume_rate", type=float, nullable=True, reasoned=True, listed=True, position=70),
    # Until caught up. Reasons: caught_up, not_gaining, too_few_samples
    LagField(
        name="eta_s",
        type=float,
        join=Join.LAST_TO_END,
        nullable=True,
        reasoned=True,
        listed=True,
        position=80,
    ),
    # Until retention deletes the oldest unread message
    LagField(
        name="retention_headroom_s",
        type=float,
        join=Join.MIN,
        nullable=True,
        reasoned=True,
        listed=True,
    ),
    # Trimmed before they were read
    LagField(name="lost_messages", listed=True),
    LagField(name="status", type=str, join=Join.WORST, listed=True, position=40),
    LagField(name="since", type=str, join=Join.WORST, nullable=True, reasoned=True, listed=True),
    # The numbers that decided the status
    LagField(name="evidence", type=dict[str, Any], join=Join.WORST, listed=True),
)
_NAMES: Final = frozenset(field.name for field in LAG_FIELDS)
assert len(_NAMES) == len(LAG_FIELDS), "a name stands once"
assert set(CursorState._fields) - {"taken_at_ms"} <= _NAMES, "the table has every field of a state"

#: columns of the command line, the most important first
LAG_COLUMNS: Final = tuple(
    name
    for _, name in sorted((field.position, field.name) for field in LAG_FIELDS if field.position is not None)
)
#: counters of a state
COUNTERS: Final = tuple(field.name for field in LAG_FIELDS if field.counter)
#: counters whose rises reports show
REPORTED: Final = tuple(field.name for field in LAG_FIELDS if field.counter and field.listed)
assert all(field.telemetry is not None for field in LAG_FIELDS if field.name in REPORTED), (
    "reports read telemetry"
)


def joined(
    parts: Sequence[Mapping[str, Any]], *, names: Collection[str] | None = None, partly: bool = False
) -> dict[str, Any]:
    """Return the fields that the partitions of a subscription have in common, without those of `Join.WORST` and `NONE`.

    Args:
        parts: one mapping for each partition; a missing field is unknown.
        names: only these fields.
        partly: a sum leaves out unknown values; otherwise it is unknown if one of them is.
    """
    found: dict[str, Any] = {}
    for field in LAG_FIELDS:
        name = field.name
        if not (name in names if names is not None else field.listed):
            continue
        values = [part.get(name) for part in parts]
        known = [value for value in values if value is not None]
        match field.join:
            case Join.SUM:
                complete = len(known) == len(values) or (partly and bool(known))
                found[name] = sum(known) if complete else None
            case Join.MAX:
                found[name] = max(known, default=None)
            case Join.MIN:
                found[name] = min(known, default=None)
            case Join.FIRST:
                found[name] = next(iter(known), None)
            case Join.LAST_TO_END:
                left = [part.get(name) for part in parts if part.get("lag_messages") != 0]
                ends = [end for end in left if end is not None]
                found[name] = max(ends, default=None) if len(ends) == len(left) else None
            case Join.WORST | Join.NONE:
                pass
    return found
