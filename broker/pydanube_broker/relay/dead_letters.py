"""Copies of messages for topics that other brokers own: the owner receives and stores dead letters and replays.

`danube.relay.Letters/Append`, from broker to broker. The request is the length of a JSON object (four bytes,
big-endian), the object in UTF-8 (`topic`, and `subscription_id`, `generation`, `ranges` that identify the originals),
and the batch, as producers send it. The answer is sent once the batch is on stable storage. A dead letter whose answer
was lost is sent again, and not stored again (`LocalTarget.take`). The request of a replay has `topic` alone, and its
answer is the first copy's offset.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.batch import read_producer_part
from pydanube_core.errors import (
    ClusterError,
    InvalidArgument,
    NoOwner,
    NotOwner,
    TopicNotFound,
)
from pydanube_core.grpc_wire import frame
from pydanube_core.names import TopicName

from pydanube_broker.cluster.records import DispatchStrategy, Durability, TopicRecord
from pydanube_broker.delivery.dead_letter_publisher import Done, LocalTarget, Originals, Target
from pydanube_broker.outcome import outcome_of
from pydanube_broker.relay.membership import not_a_member
from pydanube_broker.relay.unary_call import UnaryCall, ask
from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_broker.rpc.routing import RELAYED
from pydanube_broker.serving.registry import Registry
from pydanube_broker.subscription.ranges import check_ranges, normalise, total
from pydanube_broker.topics.replay import append_copies

if TYPE_CHECKING:
    from pydanube_broker.relay.relay import Relay

log = logging.getLogger("pydanube.cluster")

APPEND: Final = "/danube.relay.Letters/Append"
_LENGTH: Final = 4
_OFFSET: Final = 8
_ON_ITS_WAY_S: Final = 5.0  # how long a topic may have no owner, or another one than recorded here
_AGAIN_S: Final = 0.1


class RelayedDeadLetters:
    """Sends and receives such copies. Single user: the loop.

    Args:
        relay: None for a lone broker.
    """

    def __init__(self, registry: Registry, relay: Relay | None) -> None:
        self._registry = registry
        self._relay = relay

    async def targets(self, name: TopicName, stored: bool) -> Sequence[Target]:
        """Return the concrete topics of a name, in order.

        Creates the topic here if needed, regardless of `topics.auto_create`.

        Args:
            stored: the topic becomes one with durability stored, which takes its owner some time.

        Raises `ClusterError`: the topic could not be created.
        """
        registry = self._registry
        if stored:
            await self._store(name)
        if self._relay is None:
            found = registry.parts(name)[1]
        else:
            index = registry.catalog.index
            record = index.find_topic(name)
            records = [record] if record is not None else list(index.partitions(name))
            if records:
                return [self._target(each) for each in records]
            found = ()
        found = found or await registry.create(
            name,
            partitions=0,
            dispatch_strategy="reliable",
            durability=Durability.STORED.value if stored else None,
            here=True,
        )
        return [LocalTarget(topic) for topic in found] or [
            self._target(record) for record in [registry.catalog.index.find_topic(name)] if record is not None
        ]

    async def _store(self, name: TopicName) -> None:
        """Raise the durability of an existing topic to stored."""
        registry = self._registry
        known = registry.catalog.index.whole(name)
        if known is None or known.spec.settings.durability is not Durability.FSYNCED:
            return
        await registry.check_stored()
        await registry.catalog.update_topic(name, durability=Durability.STORED)
        for part in registry.parts(name)[1]:
            registry.policies.apply(part)
            registry.ownership.on_level(part)
        log.warning("dead_letter_topic_is_stored_now", extra={"topic": str(name)})

    def _target(self, record: TopicRecord) -> Target:
        topic = self._registry.find(record.topic)
        if topic is not None:
            return LocalTarget(topic)
        assert self._relay is not None
        return _RemoteTarget(self._registry, self._relay, record)

    async def append(self, data: bytes) -> bytes:
        """Append a batch that another broker sent, at the owner.

        Raises:
            PermissionDenied: the caller does not prove that it is a broker of this cluster.
            NotOwner, NoOwner: the topic is not here. InvalidArgument, and the errors of appending.
        """
        shown = dict(COLD_CALL.caller.metadata).get(RELAYED.decode())
        if self._relay is None or self._relay.membership is None or not isinstance(shown, str):
            raise not_a_member()
        self._relay.membership.check(shown.encode())
        end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
        batch = data[end:]
        try:
            said = json.loads(data[_LENGTH:end])
            name = TopicName.parse(said["topic"])
            if len(said) == 1:
                committed = await append_copies(self._registry.known(name), batch)
                return (await committed).to_bytes(_OFFSET)
            ranges = [(int(start), int(end)) for start, end in said["ranges"]]
            originals = Originals(int(said["subscription_id"]), int(said["generation"]), ranges)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgument("the bytes are no copies for a topic", method=APPEND) from error
        topic = self._registry.known(name)
        check_ranges(ranges)
        if normalise(ranges) != ranges or read_producer_part(batch).count != total(ranges):
            raise InvalidArgument(
                "these are not the originals of the copies", field="ranges", value=ranges[:8]
            )
        await outcome_of(lambda done: LocalTarget(topic).take(batch, originals, done))
        return b""

    async def begin_copies(self, name: TopicName, batch: bytes) -> asyncio.Future[int]:
        """Append copies to a concrete topic. The future gives the first copy's offset once they are on stable storage.

        If another broker owns the topic, they are stored on return, so that batches stay in order. A topic that is
        moving, or that its owner does not know yet, is waited for, up to `_ON_ITS_WAY_S`.

        Raises:
            NotOwner, NoOwner: the topic is still moving, and nothing was appended. Unavailable, and the errors of
                appending.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _ON_ITS_WAY_S
        while True:
            try:
                if (topic := self._registry.find(name)) is not None:
                    return await append_copies(topic, batch)
                committed = loop.create_future()
                committed.set_result(await self._append_elsewhere(name, batch))
                return committed
            except (NotOwner, NoOwner, TopicNotFound) as error:
                # A new owner may learn later than this broker that the topic was created.
                known = self._registry.catalog.index.find_topic(name) is not None
                if loop.time() > deadline_s or (isinstance(error, TopicNotFound) and not known):
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def _append_elsewhere(self, name: TopicName, batch: bytes) -> int:
        registry = self._registry
        record = registry.catalog.index.find_topic(name)
        owner = None if record is None else registry.ownership.owner(record.topic_id)
        if owner is None or not owner.broker_url or self._relay is None:
            raise registry.not_found(name)
        url, request = owner.broker_url, _request({"topic": str(name)}, batch)
        answer = await ask(self._relay.links, self._relay.make_head(url, APPEND), url, request)
        return int.from_bytes(answer)


class _RemoteTarget:
    """A topic of another broker."""

    def __init__(self, registry: Registry, relay: Relay, record: TopicRecord) -> None:
        self._registry = registry
        self._relay = relay
        self._record = record
        self.name = record.name
        self.stores = record.dispatch_strategy is not DispatchStrategy.NON_RELIABLE

    @property
    def in_store(self) -> bool:
        place = self._registry.ownership.coordinator.place(self._record.topic_id)
        return place is not None and place.stored

    def take(self, data: bytes, originals: Originals, done: Done) -> None:
        owner = self._registry.ownership.owner(self._record.topic_id)
        if owner is None or not owner.broker_url:
            raise self._registry.ownership.elsewhere(self._record)
        url, request = owner.broker_url, _request({"topic": self.name, **originals._asdict()}, data)

        def answered(outcome: bytes | ClusterError) -> None:
            done(outcome if isinstance(outcome, ClusterError) else None)

        self._relay.links.ask(self._relay.make_head(url, APPEND), frame(request), UnaryCall(url, answered))


def _request(said: Mapping[str, Any], batch: bytes) -> bytes:
    head = json.dumps(said).encode()
    return len(head).to_bytes(_LENGTH, "big") + head + batch
