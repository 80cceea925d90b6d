"""The transport to a topic's owner that is not registered in its cluster, and so may be gone."""

from __future__ import annotations

from pydanube_core.errors import Unavailable
from pydanube_core.refusals import gone_remedy

from pydanube.wire.transport import Stream, Transport


class GoneOwner:
    """A transport whose streams explain, if the broker cannot be reached, for which broker the topic waits.

    The broker may still serve the topic, for example if only the metadata store does not reach it.
    """

    def __init__(self, transport: Transport, topic: str, broker_id: str) -> None:
        self._transport = transport
        self._topic = topic
        self._broker_id = broker_id

    @property
    def url(self) -> str:
        return self._transport.url

    @property
    def renews(self) -> bool:
        return self._transport.renews

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        return await self._transport.resolve(request, timeout_s=timeout_s)

    async def call(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        return await self._transport.call(path, request, timeout_s=timeout_s)

    async def publish(self) -> Stream:
        try:
            return await self._transport.publish()
        except Unavailable as error:
            raise self._explained(error) from error

    async def consume(self) -> Stream:
        try:
            return await self._transport.consume()
        except Unavailable as error:
            raise self._explained(error) from error

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _explained(self, error: Unavailable) -> Unavailable:
        return Unavailable(
            f"{self._topic} waits for broker {self._broker_id} at {self.url}, which is gone: it is not registered, and "
            f"does not answer. {gone_remedy(self._broker_id)}",
            topic=self._topic,
            broker_id=self._broker_id,
            state="gone",
            **error.details,
        )
