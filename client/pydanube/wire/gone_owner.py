"""The transport to a topic's owner that is not registered in its cluster, and so may be gone."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pydanube_core.errors import Unavailable
from pydanube_core.refusals import gone_remedy

from pydanube.wire.transport import Passing, Stream, Transport


class GoneOwner(Passing):
    """A transport whose streams explain, if the broker cannot be reached, for which broker the topic waits.

    The broker may still serve the topic, for example if only the metadata store does not reach it.
    """

    def __init__(self, transport: Transport, topic: str, broker_id: str) -> None:
        super().__init__(transport)
        self._topic = topic
        self._broker_id = broker_id

    async def publish(self) -> Stream:
        return await self._explained(self._transport.publish())

    async def consume(self) -> Stream:
        return await self._explained(self._transport.consume())

    async def _explained(self, begun: Coroutine[Any, Any, Stream]) -> Stream:
        try:
            return await begun
        except Unavailable as error:
            raise Unavailable(
                f"{self._topic} waits for broker {self._broker_id} at {self.url}, which is gone: it is not registered, and "
                f"does not answer. {gone_remedy(self._broker_id)}",
                topic=self._topic,
                broker_id=self._broker_id,
                state="gone",
                **error.details,
            ) from error
