"""A broker's report of its topics, once a minute, in the object store: `<cluster>/states/<broker>/<incarnation>-<n>.fragment`.

A fragment (`copying.piece`) without messages: the end of each topic, its producer sessions, and its cursors. The next
owners of a removed broker's topics begin with the newest report. There is one of each broker, and two while it is
replaced.

The tier's process reads and writes the store (`tier.topic_reports_work`) for the broker (`TopicReports`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from copy import deepcopy
from hashlib import sha256
from typing import Final

import anyio
from pydanube_core.errors import CorruptObject

from pydanube_broker.cluster.ids import BrokerId, Incarnation
from pydanube_broker.copying.piece import FragmentBuilder, Piece, read_fragment
from pydanube_broker.slices import Slices
from pydanube_broker.tier.topic_reports_work import Call
from pydanube_broker.topics.log_state import LogState

log = logging.getLogger("pydanube.cluster")

_RECENT_S: Final = 10.0  # a broker that is not lost reports once a minute


class TopicReports:
    """Writes and reads reports. Single user: the loop.

    Args:
        write: calls the tier's process.
        read: calls the chain's process, which starts sooner, because the topics of a lost broker wait.
    """

    def __init__(self, write: Call, read: Call, cluster: str) -> None:
        self._write = write
        self._read = read
        self._cluster = cluster
        self._written = b""  # the digest of the report written last
        self._count = 0
        self._recent: dict[BrokerId, Mapping[int, LogState]] = {}  # reports read in the last `_RECENT_S`
        self._reading = anyio.Lock()

    async def write(self, me: BrokerId, incarnation: Incarnation, states: Iterable[LogState]) -> bool:
        """Store the topics' states unless they are those stored last. Return whether they were stored.

        Raises `StoreUnavailable`, `DiskFull`.
        """
        builder, slices = FragmentBuilder(me), Slices()
        for state in states:
            await slices()
            if state.opened and state.epoch:
                end = state.next_offset
                section = Piece(
                    topic_id=state.topic_id,
                    epoch=state.epoch,
                    first_offset=end,
                    end_offset=end,
                    batches=(),
                    state=state,
                )
                builder.add(section)
        data = builder.finish()
        digest = sha256(data).digest()
        if digest == self._written:
            return False
        self._count += 1
        name = f"{incarnation:020d}-{self._count:010d}.fragment"
        await self._write("states_write", {"folder": self._folder(me), "name": name}, data)
        self._written = digest
        return True

    async def read(self, broker_id: BrokerId) -> tuple[dict[int, LogState], int | None]:
        """Return a broker's last report, by topic id, and the time of its writing (ms), None if there is none.

        A damaged report counts as missing, because an error would leave its topics without an owner.

        Raises `StoreUnavailable`.
        """
        folder = self._folder(broker_id)
        found, data = await self._read("states_newest", {"folder": folder, "awaited": True}, b"")
        if "written_ms" not in found:
            return {}, None
        states, slices = {}, Slices()
        try:
            for each in read_fragment(bytes(data)):
                await slices()
                if each.state is not None:
                    states[each.topic_id] = each.state
        except CorruptObject as error:
            log.error("states_not_readable", extra={"folder": folder, "error": error.message})
            return {}, None
        return states, int(found["written_ms"])

    async def recent(self, broker_id: BrokerId, topic_id: int) -> LogState | None:
        """Return a topic's state in a broker's last report as it was at most `_RECENT_S` ago, None if it has none.

        A report contains all topics, and an heir rebuilds thousands of them in a row. Raises `StoreUnavailable`.
        """
        async with self._reading:
            if broker_id not in self._recent:
                self._recent[broker_id], _ = await self.read(broker_id)
                asyncio.get_running_loop().call_later(_RECENT_S, self._recent.pop, broker_id, None)
            return deepcopy(self._recent[broker_id].get(topic_id))  # the topic changes it

    def _folder(self, broker_id: BrokerId) -> str:
        return f"{self._cluster}/states/{broker_id}"
