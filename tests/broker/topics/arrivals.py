"""Topics that arrive in a journal, as a test has them: from sections, without a store."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydanube_broker.cluster.ids import Epoch
from pydanube_broker.cluster.move_record import HandOverPart
from pydanube_broker.topics.fragment import Section
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.journal_transfer import Arrival
from pydanube_broker.topics.log_state import LogState


def part_of(section: Section) -> HandOverPart:
    return HandOverPart(
        key="k", start=0, end=1, digest="d", first_offset=section.first_offset, end_offset=section.end_offset
    )


async def copy_in(hub: Hub, topic_id: int, epoch: Epoch, sections: AsyncIterator[Section]) -> LogState:
    """Copy a whole hand-over."""
    arrival = Arrival(hub, topic_id)
    async for section in sections:
        await arrival.take(part_of(section), section)
    return await arrival.finish(epoch)
