"""A watch on etcd that survives reconnects: each event once and in order, from any member.

A task reads the stream and stays some events ahead of the reader. While the reader is busy it reads no more than these,
and gRPC's flow control holds etcd back. The place (a revision, and the number of its events that were read) advances with each event.
When the stream ends, the task opens a new one from that place on the next member and skips repeated events.

A member without a leader ends the stream (`hasleader`). The connection's pings detect an unreachable member. etcd
reports its progress to an idle watch every ten minutes, so that a compaction by another client does not pass the
watch's place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import anyio
import anyio.lowlevel
from pydanube_core.errors import ClosedResource, ClusterError

from pydanube_storage.metadata.engine import Place
from pydanube_storage.metadata.errors import Compacted
from pydanube_storage.metadata.etcd.link import EtcdLink, of_grpc
from pydanube_storage.metadata.etcd.messages import Messages
from pydanube_storage.metadata.etcd.refusals import Refused, Seen, permission_denied
from pydanube_storage.metadata.model import Event, KeyRange, Revision

_MOST_AHEAD: Final = 100  # events in memory that the reader has not taken
_PAUSES_S: Final = (0.0, 0.1, 0.3, 1.0)  # pause before the first, second … new stream
_DENIED: Final = "permission denied"


class EtcdWatch:
    """The events of one reader, fed by `run`. One task at a time may iterate."""

    def __init__(
        self,
        link: EtcdLink,
        messages: Messages,
        range_: KeyRange,
        from_revision: Revision,
        note: Callable[[Any], None],
    ) -> None:
        self._link = link
        self._messages = messages
        self._range = range_
        self._note = note  # called with the header of each answer
        self._place = Place(from_revision, 0)
        self._events: deque[Event] = deque()
        self._failure: Exception | None = None
        self._filled = anyio.Event()
        self._emptied = anyio.Event()
        self._scope = anyio.CancelScope()
        self._attempts = 0
        self._token_renewed = False

    # The reader's side

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        await anyio.lowlevel.checkpoint_if_cancelled()  # a cancelled reader must not take an event
        while not self._events:
            if self._failure is not None:
                raise self._failure
            self._filled = anyio.Event()
            await self._filled.wait()
        event = self._events.popleft()
        if not self._events:
            self._emptied.set()
        return event

    def close(self) -> None:
        """End the watch. Iterating raises `ClosedResource` from now on."""
        self._events.clear()
        self._end(ClosedResource("the watch is closed", resource="watch"))
        self._scope.cancel()

    def _end(self, failure: Exception) -> None:
        self._failure = self._failure or failure
        self._filled.set()

    # The task's side

    async def run(self) -> None:
        """Feed the reader until `close`, until the needed history is compacted, or until etcd refuses the watch."""
        with self._scope:
            while True:
                await anyio.sleep(_PAUSES_S[min(self._attempts, len(_PAUSES_S) - 1)])
                self._attempts += 1
                try:
                    await self._follow()
                except Refused:
                    continue  # the link uses the next member from now on
                except ClusterError as error:
                    self._end(error)
                    return

    async def _follow(self) -> None:
        start = self._place.revision
        member, stream = await self._link.open_watch(self._messages.watch(self._range, from_revision=start))
        counted = Place(Revision(0), 0)  # the place after the events of this stream
        try:
            while True:
                answer = await _read(stream)
                self._note(answer.header)
                if answer.canceled:
                    self._cancelled_by_etcd(answer)
                self._attempts, self._token_renewed = 0, False
                for each in answer.events:
                    revision = Revision(each.kv.mod_revision)
                    counted = Place(revision, counted.position + 1 if counted.revision == revision else 1)
                    # The stream begins early and may repeat events of the previous one
                    if counted > self._place:
                        self._take(each, counted)
                if not answer.events and not answer.created:  # progress: etcd has sent all events up to here
                    self._place = max(self._place, Place(Revision(answer.header.revision + 1), 0))
                await self._until_read()
        except Refused:
            self._link.turn_from(member)
            raise
        finally:
            stream.cancel()

    def _take(self, each: Any, behind: Place) -> None:
        event = self._messages.event(each)
        if event is None:
            raise Compacted(self._place.revision, Revision(behind.revision + 1))
        self._place = behind
        self._events.append(event)
        self._filled.set()

    def _cancelled_by_etcd(self, answer: Any) -> None:
        if answer.compact_revision:
            raise Compacted(self._place.revision, Revision(answer.compact_revision + 1))
        if _DENIED in answer.cancel_reason:
            # etcd also answers this for an expired token
            if self._token_renewed:
                raise permission_denied()
            self._token_renewed = True
            self._link.forget_token()
        raise Refused(answer.cancel_reason or "ended the watch", seen=Seen.NO)

    async def _until_read(self) -> None:
        # Answers that wait in the stream cost several turns of the loop each, so a busy reader would fall behind
        while len(self._events) > _MOST_AHEAD:
            self._emptied = anyio.Event()
            await self._emptied.wait()


async def _read(stream: Any) -> Any:
    answer = await of_grpc(stream.read())
    if not hasattr(answer, "events"):  # gRPC's end of stream
        raise Refused("ended the watch", seen=Seen.NO)
    return answer
