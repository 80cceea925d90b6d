"""Reads that share requests, so that hundreds of concurrent reads cost etcd and this process few calls.

Up to `_ALONE` reads are sent at once, each alone. Further ones wait until one of those requests has ended, and share a
transaction that only reads. Each read is linearizable, because its request is sent after the read has begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from pydanube_core.errors import ClosedResource, ClusterError
from pydanube_core.generated import etcd_pb2 as pb

from pydanube_storage.metadata.etcd import link as api
from pydanube_storage.metadata.etcd.link import Method
from pydanube_storage.metadata.etcd.refusals import AnswerTooLarge
from pydanube_storage.metadata.model import MAX_OPERATIONS

_ALONE: Final = 8  # concurrent requests. Fewer would delay a lone read behind others

#: sends a request of a method and returns etcd's answer
Call = Callable[[Method, Any], Awaitable[Any]]
#: starts a task that outlives its caller
Start = Callable[[Callable[[], Awaitable[None]]], None]


@dataclass(slots=True, eq=False)
class _Read:
    """A read that waits for its request. `answer`: etcd's, or the error."""

    request: pb.RangeRequest
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: Any = None


class Reads:
    """See the module. Single user: the loop."""

    def __init__(self, call: Call, start: Start) -> None:
        self._call = call
        self._start = start
        self._under_way = 0
        self._due: deque[_Read] = deque()

    async def read(self, request: pb.RangeRequest) -> Any:
        """Return etcd's `RangeResponse`. Raises its errors, and `AnswerTooLarge`."""
        if self._under_way < _ALONE:
            self._under_way += 1
            try:
                return await self._call(api.RANGE, request)
            finally:
                self._ended()
        read = _Read(request)
        self._due.append(read)
        await read.done.wait()
        if isinstance(read.answer, Exception):
            raise read.answer
        return read.answer

    def close(self) -> None:
        """Fail the reads that wait."""
        while self._due:
            read = self._due.popleft()
            read.answer = _closed()
            read.done.set()

    def _ended(self) -> None:
        self._under_way -= 1
        if self._due:
            self._under_way += 1
            self._start(self._send)

    async def _send(self) -> None:
        reads = [self._due.popleft() for _ in range(min(MAX_OPERATIONS, len(self._due)))]
        try:
            if reads:
                await self._send_together(reads)
        finally:
            for read in reads:
                read.answer = _closed() if read.answer is None else read.answer
                read.done.set()
            self._ended()

    async def _send_together(self, reads: Sequence[_Read]) -> None:
        request = pb.TxnRequest(success=[pb.RequestOp(request_range=read.request) for read in reads])
        try:
            answer = await self._call(api.READS, request)
        except AnswerTooLarge as error:
            if len(reads) == 1:
                reads[0].answer = error
            else:
                for read in reads:
                    await self._send_together([read])
        except ClusterError as error:
            for read in reads:
                read.answer = error
        else:
            for read, response in zip(reads, answer.responses, strict=True):
                read.answer = response.response_range
                read.answer.header.CopyFrom(answer.header)


def _closed() -> ClosedResource:
    return ClosedResource("the metadata store is closed", resource="EtcdStore")
