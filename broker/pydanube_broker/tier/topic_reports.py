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
from typing import Final, TypeAlias

from pydanube_core.errors import ClusterError, CorruptObject

from pydanube_broker.cluster.ids import BrokerId, Incarnation
from pydanube_broker.cluster.move_record import ChainRange
from pydanube_broker.copying.piece import FragmentBuilder, Piece, read_fragment
from pydanube_broker.slices import Slices
from pydanube_broker.tier.topic_reports_work import Call
from pydanube_broker.topics.log_state import LogState

log = logging.getLogger("pydanube.cluster")

_RECENT_S: Final = 10.0  # a broker that is not lost reports once a minute

#: a lost broker, with the journal and the end of its chain, None without a chain
_Loss: TypeAlias = tuple[BrokerId, tuple[int, int] | None]


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
        # Reports that are being read, or were in the last `_RECENT_S`, by the loss that they are read for
        self._recent: dict[_Loss, asyncio.Future[Mapping[int, LogState]]] = {}

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

    async def recent(self, broker_id: BrokerId, chain: ChainRange | None, topic_id: int) -> LogState | None:
        """Return a topic's state in a lost broker's last report, as it was at most `_RECENT_S` ago. None if it has none.

        A report contains all topics, and an heir rebuilds thousands of them in a row. So concurrent calls share one
        read, and its failure.

        Args:
            chain: identifies the loss. A broker that returned and is lost again has another report, and a longer chain.

        Raises `StoreUnavailable`.
        """
        loss = broker_id, None if chain is None else (chain.journal, chain.until)
        while (reading := self._recent.get(loss)) is not None:
            # If its caller was cancelled, another one reads
            await asyncio.wait([reading])
            if not reading.cancelled():
                return deepcopy(reading.result().get(topic_id))  # the topic changes it
        reading = self._recent[loss] = asyncio.get_running_loop().create_future()
        try:
            states, _ = await self.read(broker_id)
        except BaseException as error:
            del self._recent[loss]
            if isinstance(error, ClusterError):
                reading.set_exception(error)
                reading.exception()  # there may be no other caller
            else:
                reading.cancel()
            raise
        reading.set_result(states)
        asyncio.get_running_loop().call_later(_RECENT_S, self._recent.pop, loss, None)
        return deepcopy(states.get(topic_id))

    def _folder(self, broker_id: BrokerId) -> str:
        return f"{self._cluster}/states/{broker_id}"
