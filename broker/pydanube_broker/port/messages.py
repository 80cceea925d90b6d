"""Reading stored messages and publishing messages, for the admin core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydanube_core.errors import DispatchMismatch, MessageTooLarge
from pydanube_core.facts import MessageFacts
from pydanube_core.names import TopicName

from pydanube_broker.parts import BrokerParts
from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_broker.serving.topic_access import Action
from pydanube_broker.topics.stored_messages import append_durably, messages_between


class MessagesPart:
    """The methods of `BrokerPort` about messages. Topics are concrete ones."""

    _broker: BrokerParts

    async def read_messages(
        self, topic: str, *, start: int, end: int, max_messages: int, max_bytes: int
    ) -> Sequence[MessageFacts]:
        found = self._broker.registry.known(TopicName.parse(topic))
        if not found.stores:
            raise DispatchMismatch(
                f"{topic} is non_reliable and stores nothing: there are no messages to look at",
                field="topic",
                value=topic,
            )
        return await messages_between(
            found,
            start=start,
            end=end,
            max_messages=max_messages,
            max_bytes=max_bytes,
            worker_threads=self._broker.engine.worker_threads,
        )

    async def publish_message(
        self, topic: str, *, payload: bytes, key: str | None, attributes: Mapping[str, str]
    ) -> int:
        found = self._broker.registry.known(TopicName.parse(topic))
        self._broker.access.check(COLD_CALL, Action.PRODUCE, found.options.topic)
        self._broker.health.check_publish()
        if len(payload) > found.max_message_bytes:
            raise MessageTooLarge(
                f"the message has {len(payload)} bytes, {topic} takes at most {found.max_message_bytes}",
                field="payload",
                value=len(payload),
                limit=found.max_message_bytes,
            )
        return await append_durably(
            found,
            [payload],
            keys=None if key is None else [key.encode()],
            attributes=[attributes] if attributes else None,
            producer="administration",
            checked=True,
        )
