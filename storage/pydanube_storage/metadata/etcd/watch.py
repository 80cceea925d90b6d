"""A watch on etcd that survives reconnects: each event once and in order, from whichever member.

A task reads the stream and keeps one answer ahead of the reader; while the reader is busy nothing more is read, and
gRPC's window holds etcd back. The place (`revision`, how many events of it were taken over) moves with what was read;
a stream that ends is opened anew from there, on the next member, and what it repeats is skipped.

A member that is cut off with us ends the stream (`hasleader`), a member that hears nothing is noticed by the pings of
the connection. etcd tells a quiet watch every ten minutes how far it is, so that a compaction elsewhere does not
reach its place.
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

_PAUSES_S: Final = (0.0, 0.1, 0.3, 1.0)  # before opening it anew: the first time, the second …
_DENIED: Final = "permission denied"


class EtcdWatch:
    """One reader's events; used by one task at a time, fed by `run`."""

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
        self._note = note  # is told every answer's header
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
        await anyio.lowlevel.checkpoint_if_cancelled()  # a cancelled reader must not be handed an event
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
        """End the watch; iterating raises `ClosedResource`."""
        self._events.clear()
        self._end(ClosedResource("the watch is closed", resource="watch"))
        self._scope.cancel()

    def _end(self, failure: Exception) -> None:
        self._failure = self._failure or failure
        self._filled.set()

    # The task's side

    async def run(self) -> None:
        """Feed the reader until `close`, or until the needed history is gone or etcd refuses the watch."""
        with self._scope:
            while True:
                await anyio.sleep(_PAUSES_S[min(self._attempts, len(_PAUSES_S) - 1)])
                self._attempts += 1
                try:
                    await self._follow()
                except Refused:
                    continue  # the link speaks to the next member from now on
                except ClusterError as error:
                    self._end(error)
                    return

    async def _follow(self) -> None:
        start = self._place.revision
        member, stream = await self._link.open_watch(self._messages.watch(self._range, from_revision=start))
        counted = Place(Revision(0), 0)  # of this stream: the place behind what it has brought
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
                    # The stream begins early and may repeat what an earlier one brought
                    if counted > self._place:
                        self._take(each, counted)
                if not answer.events and not answer.created:  # progress: etcd has brought all up to here
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
            # So it answers to a token that has run out, too
            if self._token_renewed:
                raise permission_denied()
            self._token_renewed = True
            self._link.forget_token()
        raise Refused(answer.cancel_reason or "ended the watch", seen=Seen.NO)

    async def _until_read(self) -> None:
        while self._events:
            self._emptied = anyio.Event()
            await self._emptied.wait()


async def _read(stream: Any) -> Any:
    answer = await of_grpc(stream.read())
    if not hasattr(answer, "events"):  # gRPC's mark of the end
        raise Refused("ended the watch", seen=Seen.NO)
    return answer
