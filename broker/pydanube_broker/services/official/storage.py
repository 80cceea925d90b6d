"""`danube.StorageService`: the objects of a topic in the cold tier, for the original's side programs."""

from __future__ import annotations

from collections.abc import Callable

from pydanube_core.generated import danube_pb2 as pb

from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_broker.services.official.requests import parse, topic_name
from pydanube_broker.serving.topic_access import Action, TopicAccess
from pydanube_broker.tier.tier import Tier


class StorageService:
    def __init__(self, access: TopicAccess, tier: Callable[[], Tier]) -> None:
        self._access = access
        self._tier = tier  # opened after these services are created

    async def list_segment_descriptors(self, data: bytes) -> bytes:
        """Return the committed objects that begin after an offset. They are Parquet, not the original's frames."""
        request = parse(pb.ListSegmentDescriptorsRequest, data)
        name = topic_name(request.topic, field="topic")
        topic = self._access.topic(COLD_CALL, Action.CONSUME, name)
        tier = self._tier()
        entries = tier.catalog.entries(topic.topic_id, start=request.after_offset)
        return pb.ListSegmentDescriptorsResponse(
            segments=[
                pb.SegmentDescriptorProto(
                    segment_id=tier.path(topic.topic_id, entry.name),
                    start_offset=entry.start,
                    end_offset=entry.end - 1,  # the original's is inclusive
                    size=entry.bytes,
                    etag=entry.digest,
                    created_at=entry.committed_at_ms // 1000,
                )
                async for entry in entries
                if entry.start > request.after_offset or not request.after_offset
            ]
        ).SerializeToString()
