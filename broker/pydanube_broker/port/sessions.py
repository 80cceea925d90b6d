"""Connected producers and consumers, counters, settings and log of this broker, for the admin core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydanube_core.errors import Unavailable
from pydanube_core.facts import LogLine, SessionFacts, SettingFacts, TrafficFacts
from pydanube_core.names import SYSTEM_NAMESPACE, TopicName
from pydanube_core.secrets import is_secret_name, secret_mark, without_secrets

from pydanube_broker.parts import BrokerParts
from pydanube_broker.rpc.caller import ClientSeen
from pydanube_broker.settings.sections import Settings
from pydanube_broker.slices import Slices
from pydanube_broker.subscription.handling import HandlingStatistics
from pydanube_broker.topics.topic import now_ms


class SessionsPart:
    """The part of `BrokerPort` about sessions of clients."""

    _broker: BrokerParts

    async def producers(self) -> Sequence[SessionFacts]:
        found = []
        for topic in self._broker.registry.topics:
            for number, name, exclusive, producer in topic.gate.attached():
                messages_per_s, bytes_per_s = producer.published.per_s()
                found.append(
                    SessionFacts(
                        session_id=str(number),
                        topic=topic.name,
                        name=name,
                        exclusive=exclusive,
                        connected_at_ms=producer.connected_at_ms,
                        msgs_per_s=messages_per_s,
                        bytes_per_s=bytes_per_s,
                        **_client(producer.client()),
                    )
                )
        return found

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
                            **_handling(consumer.handling),
                            **_client(None if link is None else link.client()),
                        )
                    )
        return found

    async def disconnect(self, session_id: str) -> bool:
        error = Unavailable("an administrator ended this connection. Connect again", retry_after_ms=1000)
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
        topics = registry.topics if topic is None else registry.known_parts(TopicName.parse(topic))
        names = {one.name for one in topics}
        refused = sum(count for (one, _), count in metrics.rejected.items() if topic is None or one in names)
        slices, now = Slices(), now_ms()
        logs, cursors = [(0,) * 7], [(0,) * 6]
        for one in topics:  # in plain tuples: a console requests ten thousand topics every two seconds
            await slices()
            # Traffic is counted of all logs, the present state only of users' logs.
            there = topic is not None or one.options.topic.namespace != SYSTEM_NAMESPACE
            stored = sum(self._broker.stored_bytes(one)) if there else 0
            clients = (there * one.producers_connected, there * one.readers)
            logs.append((one.messages_in, one.bytes_in, one.bytes_out, there, *clients, stored))
            for pump in one.subscriptions.values():
                state = pump.cursor_state(now)
                counted = (there, there * len(pump.links), there * state.lag_messages)
                cursors.append((pump.delivered, state.redelivered, state.dropped, *counted))
        messages_in, bytes_in, bytes_out, count, producers, readers, stored_bytes = map(
            sum, zip(*logs, strict=True)
        )
        messages_out, redelivered, dropped, subscriptions, consumers, lag = map(
            sum, zip(*cursors, strict=True)
        )
        return TrafficFacts(
            messages_in=messages_in,
            bytes_in=bytes_in,
            messages_out=messages_out,
            bytes_out=bytes_out,
            redelivered=redelivered,
            publish_rejected=refused,
            dropped=dropped,
            logs=count,
            subscriptions=subscriptions,
            producers=producers,
            consumers=consumers + readers,
            lag_messages=lag,
            stored_bytes=stored_bytes,
        )

    async def settings(self) -> Sequence[SettingFacts]:
        return shown_settings(self._broker.settings)

    async def log_lines(self, *, lines: int, level: str | None, since_ms: int | None) -> Sequence[LogLine]:
        return self._broker.log_ring.last(lines=lines, level=level, since_ms=since_ms)


def shown_settings(settings: Settings) -> Sequence[SettingFacts]:
    """Return all settings, and of each secret only a mark by which it can be compared."""
    return [
        SettingFacts(
            name=f"{entry.section}.{entry.key}",
            value=secret_mark(entry.key, entry.value if isinstance(entry.value, bytes) else str(entry.value))
            if is_secret_name(entry.key) and entry.value
            else without_secrets(str(entry.value)),
            default=str(entry.default),
            source=str(entry.source),
            description=entry.description,
        )
        for entry in settings.entries()
    ]


def _client(seen: ClientSeen | None) -> dict[str, Any]:
    return {} if seen is None else {"principal": seen.principal, "host": seen.host, "program": seen.program}


def _handling(found: HandlingStatistics | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "msgs_per_s": found.acks_per_s,
        "handling_p50_ms": found.p50_ms,
        "handling_p99_ms": found.p99_ms,
        "handling_from_taken": found.from_taken,
        "late_acks": found.late_acks,
        "expired": found.expired,
    }
