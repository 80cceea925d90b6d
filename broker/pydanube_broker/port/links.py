"""Links of this cluster and their mirrors, for the admin core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydanube_core.links import LinkFacts
from pydanube_core.names import TopicName

from pydanube_broker.parts import BrokerParts


class LinksPart:
    """The part of `BrokerPort` about links."""

    _broker: BrokerParts

    async def links(self) -> Sequence[LinkFacts]:
        return self._broker.links.facts()

    async def seal_mirror(self, topic: str) -> Mapping[str, int]:
        return await self._broker.links.seal(TopicName.parse(topic))

    async def open_mirror(self, topic: str, copied_until: Mapping[str, int]) -> None:
        await self._broker.links.open_mirror(TopicName.parse(topic), copied_until)
