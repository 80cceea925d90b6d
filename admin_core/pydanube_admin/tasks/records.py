"""Long operations as they are kept in the metadata store, while they run and for a day after."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError
from pydanube_core.facts import StateItem

from pydanube_admin.audit.chain import redacted

__all__ = ["TaskRecord", "Tasks"]

PREFIX: Final = "tasks/"
KEPT_MS: Final = 86_400_000
MAX_TASKS: Final = 500
RUNNING, DONE, FAILED, CANCELLED, INTERRUPTED = "running", "done", "failed", "cancelled", "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One call of a long operation; its id is the call's with another letter."""

    task_id: str
    call_id: str
    operation: str
    arguments: Mapping[str, Any]
    principal: str
    started_ms: int
    state: str = RUNNING
    ended_ms: int | None = None
    code: str | None = None  # of the error

    def to_bytes(self) -> bytes:
        return json.dumps({"version": 1, **asdict(self)}, default=str).encode()

    @classmethod
    def from_item(cls, item: StateItem) -> TaskRecord:
        body = json.loads(item.value)
        body.pop("version")
        return cls(**body)


class Tasks:
    """The long operations of the cluster; those of this process can be cancelled."""

    def __init__(self, port: ClusterPort) -> None:
        self._port = port
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._cancelled: set[str] = set()

    async def begin(
        self, *, call_id: str, operation: str, arguments: Mapping[str, Any], principal: str, now_ms: int
    ) -> TaskRecord:
        """The current task carries it out; `end` must follow."""
        record = TaskRecord(
            task_id="t" + call_id[1:],
            call_id=call_id,
            operation=operation,
            arguments=redacted(arguments),
            principal=principal,
            started_ms=now_ms,
        )
        await self._sweep(now_ms)
        await self._port.write_state({PREFIX + record.task_id: record.to_bytes()})
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        self._running[record.task_id] = task
        return record

    def is_cancelled(self, record: TaskRecord) -> bool:
        """Whether its task ends because `tasks.cancel` asked for it."""
        return record.task_id in self._cancelled

    async def end(self, record: TaskRecord, error: BaseException | None, now_ms: int) -> None:
        """Keep what became of it."""
        self._running.pop(record.task_id, None)
        cancelled = record.task_id in self._cancelled
        self._cancelled.discard(record.task_id)
        state, code = DONE, None
        if isinstance(error, ClusterError):
            state, code = FAILED, error.code
        elif error is not None:
            state = CANCELLED if cancelled or isinstance(error, asyncio.CancelledError) else FAILED
            code = None if state == CANCELLED else "INTERNAL"
        ended = replace(record, state=state, ended_ms=now_ms, code=code)
        await self._port.write_state({PREFIX + record.task_id: ended.to_bytes()})

    def cancel(self, task_id: str) -> bool:
        """Ask a running one of this process to stop; whether it runs here."""
        task = self._running.get(task_id)
        if task is None:
            return False
        self._cancelled.add(task_id)
        task.cancel()
        return True

    async def get(self, task_id: str) -> TaskRecord | None:
        item = None if "/" in task_id else await self._port.read_state(PREFIX + task_id)
        return None if item is None else TaskRecord.from_item(item)

    async def list(self) -> list[TaskRecord]:
        """Every one that is kept, the newest first."""
        items = await self._port.list_state(PREFIX, descending=True)
        return [TaskRecord.from_item(item) for item in items]

    async def tidy_up(self, now_ms: int) -> None:
        """Say of those that an earlier life left running that they were cut off."""
        for record in await self.list():
            if record.state == RUNNING and record.task_id not in self._running:
                ended = replace(record, state=INTERRUPTED, ended_ms=now_ms)
                await self._port.write_state({PREFIX + record.task_id: ended.to_bytes()})

    async def _sweep(self, now_ms: int) -> None:
        kept = await self.list()
        old = [
            record
            for number, record in enumerate(kept)
            if record.state != RUNNING and (number >= MAX_TASKS or record.started_ms + KEPT_MS <= now_ms)
        ]
        for start in range(0, len(old), 90):
            await self._port.write_state({PREFIX + each.task_id: None for each in old[start : start + 90]})
