"""This broker's load, and the moves under way, for the load manager (`pydanube_core.cluster_port`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydanube_core.balance import Assessment, BrokerLoad, LoadReport, Resource, TopicLoad
from pydanube_core.facts import FailedMoveFacts, MoveFacts
from pydanube_core.names import SYSTEM_NAMESPACE, TopicName

from pydanube_broker.observation.load_meter import TopicRate
from pydanube_broker.parts import BrokerParts
from pydanube_broker.slices import Slices
from pydanube_broker.telemetry.writer import usable_cpus
from pydanube_broker.topics.topic import now_ms

NEVER_S: Final = 1e9  # the age of a sample that was not taken


class BalancePart:
    """The methods of `BrokerPort` that report loads and move topics."""

    _broker: BrokerParts

    async def loads(self) -> Sequence[LoadReport]:
        broker = self._broker
        ownership = broker.registry.ownership
        own = str(broker.data_dir.broker_id)
        accepts = not ownership.several or int(own) in broker.moves.takers()
        rates = broker.load_meter.rates()
        if rates is None:
            age_s = NEVER_S if ownership.several else 0.0
            return [LoadReport(broker=BrokerLoad(broker_id=own, load={}, age_s=age_s, accepts=accepts))]
        cpus = usable_cpus()
        load = BrokerLoad(
            broker_id=own,
            load=rates.broker,
            capacity={Resource.CPU: float(cpus)} if cpus else {},
            age_s=max(0, now_ms() - rates.taken_at_ms) / 1000,
            accepts=accepts,
        )
        slices, topics = Slices(), []
        for rate in rates.topics:
            await slices()
            if (found := self._topic_load(rate, own)) is not None:
                topics.append(found)
        return [LoadReport(broker=load, topics=tuple(topics))]

    def _topic_load(self, rate: TopicRate, own: str) -> TopicLoad | None:
        """Return a topic's load. None for a broker's own topics, which cannot move."""
        name = TopicName.parse(rate.topic)
        topic = self._broker.registry.find(name)
        if topic is None or name.namespace == SYSTEM_NAMESPACE:
            return None
        now = now_ms()
        return TopicLoad(
            topic=rate.topic,
            broker_id=own,
            load={
                Resource.CPU: rate.cpu,
                Resource.NETWORK_IN: rate.bytes_in_s,
                Resource.NETWORK_OUT: rate.bytes_out_s,
            },
            unread_messages=sum(pump.cursor_state(now).lag_messages for pump in topic.subscriptions.values()),
            group=None if topic.options.parent is None else str(topic.options.parent),
        )

    async def moves(self) -> Sequence[MoveFacts]:
        return self._broker.registry.ownership.moves()

    async def failed_moves(self) -> Sequence[FailedMoveFacts]:
        return self._broker.registry.ownership.failed_moves()

    def note_balance(self, found: Assessment | None, silent: Mapping[str, str]) -> None:
        self._broker.balance.balance, self._broker.balance.silent = found, silent
