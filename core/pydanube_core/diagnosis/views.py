"""Views for the rules: facts about one subscription, topic or broker, at one moment and over a window.

A view has all the facts that rules read. Unknown is None. `Count` is a counter since the broker's start, and its rise
in the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import ClassVar, Final, NamedTuple

from pydanube_core.balance import Assessment
from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis.filling import Filling
from pydanube_core.diagnosis.findings import RuleArea
from pydanube_core.diagnosis.lag_status import LagJudgement, LagStatus, Rewind
from pydanube_core.facts import ConsumerFacts, DialFacts, FailedMoveFacts, MoveFacts, QuarantinedKey
from pydanube_core.security.credential import Credential

BURST_TIMES: Final = 3.0  # the typical part of the window
FEWEST_SEGMENTS: Final = 4
FEWEST_BEFORE: Final = 2  # segments before a peak: with fewer it is not known what was typical


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    total: int
    in_window: int
    last_ms: int | None = None  # when it was seen to rise last


NO_COUNT = Count(total=0, in_window=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The last client that left, if none has come since."""

    at_ms: int
    name: str
    abrupt: bool  # its connection broke without a goodbye
    in_flight: int
    unread: int  # messages that it left unread
    floor: int | None = None  # where the cursor stood
    back_at_ms: int | None = None  # when the next one came, if it left no other consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """How consumers left within three windows, as far as that is kept."""

    count: int
    abrupt: int  # connections that broke
    fruitless: int  # the last ones in a row at which the cursor stood where it stands now
    since_ms: int  # the first of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A consumer that could not attach: the subscription is held, or a limit is reached."""

    at_ms: int
    name: str  # its name for itself
    code: str
    holder: str | None = None  # the consumer that holds an exclusive subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When unread messages raise an alert, by the policies `alert_…` of a topic. 0: never."""

    messages: int = 0  # unread: more than so many
    age_s: int = 0  # of the oldest unread message: older than this

    @property
    def any(self) -> bool:
        return bool(self.messages or self.age_s)


NO_THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOfLine:
    """The message that failed most often among the first open ones."""

    offset: int
    deliveries: int
    failures: int
    blocked: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySample:
    """How the oldest unread messages are spread over keys."""

    key: str
    messages: int  # of that key
    sampled: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """How a log grew: over the window, and before that in its steady stretch."""

    window_s: float
    messages: int  # in the window
    last_ms: int | None  # when it was seen to grow last
    steady_since_ms: int | None  # it grew without a break longer than `longest_gap_s` from here to `last_ms`
    longest_gap_s: float
    steady_messages: int
    segments: tuple[int, ...] = ()  # messages in equal parts of the window, oldest first

    @property
    def rate(self) -> float:
        return self.messages / self.window_s if self.window_s > 0 else 0.0

    @property
    def even(self) -> str:
        """Why there is no burst, in words."""
        if len(self.segments) < FEWEST_SEGMENTS:
            return f"messages have come for {self.window_s:.0f} s: too short to compute a usual rate"
        return (
            f"no part of the last {self.window_s:.0f} s brought {BURST_TIMES:.0f} times the usual number before "
            f"it: the most were {max(self.segments)} messages in {self.window_s / len(self.segments):.0f} s"
        )

    @property
    def burst(self) -> Burst | None:
        """The part of the window with far more messages than those before it. None if there is none."""
        if len(self.segments) < FEWEST_SEGMENTS:
            return None
        usual = {at: median_low(self.segments[:at]) for at in range(FEWEST_BEFORE, len(self.segments))}
        peaks = [at for at, each in usual.items() if self.segments[at] >= BURST_TIMES * max(1, each)]
        if not peaks:
            return None
        typical, peak = usual[peaks[-1]], max(self.segments)
        part_s = self.window_s / len(self.segments)
        excess = sum(max(0, part - typical) for part in self.segments)
        return Burst(
            messages=excess, peak_rate=round(peak / part_s, 3), typical_rate=round(typical / part_s, 3)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """A part of the window with more than three times its typical growth."""

    messages: int  # above the typical
    peak_rate: float  # messages a second
    typical_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorMove:
    """A move of a cursor: back, or forward over messages that were unread."""

    at_ms: int
    from_offset: int
    to_offset: int
    skipped_messages: int  # unread before the move, and not after it
    by: str | None  # the client that moved it. None: an operation did
    operation: str  # by which it was moved


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionView:
    area: ClassVar = RuleArea.SUBSCRIPTION

    topic: str  # as people name it
    log: str  # of a partition its own name
    partition: int | None
    subscription: str
    type: str
    now_ms: int
    lag: LagJudgement
    state: CursorState
    consumers: tuple[ConsumerFacts, ...]
    created_ms: int | None
    departure: Departure | None
    cursor_moved_ms: int | None
    acknowledged: Count
    failed: Count
    dead_lettered: Count
    dropped: Count
    redelivered: Count
    poison_policy: str
    max_redelivery_count: int
    dead_letter_topic: str | None
    dispatch_rate_limit: int  # messages a second, 0: none
    head_of_line: HeadOfLine | None = None
    keys: KeySample | None = None
    rewind: Rewind | None = None
    rewind_cause: str | None = None  # seek | None
    moved_forward: CursorMove | None = None
    production: Production | None = None
    departures: Departures | None = None
    # The last departures that left no consumer, oldest first, none while one is attached
    visits: tuple[Departure, ...] = ()
    unrouted: Count = NO_COUNT  # passed over: no consumer's filter accepts their key
    refusals: tuple[Refusal, ...] = ()  # of consumers, the last ones in the window
    failing: int = 0  # different open messages that were given back as failed
    unanswered: Count = NO_COUNT  # deliveries that expired
    answered_late: int = 0  # messages acknowledged after a delivery of them had expired, since the start
    thresholds: Thresholds = NO_THRESHOLDS
    settled: LagStatus | None = None  # None: not observed before. Then the judgement of the moment counts
    slowed: Mapping[str, float] = field(default_factory=dict)  # as of its topic

    @property
    def status(self) -> LagStatus:
        """The status that lists, reports and alerts show."""
        return self.lag.status if self.settled is None else self.settled

    @property
    def settles_at_ms(self) -> int | None:
        """When half of the window has been observed. None if it has."""
        return self.lag.settles_at_ms

    @property
    def unread(self) -> int:
        return self.state.lag_messages

    @property
    def impact(self) -> int:
        """The number of messages that wait, or were removed unread."""
        gone = (self.dead_lettered, self.dropped, self.unrouted)
        return self.unread + self.state.lost_messages + sum(one.in_window for one in gone)

    @property
    def subject(self) -> dict[str, object]:
        found: dict[str, object] = {"topic": self.topic, "subscription": self.subscription}
        return found if self.partition is None else {**found, "partition": self.partition}

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of operations on this subscription."""
        return {"topic": self.topic, "subscription": self.subscription}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Messages with the keys and payloads of others before them, in the same order."""

    messages: int
    first_offset: int  # of those before
    again_offset: int
    producers: tuple[str, ...]  # names of those that wrote either


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishClock:
    """How far the publish times of one producer are from the append times."""

    producer: str
    batches: int
    behind_s: float  # median of append time less publish time. Below 0: its clock is ahead
    spread_s: float  # between the largest and the smallest of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The newest messages of a log."""

    messages: int
    repetition: Repetition | None = None
    clocks: tuple[PublishClock, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    area: ClassVar = RuleArea.TOPIC
    settles_at_ms: ClassVar[int | None] = None  # its rules say themselves how long a history they need

    topic: str
    log: str
    partition: int | None
    now_ms: int
    production: Production
    producers: int
    departure: Departure | None  # of the last producer
    producer_seen: bool = True  # since the broker started
    refused: Mapping[str, Count] = field(default_factory=dict)  # batches by code
    refused_messages: Mapping[str, Count] = field(default_factory=dict)
    # Messages by reason, refused or only counted
    violations: Mapping[str, Count] = field(default_factory=dict)
    validation_policy: str | None = None
    schema_subject: str | None = None
    max_publish_rate: int = 0
    max_message_size: int = 0
    max_producers: int = 0
    sessions: tuple[int, ...] = ()  # numbers of producers in the window, at the looks at which they changed
    # Quotas that were waited for in the window → seconds ago
    slowed: Mapping[str, float] = field(default_factory=dict)
    # As `slowed`, for quotas that refused publishes
    refused_by: Mapping[str, float] = field(default_factory=dict)
    tail: Tail | None = None  # None: too few messages, or they are not in memory

    @property
    def impact(self) -> int:
        """The number of messages that came in or were refused in the window."""
        counts = (*self.refused_messages.values(), *self.violations.values())
        return self.production.messages + sum(one.in_window for one in counts)

    @property
    def subject(self) -> dict[str, object]:
        found: dict[str, object] = {"topic": self.topic}
        return found if self.partition is None else {**found, "partition": self.partition}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Pressure on the whole broker, over the window."""

    window_s: float
    syncs: int = 0  # of the journal
    slow_syncs: int = 0  # longer than half a second
    sync_p50_ms: float | None = None  # upper bound. None: there was none
    sync_p99_ms: float | None = None
    slow_waits: int = 0  # syncs that their helper process began more than half a second after the request
    wait_p50_ms: float | None = None  # upper bound
    wait_p99_ms: float | None = None
    opened: int = 0  # connections of clients
    open_now: int = 0
    busy: float = 0.0  # processors used: 1 is one core
    late_ms: float = 0.0  # typical delay of the loop
    bytes_in: int = 0
    busiest: str | None = None  # the log with most of these bytes
    busiest_bytes: int = 0
    others: int = 0  # other logs that grew


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A registered broker. `software`: its version, empty if it did not report one."""

    broker_id: str
    state: str
    software: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOverView:
    """Topics of a lost broker that wait for an heir. `why`: the reason for the delay, None without delay.

    `damaged`: a topic that waits because the copy of the broker's journal is damaged, None without one.
    """

    topics: int
    why: str | None
    damaged: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateStoreView:
    """A start without the object store where topics are stored in it.

    Attributes:
        topics: stored topics that acknowledge and show nothing new until the store answers.
        error: the last error of the store.
    """

    topics: int
    error: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyView:
    """The copy of a broker's journal in the object store.

    Attributes:
        behind_bytes: written to the journal and not copied. `behind_s` is the age of the oldest of them.
        error: the last error of the store, None since a success.
        fence: the error by which the broker learned that other brokers have taken its topics over.
        waiting: stored topics that have waited for the store since a start without it.
    """

    behind_s: float = 0.0
    behind_bytes: int = 0
    error: str | None = None
    fence: str | None = None
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The other brokers as one broker sees them."""

    members: tuple[MemberView, ...]
    leader: str | None
    leaderless_since_ms: int | None = None
    # Owners that are not registered → topics that wait
    absent: Mapping[str, int] = field(default_factory=dict)
    tried: Mapping[str, DialFacts] = field(default_factory=dict)  # the last attempts to reach those
    silent: Mapping[str, str] = field(default_factory=dict)  # registered, and did not answer → why
    moves: tuple[MoveFacts, ...] = ()
    failed_moves: tuple[FailedMoveFacts, ...] = ()
    draining_since_ms: int | None = None
    # When a topic of the drain last left, started to move, or reported progress
    drain_moved_ms: int | None = None
    left: int = 0  # topics that a drain still has to hand over
    takers: int = 0  # other brokers that take topics
    store_refused: str | None = None  # why the object store is not the cluster's
    balance: Assessment | None = None  # None: another broker judges, or none does
    # At the leader: lost brokers whose topics others take over
    taken_over: Mapping[str, TakenOverView] = field(default_factory=dict)
    copy: CopyView | None = None  # None: the journal is not copied


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """A link with topics that are not copied. `states`: state → how many."""

    link: str
    states: Mapping[str, int]
    topics: tuple[str, ...]
    why: str


class RefusedChanges(NamedTuple):
    """An hourly quota that refused changes of a principal."""

    principal: str
    quota: str  # with whose it is
    age_s: float  # since it refused one


@dataclass(frozen=True, slots=True, kw_only=True)
class BadObjectView:
    """An object of the cold tier that the catalog lists, and that is missing or damaged."""

    topic: str
    path: str
    start: int
    end: int
    state: str  # missing or damaged
    since_ms: int
    by_reader: bool  # a reader met it. Else a check in the background did
    ahead_of: tuple[str, ...]  # subscriptions that have not read it yet


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    area: ClassVar = RuleArea.BROKER
    settles_at_ms: ClassVar[int | None] = None

    broker_id: str
    now_ms: int
    memory_only: bool
    disk_free_bytes: int | None
    disk_total_bytes: int | None
    disk_guard_bytes: int | None
    disk_refuses: bool
    disk_filling: Filling | None  # None: not seen for long enough
    journal_error: str | None
    journal_error_since_ms: int | None
    store_error: str | None
    store_error_since_ms: int | None
    store_url: str | None
    tier_backlog_bytes: int
    tier_errors: Count
    tier_off: str | None  # why there is no cold tier
    late_store: LateStoreView | None = None  # of a lone broker
    quarantined: tuple[QuarantinedKey, ...] = ()
    # Deletions: call id → until when they had an undo
    given_up: Mapping[str, int] = field(default_factory=dict)
    clock: str | None = None  # sentence about the machine's clock, if it stepped recently
    clock_step_s: float = 0.0  # forward or back, the last one
    clock_steps: int = 0  # since the start
    clocks_apart: str | None = None  # sentence about the witness that disagrees most with the broker's clock
    clock_ahead_s: float = 0.0  # of that witness. Below 0: behind it
    pressure: Pressure = field(default_factory=lambda: Pressure(window_s=0.0))
    metadata_error: str | None = None  # why the metadata store, etcd or a file, takes no change
    metadata_full: bool = False
    metadata_since_ms: int | None = None
    cluster: ClusterView | None = None  # None: the broker is alone
    links: tuple[LinkView, ...] = ()
    mirror_gaps: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # log → offsets
    credentials: tuple[Credential, ...] = ()  # those that expire at some time
    refused_changes: tuple[RefusedChanges, ...] = ()  # in the window
    bad_objects: tuple[BadObjectView, ...] = ()
    objects_checked: int = 0  # since the start

    @property
    def impact(self) -> int:
        """Return 0: the broker is ranked before all subjects anyway."""
        return 0

    @property
    def subject(self) -> dict[str, object]:
        return {"broker_id": self.broker_id}


def ago_s(view: SubscriptionView | TopicView | BrokerView, then_ms: int | None) -> float | None:
    """Return the seconds from a moment to that of a view, at least 0. None for an unknown moment."""
    return None if then_ms is None else max(0, view.now_ms - then_ms) / 1000
