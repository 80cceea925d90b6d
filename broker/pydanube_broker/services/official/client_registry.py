"""The producers and consumers behind every assigned id, stored in the metadata store.

`ReceiveMessages` and health checks carry only an id, and some clients keep using their old id forever after a restart
of the broker (docs/research/data-plane.md#105-recipes). So the names behind an id are stored when it is assigned, and
read at the start. A record is deleted with its topic or subscription. If there are too many names, unused ones are
forgotten, and their clients must create or subscribe again.

Official clients have no connection to observe. A client counts as alive if it has called within the last 15 s (health
checks come every 5 s).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from pydanube_core.errors import ClusterError, LimitReached
from pydanube_storage.metadata import Delete, KeyValue, MetadataStore, Put, Write, read_all

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.records import JsonRecord, Quarantine, Table
from pydanube_broker.services.official.discovery import ForeignIds
from pydanube_broker.services.official.ids import consumer_id, producer_id
from pydanube_broker.services.official.known_clients import (
    AttachedStream,
    ConsumerRecord,
    KnownConsumer,
    KnownProducer,
    ProducerRecord,
)
from pydanube_broker.services.official.placeholder import RESTART_S, keep_place
from pydanube_broker.tenants.quotas import Share
from pydanube_broker.topics.gate import AccessMode
from pydanube_broker.topics.topic import Topic

log = logging.getLogger("pydanube.official")

MAX_NAMES: Final = 4096  # producers per topic, consumers per subscription
MAX_BYTES: Final = 128 << 20  # memory of all names
LOOKED_AT: Final = 1024  # maximum names examined to find one that can be forgotten
_WRITES: Final = 100  # maximum per transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    """A client's record as stored, with the topic and the number of its key."""

    topic_id: TopicId
    number: int
    record: ProducerRecord | ConsumerRecord


def _client_of(item: KeyValue) -> _Client:
    topic_id, kind = item.key.split("/")[2:4]
    record: type[ProducerRecord | ConsumerRecord] = ProducerRecord if kind == "p" else ConsumerRecord
    return _Client(
        topic_id=TopicId(int(topic_id)),
        number=keys.number_in_key(item.key),
        record=record.from_json(item.value, key=item.key),
    )


class ClientRegistry:
    """Producers and consumers by id. Single user: the loop."""

    def __init__(self, store: MetadataStore, foreign_ids: ForeignIds) -> None:
        self._store = store
        self._quarantine = Quarantine()
        self.foreign_ids = foreign_ids  # for ids of other brokers
        self.producers: dict[int, KnownProducer] = {}
        self.consumers: dict[int, KnownConsumer] = {}
        self.held_bytes = 0  # approximate, of both
        #: streams whose topic is gone, by consumer id. They end after the consumer's health check returned CLOSE
        self.closing: dict[int, AttachedStream] = {}
        # least recently created or subscribed first
        self._producers_of: dict[int, OrderedDict[int, KnownProducer]] = {}
        self._consumers_of: dict[tuple[int, str], OrderedDict[int, KnownConsumer]] = {}

    async def load(self, topics: Sequence[Topic], catalog: TopicCatalog) -> None:
        """Read the stored records, and delete those of topics that are gone."""
        self._quarantine = catalog.quarantine
        by_id = {topic.topic_id: topic for topic in topics}
        table = Table(keys.CLIENTS, _client_of)
        stale: list[str] = []
        for item in (await read_all(self._store, keys.CLIENTS))[0]:
            topic_id = TopicId(int(item.key.split("/")[2]))
            if topic_id in by_id:
                table.put(item, self._quarantine)
            elif catalog.index.topic_by_id(topic_id) is None and not catalog.restorable.keeps_data(topic_id):
                stale.append(item.key)  # otherwise it belongs to another broker's topic
        for client in table:
            self._put(by_id[client.topic_id], client)
        for start in range(0, len(stale), _WRITES):
            await self._store.transact([Delete(key) for key in stale[start : start + _WRITES]])

    async def read(self, record: TopicRecord) -> Callable[[Topic], None]:
        """Read the clients of a topic that will be served. Call the result to add them.

        Raises `StoreUnavailable`.
        """
        table = Table(keys.CLIENTS, _client_of)
        await table.load(self._store, self._quarantine, part=keys.clients_range(record.topic_id))

        def add_clients(topic: Topic) -> None:
            for client in table:
                self._put(topic, client)

        return add_clients

    def _put(self, topic: Topic, client: _Client) -> None:
        if isinstance(client.record, ProducerRecord):
            name = client.record.name
            self._put_producer(
                KnownProducer(producer_id=client.number, topic=topic, name=name, recorded=True)
            )
        else:
            self._put_consumer(KnownConsumer(consumer_id=client.number, topic=topic, record=client.record))

    # -- looking up ------------------------------------------------------------------------------------------

    def producer(self, number: int) -> KnownProducer | None:
        """Return the producer with that id. None if there is none, or its topic is gone."""
        known = self.producers.get(number)
        if known is not None and known.topic.closed is not None:
            self._drop_producer(known)
            return None
        return known

    def consumer(self, number: int) -> KnownConsumer | None:
        """Return the consumer with that id. None if there is none, or its topic or subscription is gone."""
        known = self.consumers.get(number)
        if known is not None and known.gone:
            self.drop_consumer(known)
            return None
        return known

    # -- writing down ----------------------------------------------------------------------------------------

    async def remember_producer(
        self, topic: Topic, name: str, mode: AccessMode, share: Share
    ) -> KnownProducer:
        """Return the producer of that name, admitted by the topic's gate and with its id on stable storage.

        Raises `ProducerFenced`, `LimitReached`, `QuotaExceeded`: it is not admitted.
        """
        number = producer_id(topic.name, name)
        known = self.producer(number)
        if known is None or not known.recorded:
            if known is None:
                topic.gate.check_producer(name, mode, topic.producers_connected)
                share.check_producer()
            key = keys.producer_client_key(TopicId(topic.topic_id), number)
            await self._write(
                key, ProducerRecord(name=name), self._forget_one(self._producers_of.get(topic.topic_id, {}))
            )
            if topic.closed is not None:
                raise topic.closed
            known = self.attach_producer(topic, name, mode, share)
            known.recorded = True
        known.admit(mode)
        self._producers_of[topic.topic_id].move_to_end(number)
        known.touch()
        return known

    def attach_producer(self, topic: Topic, name: str, mode: AccessMode, share: Share) -> KnownProducer:
        """Return the producer of that name, admitted by the topic's gate. It is not stored, and forgotten once it is idle.

        Raises `ProducerFenced`, `LimitReached`, `QuotaExceeded`: it is not admitted, and not added.
        """
        number = producer_id(topic.name, name)
        known = self.producer(number)
        if known is None:
            share.check_producer()
            self._forget_one(self._producers_of.get(topic.topic_id, {}))
            known = KnownProducer(producer_id=number, topic=topic, name=name, share=share)
            known.admit(mode)
            self._put_producer(known)
        return known

    async def remember_consumer(self, topic: Topic, record: ConsumerRecord) -> KnownConsumer:
        """Return the consumer of that name, with its id on stable storage."""
        number = consumer_id(topic.name, record.subscription, record.name)
        known = self.consumer(number)
        if known is None or known.record != record:
            key = keys.consumer_client_key(TopicId(topic.topic_id), record.subscription, number)
            others: Mapping[int, KnownConsumer] = self._consumers_of.get(
                (topic.topic_id, record.subscription), {}
            )
            await self._write(key, record, self._forget_one(others))
            if topic.closed is not None:
                raise topic.closed
            known = self.consumer(number)
            if known is None:
                known = KnownConsumer(consumer_id=number, topic=topic, record=record)
                self._put_consumer(known)
            self.held_bytes -= known.size
            known.record = record
            self.held_bytes += known.size
        self._consumers_of[topic.topic_id, record.subscription].move_to_end(number)
        known.touch()
        return known

    async def _write(self, key: str, record: JsonRecord, forgotten: str | None) -> None:
        writes: list[Write] = [Put(key, record.to_json())]
        if forgotten is not None:
            writes.append(Delete(forgotten))
        try:
            await self._store.transact(writes)
        except ClusterError as error:
            # It is served anyway. It is lost only at a restart, and the client must then register again.
            log.warning("client_not_recorded", extra={"error": str(error)})

    def _put_producer(self, known: KnownProducer) -> None:
        self.producers[known.producer_id] = known
        self.held_bytes += known.size
        others = self._producers_of.setdefault(known.topic.topic_id, OrderedDict())
        others[known.producer_id] = known

    def _put_consumer(self, known: KnownConsumer) -> None:
        self.consumers[known.consumer_id] = known
        self.held_bytes += known.size
        others = self._consumers_of.setdefault((known.topic.topic_id, known.subscription), OrderedDict())
        others[known.consumer_id] = known

    def _forget_one(self, others: Mapping[int, KnownProducer] | Mapping[int, KnownConsumer]) -> str | None:
        """If there are too many clients, forget an idle one, and return the key of its record.

        Raises `LimitReached`: all examined clients are in use.
        """
        found: Iterable[KnownProducer | KnownConsumer]
        if len(others) >= MAX_NAMES:
            found = islice(others.values(), LOOKED_AT)
        elif self.held_bytes >= MAX_BYTES:
            found = chain(
                islice(self.producers.values(), LOOKED_AT), islice(self.consumers.values(), LOOKED_AT)
            )
        else:
            return None
        for known in found:
            if not known.idle:
                continue
            topic_id = TopicId(known.topic.topic_id)
            if isinstance(known, KnownProducer):
                self._drop_producer(known)
                return keys.producer_client_key(topic_id, known.producer_id)
            self.drop_consumer(known)
            return keys.consumer_client_key(topic_id, known.subscription, known.consumer_id)
        raise LimitReached(
            f"names of producers and consumers that are in use: {len(others)} here, {self.held_bytes} bytes of all "
            f"topics. At most {MAX_NAMES} of a topic or subscription and {MAX_BYTES} bytes are kept. Use names again, or "
            "wait 15 s",
            field="name",
            value=len(others),
            limit=MAX_NAMES,
        )

    def keep_filtered(self, now_s: float) -> None:
        """After a start, keep the places of consumers in whose absence messages would be skipped."""
        for others in self._consumers_of.values():
            if not any(known.record.key_filters for known in others.values()):
                continue
            for known in reversed(others.values()):  # the latest first, in case there is no room for all
                pump = known.topic.subscriptions.get(known.subscription)
                if pump is None or not known.topic.stores or not keep_place(known, pump, now_s + RESTART_S):
                    break

    # -- forgetting ------------------------------------------------------------------------------------------

    def _drop_producer(self, known: KnownProducer) -> None:
        known.leave()
        self.foreign_ids.left(known.producer_id, known.topic)
        if self.producers.pop(known.producer_id, None) is not None:
            self.held_bytes -= known.size
        others = self._producers_of.get(known.topic.topic_id)
        if others is not None:
            others.pop(known.producer_id, None)
            if not others:
                del self._producers_of[known.topic.topic_id]

    def drop_consumer(self, known: KnownConsumer) -> None:
        """Forget a consumer whose topic or subscription, and so its record, was deleted."""
        self.foreign_ids.left(known.consumer_id, known.topic)
        if self.consumers.pop(known.consumer_id, None) is not None:
            self.held_bytes -= known.size
        if known.placeholder is not None:
            known.placeholder.give_up()
        place = (known.topic.topic_id, known.subscription)
        others = self._consumers_of.get(place)
        if others is not None:
            others.pop(known.consumer_id, None)
            if not others:
                del self._consumers_of[place]

    def sweep(self, now_s: float) -> None:
        """Mark clients without recent calls as gone. Called every 5 s with the loop's time."""
        for producer in list(self.producers.values()):
            if producer.topic.closed is not None:
                self._drop_producer(producer)
                continue
            producer.signs = max(producer.signs - 1, 0)
            if not producer.signs:
                if not producer.recorded:
                    self._drop_producer(producer)
                elif producer.here:
                    producer.leave()
        for consumer in list(self.consumers.values()):
            if consumer.gone:
                self.drop_consumer(consumer)
                continue
            consumer.signs = max(consumer.signs - 1, 0)
            if consumer.placeholder is not None:
                consumer.placeholder.swept(now_s)
