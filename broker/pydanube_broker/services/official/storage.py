"""`danube.StorageService`: the objects of a topic in the cold tier, for the original's side programs."""

from __future__ import annotations

from pydanube_core.generated import danube_pb2 as pb

from pydanube_broker.services.official.discovery import DiscoveryHost
from pydanube_broker.services.official.requests import parse, topic_name

__all__ = ["StorageService"]


class StorageService:
    def __init__(self, host: DiscoveryHost) -> None:
        self._host = host

    async def list_segment_descriptors(self, data: bytes) -> bytes:
        """Completed objects behind an offset. There are none: the cold tier is a later piece of work."""
        request = parse(pb.ListSegmentDescriptorsRequest, data)
        name = topic_name(request.topic, field="topic")
        if self._host.registry.find(name) is None:
            raise self._host.registry.not_found(name)
        return pb.ListSegmentDescriptorsResponse().SerializeToString()
