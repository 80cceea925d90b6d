"""A broker alone: registers, elects itself, and assigns the topics to itself, by the protocol of the cluster.

Its directory lock is its lease (`ttl_ms=None`): whoever holds the lock is the only one who can open the store, so
what other lives and other ids left there belongs to nobody and is taken over. Every start raises every topic's
epoch, so that nothing written by an earlier life can pass for the present owner's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from pydanube_core.facts import BrokerAddress
from pydanube_storage.metadata import Delete, MetadataStore, Write

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assigner, Assignment, OfficeView
from pydanube_broker.cluster.election import Election, ElectionState, Leadership
from pydanube_broker.cluster.ids import BrokerId, Epoch, TopicId
from pydanube_broker.cluster.membership import BrokerIdentity, MemberRecord, Membership, Registration
from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.cluster.topic_catalog import TopicCatalog

log = logging.getLogger("pydanube.cluster")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class LoneBroker:
    """`async with LoneBroker(store, broker_id=…, broker_url=…, admin_url=…, catalog=…) as lone`.

    Entering registers, takes office, loads the catalog, finishes what a crash left half-made, shows `check` the topics
    and whose they were, and assigns every topic to this broker in a new epoch. Leaving signs off. The store stays
    open: it belongs to the caller.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        broker_id: int,
        broker_url: str,
        admin_url: str,
        catalog: TopicCatalog,
        metrics_url: str | None = None,
        wall_ms: Callable[[], int] = _wall_ms,
        check: Callable[[Sequence[TopicRecord], Mapping[TopicId, Assignment]], None] = lambda *_: None,
    ) -> None:
        self.catalog = catalog
        self._check = check
        self._store = store
        self._identity = BrokerIdentity(
            broker_id=BrokerId(broker_id),
            broker_url=broker_url,
            admin_url=admin_url,
            metrics_url=metrics_url,
        )
        self._wall_ms = wall_ms
        self._stack = AsyncExitStack()
        self._assignments: dict[TopicId, Assignment] = {}
        self._membership: Membership
        self._election: Election
        self._assigner: Assigner

    @property
    def registration(self) -> Registration:
        return self._membership.registration

    @property
    def leadership(self) -> Leadership:
        """Return this broker's leadership. Raises `Conflict` when it has ended."""
        return self._election.leadership

    @property
    def assignments(self) -> Mapping[TopicId, Assignment]:
        """The topics that this broker owns."""
        return self._assignments

    def epoch(self, topic_id: TopicId) -> Epoch:
        """The epoch in which this broker owns the topic. `KeyError` if it was not assigned."""
        return self._assignments[topic_id].epoch

    def place(self, topic_id: TopicId) -> Assignment | None:
        """Who owns a topic; None while nobody does."""
        return self._assignments.get(topic_id)

    def address(self, broker_id: BrokerId) -> BrokerAddress | None:
        """Where a broker is; None of another one."""
        me = self._identity
        if broker_id != me.broker_id:
            return None
        return BrokerAddress(broker_id=str(me.broker_id), broker_url=me.broker_url, admin_url=me.admin_url)

    @property
    def members(self) -> Mapping[BrokerId, MemberRecord]:
        """Return the other registered brokers: none."""
        return {}

    def absent_owners(self) -> Mapping[BrokerId, int]:
        """How many topics wait for owners that are not registered now: none."""
        return {}

    def leads(self) -> bool:
        """Whether this broker leads; false only until it has won its election."""
        return self._election.state is ElectionState.LEADING

    def leader(self) -> BrokerAddress | None:
        """Who leads; None after the end."""
        return self.address(self._identity.broker_id) if self.leads() else None

    async def open(self) -> None:
        """Do nothing: nobody else assigns topics here."""

    async def assign(self, topics: Sequence[TopicRecord], *, here: bool = True) -> list[Assignment]:
        """Own these topics: each that has no assignment gets one in a new epoch, the others keep theirs.

        Returns the assignments in the order of `topics`, without those that were deleted meanwhile.
        """
        missing = [topic for topic in topics if topic.topic_id not in self._assignments]
        if missing:
            for topic_id, made in (await self._assign_all(missing, {})).items():
                former = self._assignments.get(topic_id)
                if former is None or former.epoch < made.epoch:  # two calls at once: the later one counts
                    self._assignments[topic_id] = made
        return [self._assignments[t.topic_id] for t in topics if t.topic_id in self._assignments]

    def forget(self, topic_id: TopicId) -> None:
        """Forget a deleted topic; the catalog deletes its assignment in the store."""
        self._assignments.pop(topic_id, None)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._membership = await stack.enter_async_context(
                Membership(self._store, self._identity, ttl_ms=None, wall_ms=self._wall_ms)
            )
            self._election = await stack.enter_async_context(
                Election(self._store, self._membership.registration)
            )
            assert self._election.state is ElectionState.LEADING, "nobody else can open the store"
            self._assigner = Assigner(
                self._store, leadership=self._election.leadership, aside=self.catalog.aside
            )
            stack.push_async_callback(self.catalog.aclose)
            await self._take_office()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *failure: Any) -> bool | None:
        return await self._stack.__aexit__(*failure)

    async def _take_office(self) -> None:
        await self.catalog.load()
        await self.catalog.resume()
        topics = self.catalog.index.topics()
        view = await self._assigner.take_stock(topics)
        self._check(topics, view.assignments)
        await self._clear(view)
        self._assignments = await self._assign_all(topics, view.assignments)
        log.info(
            "office_taken",
            extra={
                "incarnation": self.registration.incarnation,
                "topics": len(topics),
                "unassigned": len(view.unassigned),
                "former_owners": len(view.absent_owner),
                "leftover": len(view.leftover),
            },
        )

    async def _clear(self, view: OfficeView) -> None:
        """Delete what former brokers left: members of other ids, and assignments of deleted topics."""
        own = self._identity.broker_id
        writes: list[Write] = [Delete(keys.member_key(b)) for b in view.members if b != own]
        writes += [
            Delete(keys.assignment_key(topic_id))
            for topic_id in view.leftover
            if not self.catalog.kept(topic_id)
        ]
        for start in range(0, len(writes), 99):
            await self._store.transact(writes[start : start + 99], guards=[self.leadership.guard])

    async def _assign_all(
        self, topics: Sequence[TopicRecord], current: Mapping[TopicId, Assignment]
    ) -> dict[TopicId, Assignment]:
        return await self._assigner.assign_all(
            topics,
            self._identity.broker_id,
            incarnation=self.registration.incarnation,
            current=current,
            take_over=True,
        )
