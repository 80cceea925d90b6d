"""Connected producers and consumers, counters, settings and log of this broker, as the admin core sees them."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube_core.errors import Unavailable
from pydanube_core.facts import LogLine, SessionFacts, SettingFacts, TrafficFacts
from pydanube_core.names import TopicName
from pydanube_core.secrets import REDACTED, is_secret_name, without_secrets

from pydanube_broker.parts import BrokerParts
from pydanube_broker.topics.topic import Topic


class SessionsPart:
    """The part of `BrokerPort` about sessions of clients."""

    _broker: BrokerParts

    async def producers(self) -> Sequence[SessionFacts]:
        return [
            SessionFacts(session_id=str(number), topic=topic.name, name=name, exclusive=exclusive)
            for topic in self._broker.registry.topics
            for number, name, exclusive, _ in topic.gate.attached()
        ]

    async def consumers(self) -> Sequence[SessionFacts]:
        found = []
        for topic in self._broker.registry.topics:
            for pump in topic.subscriptions.values():
                statistics = pump.statistics()
                for consumer in () if statistics is None else statistics.consumers:
                    link = pump.links.get(consumer.consumer_id)
                    found.append(
                        SessionFacts(
                            session_id=str(consumer.consumer_id),
                            topic=topic.name,
                            name=consumer.name,
                            exclusive=consumer.active,
                            subscription=pump.name,
                            in_flight=consumer.in_flight,
                            connected_at_ms=None if link is None else link.connected_at_ms,
                            standing=consumer.standing.value,
                        )
                    )
        return found

    async def disconnect(self, session_id: str) -> bool:
        error = Unavailable("an administrator ended this connection; connect again", retry_after_ms=1000)
        for topic in self._broker.registry.topics:
            for number, _, _, producer in topic.gate.attached():
                if str(number) == session_id:
                    producer.end(error)
                    return True
            for pump in topic.subscriptions.values():
                for consumer_id, link in list(pump.links.items()):
                    if str(consumer_id) == session_id:
                        link.end(error)
                        return True
        return False

    async def traffic(self, topic: str | None) -> TrafficFacts:
        registry, metrics = self._broker.registry, self._broker.metrics
        topics: Sequence[Topic] = registry.topics
        if topic is not None:
            name = TopicName.parse(topic)
            topics = registry.parts(name)[1]
            if not topics:
                raise registry.not_found(name)
        names = {one.name for one in topics}
        pumps = [pump for one in topics for pump in one.subscriptions.values()]
        statistics = [found for pump in pumps if (found := pump.statistics()) is not None]
        return TrafficFacts(
            messages_in=sum(one.messages_in for one in topics),
            bytes_in=sum(one.bytes_in for one in topics),
            messages_out=sum(pump.delivered for pump in pumps),
            redelivered=sum(found.redelivered for found in statistics),
            publish_rejected=sum(
                count for (one, _), count in metrics.rejected.items() if topic is None or one in names
            ),
            dropped=sum(found.dropped for found in statistics),
        )

    async def settings(self) -> Sequence[SettingFacts]:
        return [
            SettingFacts(
                name=f"{entry.section}.{entry.key}",
                value=REDACTED
                if is_secret_name(entry.key) and entry.value
                else without_secrets(str(entry.value)),
                default=str(entry.default),
                source=str(entry.source),
                description=entry.description,
            )
            for entry in self._broker.settings.entries()
        ]

    async def log_lines(self, *, lines: int, level: str | None, since_ms: int | None) -> Sequence[LogLine]:
        return self._broker.log_ring.last(lines=lines, level=level, since_ms=since_ms)
