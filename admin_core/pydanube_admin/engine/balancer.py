"""The load manager: collects the load of every broker, has `assess` judge it, and proposes or makes moves.

Every broker can do this on request. The leader does it each interval (`run`): in the mode `suggest` it keeps
the plan for `cluster.balance` and for the alert, in the mode `act` it carries the plan out as
`cluster.rebalance`. The pure class `Rhythm` keeps moves from chasing each other. `pydanube_core.balance`
decides which topics go where.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

import anyio
from pydanube_core.balance import (
    Assessment,
    BrokerLoad,
    LoadReport,
    Policy,
    Resource,
    Snapshot,
    TopicLoad,
    assess,
)
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError
from pydanube_core.facts import MoveFacts

from pydanube_admin.engine.task_records import broker_of

_log = logging.getLogger("pydanube.balance")

OFF: Final = "off"
SUGGEST: Final = "suggest"
ACT: Final = "act"
SETTLING: Final = 2  # intervals after a move in which rates still include the time before it
# of a broker's traffic: smaller changes are ignored, because rates fluctuate by some percent anyway
_TELLING: Final = 0.1
AGAIN_S: Final = 2.0  # between two queries of brokers that did not answer
KEPT: Final = 5  # intervals for which every caller gets the same suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOptions:
    """`[balance]` of the settings. Times are in seconds, `floor` in bytes per second."""

    mode: str = SUGGEST
    interval_s: float = 60.0
    cooldown_s: float = 600.0
    max_moves: int = 20
    floor: float = 1 << 20

    @property
    def policy(self) -> Policy:
        """The thresholds by which `assess` judges, from these options."""
        floors = {Resource.CPU: 0.05, Resource.NETWORK_IN: self.floor, Resource.NETWORK_OUT: self.floor}
        return Policy(max_moves=self.max_moves, floors=floors)


class Rhythm:
    """When to move again: once rates show the last moves' effect, and a topic only after its cool-down.

    Pure. Times are milliseconds of one clock, which may step. After a step back, waits are counted from the
    present time, so no wait gets longer than it is from then on. Memory is bounded by the moves of one
    cool-down.
    """

    def __init__(self, options: BalanceOptions) -> None:
        self._options = options
        self._moved: dict[str, int] = {}
        self._settled_ms = 0

    def moved(self, topics: Iterable[str], now_ms: int) -> None:
        """Note that these topics are moved now."""
        self._moved |= dict.fromkeys(topics, now_ms)
        self._settled_ms = now_ms + self._settling_ms

    @property
    def _settling_ms(self) -> int:
        return int(SETTLING * self._options.interval_s * 1000)

    def cooling(self, topic: str, now_ms: int) -> bool:
        """Return whether a topic moved recently."""
        at_ms = self._moved.get(topic)
        if at_ms is not None and now_ms < at_ms:
            at_ms = self._moved[topic] = now_ms
        if at_ms is None or now_ms - at_ms < self._options.cooldown_s * 1000:
            return at_ms is not None
        del self._moved[topic]
        return False

    def waits(self, now_ms: int) -> float | None:
        """Return the seconds until the rates show the last moves' effect, or None if they do."""
        self._settled_ms = min(self._settled_ms, now_ms + self._settling_ms)
        return (self._settled_ms - now_ms) / 1000 if now_ms < self._settled_ms else None


class Evidence:
    """Finds brokers whose processors stay busy when topics leave, because another load takes that time.

    Such loads are reports, queries or another process. A topic's processor time is its broker's, divided in
    proportion to bytes. Once a broker has a tenth less traffic than before topics began to leave, its
    processors must be clearly less busy, too. If they are not, its topics count as using no processor time
    until the broker is no busier than the mean. Pure.
    """

    def __init__(self) -> None:
        # By broker: processors and bytes a second when topics began to leave
        self._before: dict[str, tuple[float, float]] = {}
        self._not_by_topics: set[str] = set()

    def leave(self, brokers: Iterable[str], snapshot: Snapshot) -> None:
        """Note that topics leave these brokers, which had these loads."""
        loads = {broker.broker_id: broker.load for broker in snapshot.brokers}
        for broker in brokers:
            self._before.setdefault(broker, _processors_and_bytes(loads[broker]))

    def look(self, snapshot: Snapshot) -> None:
        """Compare loads with those before the moves. Call it when rates show the effect of the last moves."""
        asked = [broker for broker in snapshot.brokers if Resource.CPU in broker.load]
        mean = sum(broker.load[Resource.CPU] for broker in asked) / max(1, len(asked))
        for broker in asked:
            cpu, traffic = _processors_and_bytes(broker.load)
            if cpu <= mean:
                self._before.pop(broker.broker_id, None)
                self._not_by_topics.discard(broker.broker_id)
                continue
            cpu_then, traffic_then = self._before.get(broker.broker_id, (0.0, 0.0))
            less_traffic = traffic_then - traffic
            if not cpu_then or less_traffic < _TELLING * traffic_then:
                continue
            del self._before[broker.broker_id]
            if (cpu_then - cpu) / cpu_then < less_traffic / traffic_then / 2:
                self._not_by_topics.add(broker.broker_id)

    def applied(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot without the processor time that topics do not cause."""
        if not self._not_by_topics:
            return snapshot
        topics = [
            replace(topic, load={**topic.load, Resource.CPU: 0.0})
            if topic.broker_id in self._not_by_topics
            else topic
            for topic in snapshot.topics
        ]
        return replace(snapshot, topics=topics)


def _processors_and_bytes(load: Mapping[Resource, float]) -> tuple[float, float]:
    traffic = load.get(Resource.NETWORK_IN, 0.0) + load.get(Resource.NETWORK_OUT, 0.0)
    return load.get(Resource.CPU, 0.0), traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One assessment, and the snapshot that it judges."""

    at_ms: int
    snapshot: Snapshot
    assessment: Assessment
    under_way: Sequence[MoveFacts]
    silent: Mapping[str, str]  # brokers that did not answer, and why
    waits_s: float | None  # rates still include the time before the last moves


def snapshot_of(
    reports: Sequence[LoadReport],
    silent: Iterable[str],
    under_way: Sequence[MoveFacts],
    rhythm: Rhythm,
    *,
    interval_s: float,
    now_ms: int,
) -> Snapshot:
    """Make a snapshot. Nothing moves to or from `silent` brokers: registered, but without an answer. Pure."""
    late_s = 2 * interval_s
    fresh = [report for report in reports if report.broker.age_s <= late_s]
    moving = {move.topic for move in under_way}
    topics: dict[str, TopicLoad] = {}  # two brokers may report a topic that moves during the collection
    for report in fresh:
        # a drain empties a broker without the balancer
        for topic in report.topics if report.broker.accepts else ():
            cooling = topic.cooling_down or topic.topic in moving or rhythm.cooling(topic.topic, now_ms)
            topics[topic.topic] = replace(topic, cooling_down=cooling)
    brokers = [report.broker for report in fresh]
    brokers += [replace(report.broker, accepts=False) for report in reports if report.broker.age_s > late_s]
    capacity = brokers[0].capacity if brokers else {}
    brokers += [
        BrokerLoad(broker_id=broker, load={}, capacity=capacity, age_s=2 * late_s, accepts=False)
        for broker in silent
    ]
    return Snapshot(epoch=0, brokers=brokers, topics=list(topics.values()), interval_s=interval_s)


class Asks(Protocol):
    """Notes which brokers did not answer (`peers.noting`)."""

    async def __call__(
        self, work: Callable[[], Awaitable[Sequence[LoadReport]]]
    ) -> tuple[Sequence[LoadReport], dict[str, str]]: ...


class Balancer:
    """See the module. Single user: the loop."""

    def __init__(
        self, port: ClusterPort, options: BalanceOptions, noting: Asks, *, now_ms: Callable[[], int]
    ) -> None:
        self.options = options
        self._port = port
        self._noting = noting
        self._now_ms = now_ms
        self._rhythm = Rhythm(options)
        self._evidence = Evidence()
        self._kept: Judged | None = None
        self._noted: tuple[Assessment | None, Mapping[str, str]] = None, {}

    async def judge(self) -> Judged:
        """Judge how evenly the brokers are loaded now, and which moves would help."""
        reports, silent = await self._noting(self._port.loads)
        under_way = await self._port.moves()
        now = self._now_ms()
        snapshot = snapshot_of(
            reports, silent, under_way, self._rhythm, interval_s=self.options.interval_s, now_ms=now
        )
        waits_s = self._rhythm.waits(now)
        if waits_s is None:
            self._evidence.look(snapshot)
        snapshot = self._evidence.applied(snapshot)
        policy = self.options.policy
        budget = max(0, policy.max_moves - len(under_way))
        found = assess(snapshot, replace(policy, max_moves=budget))
        if waits_s is not None:
            found = replace(found, moves=())
        return Judged(
            at_ms=now,
            snapshot=snapshot,
            assessment=found,
            under_way=under_way,
            silent=silent,
            waits_s=waits_s,
        )

    async def suggestion(self) -> Judged:
        """Return the suggested plan: the same one for a few intervals, as long as it can be carried out."""
        kept = self._kept
        if kept is not None and kept.assessment.moves and await self._stands(kept):
            return kept
        self._kept = await self.judge()
        return self._kept

    async def _stands(self, kept: Judged) -> bool:
        if abs(self._now_ms() - kept.at_ms) > KEPT * self.options.interval_s * 1000:
            return False
        takers = set(await self._port.takers())
        for move in kept.assessment.moves:
            owners = await self._port.owners(move.topic)
            at = [None if owner is None else owner.broker_id for owner in owners]
            if at != [move.source] or move.target not in takers:
                return False
        return True

    def moved(self, topics: Iterable[str]) -> None:
        """Note that the suggestion was carried out."""
        moved = set(topics)
        if self._kept is not None:
            left = {move.source for move in self._kept.assessment.moves if move.topic in moved}
            self._evidence.leave(left, self._kept.snapshot)
        self._kept = None
        self._rhythm.moved(moved, self._now_ms())

    def _note(self, found: Assessment | None, silent: Mapping[str, str]) -> None:
        self._noted = found, silent
        self._port.note_balance(found, silent)

    async def _interval(self) -> None:
        """Wait for an interval. Query brokers that did not answer again, so that no finding outlives its cause."""
        with anyio.move_on_after(self.options.interval_s):
            found, silent = self._noted
            while silent:
                await anyio.sleep(AGAIN_S)
                with suppress(ClusterError):
                    _, still = await self._noting(self._port.loads)
                    silent = {broker: why for broker, why in silent.items() if broker in still}
                    self._note(found, silent)
            await anyio.sleep_forever()

    async def run(self, rebalance: Callable[[], Awaitable[None]]) -> None:
        """Judge at each interval while this broker leads, until cancelled. `rebalance` carries a suggestion out."""
        if self.options.mode == OFF:
            return
        own = broker_of(self._port.life)
        while True:
            await self._interval()
            try:
                leader = await self._port.leader()
                if leader is None or leader.broker_id != own:
                    self._note(None, {})
                    continue
                found = await self.suggestion()
                self._note(found.assessment, found.silent)
                if self.options.mode == ACT and found.assessment.moves:
                    await rebalance()
            except ClusterError as error:
                _log.warning("balance_not_judged", extra={"code": error.code})
