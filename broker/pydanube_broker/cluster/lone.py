"""A lone broker's way through the cluster's protocol: register, take office, own every topic."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from pydanube_storage.metadata import MetadataStore

from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.cluster.topic_catalog import TopicCatalog

__all__ = ["LoneBroker"]


class LoneBroker:
    def __init__(
        self, store: MetadataStore, *, broker_id: int, broker_url: str, admin_url: str, catalog: TopicCatalog
    ) -> None:
        self._catalog = catalog

    async def __aenter__(self) -> Self:
        await self._catalog.load()
        await self._catalog.resume()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def assign(self, records: Sequence[TopicRecord]) -> None: ...

    def epoch(self, topic_id: int) -> int:
        return 1
