"""Links of this cluster and their mirrors, for the admin core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydanube_core.links import FAILED_OVER_TO, LinkFacts
from pydanube_core.names import TopicName

from pydanube_broker.parts import BrokerParts


class LinksPart:
    """The part of `BrokerPort` about links."""

    _broker: BrokerParts

    async def links(self) -> Sequence[LinkFacts]:
        return self._broker.links.facts_with_logs()

    async def fence_source(self, link: str, topics: Sequence[str]) -> Mapping[str, int | str]:
        return await self._broker.links.fence(link, topics)

    async def reopen_topic(self, topic: str) -> None:
        registry = self._broker.registry
        for record in await registry.catalog.set_option(TopicName.parse(topic), FAILED_OVER_TO, None):
            if (served := registry.find(record.topic)) is not None:
                registry.policies.apply(served)

    async def seal_mirror(self, topic: str) -> Mapping[str, int]:
        return await self._broker.links.seal(TopicName.parse(topic))

    async def open_mirror(self, topic: str, copied_until: Mapping[str, int]) -> None:
        await self._broker.links.open_mirror(TopicName.parse(topic), copied_until)
