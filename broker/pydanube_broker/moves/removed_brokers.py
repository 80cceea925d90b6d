"""The leader's part in a removal: take the removed broker's topics away from it, and have others open them.

The leader decides at which offset a topic goes on, and seals it; its next owner rebuilds it from the store
(`topics.rebuilt_state`). Every topic is one guarded transaction: two leaders, or one that is killed in between, do each
of them once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import anyio
from pydanube_core.errors import ClusterError, InvalidArgument, LastBroker, StoreUnavailable
from pydanube_core.facts import RemovalFacts, TopicLeft
from pydanube_storage.catalog import CatalogHead, ObjectCatalog
from pydanube_storage.metadata import GuardFailed, MetadataStore
from pydanube_storage.objects.names import topic_folder

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.cluster.office import Office
from pydanube_broker.cluster.records import DispatchStrategy
from pydanube_broker.cluster.removal import is_registered, remove, removed_among
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.moves.move import Witnesses, take_away, transaction
from pydanube_broker.tier.kept_states import KeptStates
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.rebuilt_state import end_of_rebuilt, rebuilt_state, state_in_the_store
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.cluster")

_AT_ONCE: Final = 200  # topics of a broker between two looks


class RemovedBrokers:
    """Reassigns topics of removed brokers; `look` does a part of it while this broker leads."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: TopicCatalog,
        kept: KeptStates,
        cluster: str,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._kept = kept
        self._cluster = cluster
        self._objects = ObjectCatalog(store, wall_ms=now_ms)
        # Of brokers whose topics are being taken away
        self._said: dict[BrokerId, Mapping[int, LogState]] = {}

    async def look(self, office: Office) -> None:
        """Reassign some topics of removed brokers; the next call continues with the rest.

        Raises `MetadataUnavailable`.
        """
        lost = office.lost_owners()
        if not lost or not office.alive():
            self._said.clear()
            return
        for broker_id in await removed_among(self._store, lost):
            places = [each for each in office.owned_by(broker_id) if self._is_to_go(each)][:_AT_ONCE]
            if not places:
                continue
            if broker_id not in self._said:
                try:
                    self._said[broker_id], _ = await self._kept.read(broker_id)
                except StoreUnavailable as error:  # moves of other brokers do not wait for it
                    facts = {"broker_id": str(broker_id), "error": error.message}
                    log.warning("topics_not_taken_away", extra=facts)
                    continue
            said = self._said[broker_id]
            targets = office.spread([each.topic_id for each in places])
            async with anyio.create_task_group() as group:
                for place in places:
                    if place.topic_id in targets:
                        group.start_soon(self._take, place.topic_id, broker_id, said, targets[place.topic_id])

    async def forecast(self, office: Office, broker_id: BrokerId) -> RemovalFacts:
        """Return what a removal of the broker would affect. Raises `Conflict`, `InvalidArgument`, `LastBroker`, `StoreUnavailable`."""
        if broker_id in office.members:
            raise is_registered(broker_id)
        if await self._store.get(keys.incarnation_key(broker_id)) is None:
            raise InvalidArgument(
                f"there is no broker {broker_id} in this cluster, and never was",
                field="broker_id",
                value=str(broker_id),
            )
        if not office.alive():
            raise LastBroker(
                f"the topics of broker {broker_id} have nowhere to go: no broker takes any", field="broker_id"
            )
        places = [each for each in office.owned_by(broker_id) if self._is_to_go(each)]
        said, said_ms = await self._kept.read(broker_id)
        heads = await self._objects.heads()
        return RemovalFacts(
            broker_id=str(broker_id),
            is_removed=bool(await removed_among(self._store, [broker_id])),
            said_at_ms=said_ms,
            topics=tuple(
                self._left(each, heads.get(each.topic_id), said.get(each.topic_id)) for each in places
            ),
        )

    async def remove(self, broker_id: BrokerId) -> None:
        """Remove a broker: the leader gives its topics to others. Idempotent. Raises `Conflict`, `StoreUnavailable`."""
        if await remove(self._store, broker_id, at_ms=now_ms()):
            log.warning("broker_removed", extra={"broker_id": str(broker_id)})

    def _left(self, place: Assignment, head: CatalogHead | None, said: LogState | None) -> TopicLeft:
        stored = 0 if head is None else head.tiered_offset
        known = None if said is None else max(stored, said.next_offset)
        return TopicLeft(
            topic=str(place.topic),
            is_deleted=self._catalog.index.topic_by_id(place.topic_id) is None,
            subscriptions=len(self._starts(place.topic_id)),
            stored_to=stored,
            known_to=known,
        )

    def _is_to_go(self, place: Assignment) -> bool:
        """Whether a removed broker's topic has to be taken over here.

        Sealed or assigned topics are not: the leader gives them to others, as in any move. Nor are non-reliable ones.
        """
        if place.stage not in (Stage.SERVING, Stage.MOVING):
            return False
        record = self._catalog.index.topic_by_id(place.topic_id) or self._catalog.restorable.record(
            place.topic_id
        )
        return record is not None and record.dispatch_strategy is not DispatchStrategy.NON_RELIABLE

    async def _take(
        self, topic_id: TopicId, owner: BrokerId, said: Mapping[int, LogState], target: BrokerId
    ) -> None:
        key = keys.assignment_key(topic_id)
        try:
            item = await self._store.get(key)
            if item is None:
                return
            now = Assignment.of(key, item.value)
            if now.broker_id != owner or not self._is_to_go(now):
                return
            head = await self._objects.head(topic_id)
            found = None if head is None else head.head
            state, begin = state_in_the_store(topic_id, said.get(topic_id), found, _copied_to(now))
            end = end_of_rebuilt(state.next_offset, begin, 0 if found is None else found.resumes_at)
            change = take_away(now, item.mod_revision, target, at_ms=now_ms())
            name = now.topic
            folder = topic_folder(self._cluster, name.namespace, name.name, topic_id)
            witnesses = Witnesses(
                head=head,
                folder=folder,
                start_offset=state.start_offset,
                resumes_at=end,
            )
            writes, guards = transaction(change, witnesses)
            await self._store.transact(writes, guards=guards)
        except GuardFailed:
            return  # another was quicker, or the topic was deleted: the next look shows it
        except ClusterError as error:
            log.warning("topic_not_taken_away", extra={"topic_id": topic_id, "error": error.message})
        else:
            log.warning(
                "topic_taken_away",
                extra={
                    "topic": str(now.topic),
                    "broker_id": str(owner),
                    "known_to": begin,
                    "goes_on_at": end,
                },
            )

    async def rebuild(self, now: Assignment, copied_to: int) -> LogState:
        """Return the state with which this broker begins a topic of a removed owner, assigned to it.

        Args:
            copied_to: the end of what fragments had behind the objects.

        Raises `StoreUnavailable`, `MetadataUnavailable`.
        """
        assert now.move is not None
        said, _ = await self._kept.read(BrokerId(int(now.move.source)))
        head = await self._objects.head(now.topic_id)
        assert head is not None, "the seal has written it"
        state, begin = state_in_the_store(now.topic_id, said.get(now.topic_id), head.head, copied_to)
        end = head.head.resumes_at  # as the leader has decided: another owner that rebuilds it has the same
        return rebuilt_state(state, begin=begin, end=end, starts=self._starts(now.topic_id))

    def _starts(self, topic_id: TopicId) -> dict[int, int]:
        """Return subscription id → start offset, for existing and restorable subscriptions."""
        restorable = self._catalog.restorable.subscriptions.items()
        return {
            **{
                each.subscription_id: each.start_offset
                for each in self._catalog.index.subscriptions(topic_id)
            },
            **{number: one.spec.start_offset for number, one in restorable if one.topic_id == topic_id},
        }


def _copied_to(now: Assignment) -> int:
    return now.offered[-1].end_offset if now.offered else 0
