"""The messages that one `send_many` has stored so far: answered batches, as offset ranges."""

from __future__ import annotations

from collections import deque

from pydanube_core.errors import ClusterError

from pydanube.facts import OffsetRange, SendSummary
from pydanube.sending.outbound import OutBatch
from pydanube.wire.transport import copy_of


class Ledger:
    """Unanswered batches in order, and the offsets of answered ones as merged ranges. Bounded by the window."""

    __slots__ = ("_count", "_pending", "_ranges")

    def __init__(self) -> None:
        self._pending: deque[tuple[OutBatch, int, int]] = deque()  # batch, first index, messages
        self._ranges: dict[int | None, list[list[int]]] = {}
        self._count = 0

    def note(self, batch: OutBatch, messages: int) -> None:
        """Record that the last `messages` messages of a batch were added by this call."""
        first = len(batch.payloads) - messages
        if self._pending:
            last, at, count = self._pending[-1]
            if last is batch and at + count == first:
                self._pending[-1] = (batch, at, count + messages)
                return
        self._pending.append((batch, first, messages))

    def _settle(self, batch: OutBatch, first: int, messages: int) -> None:
        if batch.error is not None:
            batch.error_seen = True
            raise copy_of(batch.error)
        self._count += messages
        start = batch.base_offset + first
        ranges = self._ranges.setdefault(batch.partition, [])
        if ranges and ranges[-1][1] == start:
            ranges[-1][1] = start + messages
        else:
            ranges.append([start, start + messages])

    def collect(self) -> None:
        """Turn answered batches into ranges, so that a long run does not keep them all."""
        while self._pending and self._pending[0][0].answered:
            self._settle(*self._pending.popleft())

    async def rest(self) -> None:
        """Wait until all batches are answered. Raises the first failure."""
        while self._pending:
            await self._pending[0][0].wait()
            self._settle(*self._pending.popleft())

    async def failed(self, error: ClusterError, durability: str) -> ClusterError:
        """Wait until all batches are answered. Return a copy of `error` with the ranges that were stored."""
        while self._pending:
            batch, first, messages = self._pending.popleft()
            await batch.wait()
            if batch.error is None:
                self._settle(batch, first, messages)
            else:
                batch.error_seen = True
        final = copy_of(error, acknowledged=self._count)
        # set on the instance, because the class of the error must not change
        final.acknowledged = self.summary(durability)  # type: ignore[attr-defined]
        return final

    def summary(self, durability: str) -> SendSummary:
        return SendSummary(
            count=self._count,
            ranges=tuple(
                OffsetRange(partition=partition, first_offset=start, last_offset=end - 1)
                for partition, ranges in self._ranges.items()
                for start, end in ranges
            ),
            durability=durability,
        )
