"""This broker's view of the other brokers, for the rules of diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydanube_core.balance import Assessment
from pydanube_core.diagnosis.views import ClusterView, CopyView, LateStoreView, MemberView, TakenOverView
from pydanube_core.errors import Fenced
from pydanube_core.facts import MoveFacts

from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.membership import BrokerState
from pydanube_broker.relay.gone_dials import GoneDials
from pydanube_broker.serving.registry import Registry
from pydanube_broker.status.health import Health
from pydanube_broker.tier.journal_chain import JournalChain
from pydanube_broker.tier.tier import Tier


@dataclass(slots=True)
class BalanceResult:
    """The load manager's last result: the balance, and brokers that did not report. Empty if another broker leads."""

    balance: Assessment | None = None
    silent: Mapping[str, str] = field(default_factory=dict)


class ClusterViewing:
    """Makes the view of the cluster, and records since when each condition holds. Single user: the loop."""

    def __init__(
        self,
        registry: Registry,
        health: Health,
        tier: Tier,
        chain: JournalChain,
        balance: BalanceResult,
        dials: GoneDials | None = None,
    ) -> None:
        self._registry = registry
        self._health = health
        self._tier = tier
        self._chain = chain
        self._balance = balance
        self._dials = dials  # None for a lone broker
        self._since: dict[str, int] = {}
        self._drain: tuple[int, tuple[MoveFacts, ...]] | None = None  # topics and moves at the last progress
        self._drain_moved_ms = 0

    def view(self, now_ms: int) -> ClusterView | None:
        """Return the view of the cluster. None for a lone broker."""
        ownership = self._registry.ownership
        coordinator = ownership.coordinator
        if not ownership.several:
            return None
        error, leader = self._health.metadata_away, coordinator.leader()
        me = coordinator.members.get(BrokerId(int(ownership.me.broker_id)))
        draining = me is not None and me.state is BrokerState.DRAINING
        hold = self._tier.hold
        refused = not hold.held and hold.code == "TIER_NOT_SHARED" and hold.reason is not None
        absent = (
            {broker: topics for broker, topics in coordinator.absent_owners().items() if topics}
            if error is None
            else {}
        )
        dials = {each: self._dials.last(each) for each in absent} if self._dials is not None else {}
        return ClusterView(
            members=tuple(
                MemberView(broker_id=each.broker_id, state=each.state.value, software=each.software)
                for each in coordinator.members.values()
            ),
            leader=None if leader is None else leader.broker_id,
            leaderless_since_ms=self._begun("leaderless", now_ms, holds=leader is None),
            absent={str(broker): topics for broker, topics in absent.items()},
            tried={str(broker): dial for broker, dial in dials.items() if dial is not None},
            silent={  # a broker that is not registered any more is `absent`
                each: why
                for each, why in self._balance.silent.items()
                if BrokerId(int(each)) in coordinator.members
            },
            moves=tuple(ownership.moves()),
            failed_moves=tuple(ownership.failed_moves()),
            draining_since_ms=self._begun("draining", now_ms, holds=draining),
            drain_moved_ms=self._drain_moved(now_ms) if draining else None,
            left=self._registry.count if draining else 0,
            takers=len([broker for broker in coordinator.alive() if str(broker) != ownership.me.broker_id]),
            store_refused=hold.reason.message if refused and hold.reason is not None else None,
            balance=self._balance.balance,
            taken_over={
                str(broker): TakenOverView(topics=each.topics, why=each.why, damaged=each.damaged)
                for broker, each in coordinator.taken_over.items()
            },
            copy=self._copy(),
        )

    def _copy(self) -> CopyView | None:
        chain, error = self._chain, self._chain.error
        if isinstance(error, Fenced):
            return CopyView(fence=error.message)
        found = chain.statistics()
        if not chain.is_wanted:
            return None
        if found is None:
            return CopyView(error=None if error is None else error.message, waiting=self._late_topics())
        return CopyView(behind_s=found.behind_s, behind_bytes=found.behind_bytes, error=found.last_error)

    def late_store(self) -> LateStoreView | None:
        """Return how a lone broker waits for the object store since its start, None if it does not."""
        chain, error = self._chain, self._chain.error
        if self._registry.ownership.several or not chain.is_late or error is None:
            return None
        return LateStoreView(topics=self._late_topics(), error=error.message, since_ms=chain.late_since_ms)

    def _late_topics(self) -> int:
        return sum(topic.awaits_store for topic in self._registry.topics) if self._chain.is_late else 0

    def _drain_moved(self, now_ms: int) -> int:
        """Return when the drain last made progress: the number of topics or a move changed."""
        now = (self._registry.count, tuple(self._registry.ownership.moves()))
        if now != self._drain:
            self._drain, self._drain_moved_ms = now, now_ms
        return self._drain_moved_ms

    def _begun(self, what: str, now_ms: int, *, holds: bool) -> int | None:
        if holds:
            return self._since.setdefault(what, now_ms)
        self._since.pop(what, None)
        return None
