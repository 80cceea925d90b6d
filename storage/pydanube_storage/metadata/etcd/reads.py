"""Reads of single keys that share requests, so that hundreds of concurrent reads cost etcd and this process few calls.

Up to `_ALONE` reads are sent at once, each alone. Further ones wait until one of those requests has ended, and share a
transaction that only reads. Each read is linearizable, because its request is sent after the read has begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from pydanube_core.errors import ClosedResource, ClusterError

from pydanube_storage.metadata.etcd import link as api
from pydanube_storage.metadata.etcd.link import Method
from pydanube_storage.metadata.etcd.messages import Messages
from pydanube_storage.metadata.model import MAX_OPERATIONS, KeyValue

_ALONE: Final = 8  # concurrent requests. Fewer would delay a lone read behind others

#: sends a request of a method and returns etcd's answer
Call = Callable[[Method, Any], Awaitable[Any]]
#: starts a task that outlives its caller
Start = Callable[[Callable[[], Awaitable[None]]], None]


@dataclass(slots=True, eq=False)
class _Read:
    """A read that waits for its request. `error`: why it has no answer."""

    key: str
    done: anyio.Event = field(default_factory=anyio.Event)
    item: KeyValue | None = None
    error: ClusterError | None = None


class KeyReads:
    """See the module. Single user: the loop."""

    def __init__(self, call: Call, messages: Messages, start: Start) -> None:
        self._call = call
        self._messages = messages
        self._start = start
        self._under_way = 0
        self._due: deque[_Read] = deque()

    async def get(self, key: str) -> KeyValue | None:
        """Read a key like `MetadataStore.get`."""
        if self._under_way < _ALONE:
            self._under_way += 1
            try:
                answer = await self._call(api.RANGE, self._messages.get(key))
            finally:
                self._ended()
            return self._item(answer)
        read = _Read(key)
        self._due.append(read)
        await read.done.wait()
        if read.error is not None:
            raise read.error
        return read.item

    def close(self) -> None:
        """Fail the reads that wait."""
        while self._due:
            read = self._due.popleft()
            read.error = _closed()
            read.done.set()

    def _ended(self) -> None:
        self._under_way -= 1
        if self._due:
            self._under_way += 1
            self._start(self._send)

    async def _send(self) -> None:
        reads = [self._due.popleft() for _ in range(min(MAX_OPERATIONS, len(self._due)))]
        error: ClusterError | None = _closed()
        try:
            if reads:
                answer = await self._call(api.READS, self._messages.gets(read.key for read in reads))
                for read, response in zip(reads, answer.responses, strict=True):
                    read.item = self._item(response.response_range)
            error = None
        except ClusterError as failure:
            error = failure
        finally:
            for read in reads:
                read.error = error
                read.done.set()
            self._ended()

    def _item(self, found: Any) -> KeyValue | None:
        return self._messages.key_value(found.kvs[0]) if found.kvs else None


def _closed() -> ClosedResource:
    return ClosedResource("the metadata store is closed", resource="EtcdStore")
