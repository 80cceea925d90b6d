"""Topics that arrive in a journal, as a test has them: from pieces, without an owner."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydanube_broker.cluster.ids import Epoch
from pydanube_broker.copying.arrival import Arrival
from pydanube_broker.copying.piece import Piece
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import LogState


async def copy_in(hub: Hub, topic_id: int, epoch: Epoch, pieces: AsyncIterator[Piece]) -> LogState:
    """Copy a whole topic, as of an assignment that is there already."""
    arrival = Arrival(hub, topic_id)
    async for piece in pieces:
        await arrival.take(piece)
    return await arrival.finish(epoch)
