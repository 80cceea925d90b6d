"""Changes as they are kept in the metadata store until they cannot be undone any more.

A record is written before the effect (`applying`) and again after it (`applied`). One that is still `applying` when
the admin core starts was cut off: what it did is not known, and its undo must work either way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import Conflict
from pydanube_core.facts import StateItem

from pydanube_admin.identifiers import is_id

PREFIX: Final = "changes/"
APPLYING, APPLIED, FAILED, INTERRUPTED, UNDONE = "applying", "applied", "failed", "interrupted", "undone"
UNDOING: Final = "undoing"  # an undo was begun: whether the change still stands is not known
MAX_IMAGE_BYTES: Final = 160 * 1024
UNDO: Final = "changes.undo"
SWEEP_MS: Final = 60_000
MAX_CHANGES: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRecord:
    """One change that can be undone until `undo_until_ms`. `image`: what its undo needs of the state before."""

    call_id: str
    plan_id: str
    operation: str
    arguments: Mapping[str, Any]
    principal: str
    at_ms: int
    undo_until_ms: int
    diff: list[dict[str, Any]]
    image: Mapping[str, Any]
    result: Mapping[str, Any] | None = None
    state: str = APPLYING
    undone_by: str | None = None

    def to_bytes(self) -> bytes:
        return json.dumps({"version": 1, **asdict(self)}, default=str).encode()

    @classmethod
    def from_item(cls, item: StateItem) -> ChangeRecord:
        body = json.loads(item.value)
        body.pop("version")
        return cls(**body)

    def fits(self) -> bool:
        """Whether it is small enough to be kept."""
        return len(self.to_bytes()) <= MAX_IMAGE_BYTES


class Changes:
    """The changes of the cluster, over the broker's port."""

    def __init__(self, port: ClusterPort) -> None:
        self._port = port
        self._swept_ms = 0

    async def get(self, call_id: str) -> tuple[ChangeRecord, int] | None:
        item = await self._port.read_state(PREFIX + call_id) if is_id(call_id) else None
        return None if item is None else (ChangeRecord.from_item(item), item.revision)

    async def was_made(self, call_id: str, operation: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a change, or an undo, is known to have been made to its end."""
        if operation == UNDO:
            undone = await self.get(str(arguments.get("call_id")))
            return undone is not None and undone[0].undone_by == call_id
        kept = await self.get(call_id)
        return kept is not None and kept[0].state in (APPLIED, UNDOING, UNDONE)

    async def put(self, record: ChangeRecord, *others: tuple[str, bytes]) -> None:
        """Keep a change; `others` go in the same transaction."""
        await self._port.write_state({PREFIX + record.call_id: record.to_bytes(), **dict(others)})

    async def forget(self, call_id: str) -> None:
        await self._port.write_state({PREFIX + call_id: None})

    async def cut_off(self) -> list[ChangeRecord]:
        """Changes that were begun and never ended."""
        found = []
        after: str | None = None
        while items := await self._port.list_state(PREFIX, after=after):
            found += [record for item in items if (record := ChangeRecord.from_item(item)).state == APPLYING]
            after = items[-1].key
        return found

    async def sweep(self, now_ms: int) -> None:
        """Let go of changes whose grace is over, and of the oldest beyond 10 000; at most once a minute."""
        if 0 <= now_ms - self._swept_ms < SWEEP_MS:  # below 0: it was a clock that ran ahead
            return
        self._swept_ms = now_ms
        old: list[str] = []
        count, after = 0, None
        while items := await self._port.list_state(PREFIX, after=after):
            count += len(items)
            for item in items:
                record = ChangeRecord.from_item(item)
                if record.state == APPLYING:
                    continue
                if record.at_ms > now_ms + SWEEP_MS:  # the same: its grace begins now
                    until_ms = now_ms + record.undo_until_ms - record.at_ms
                    await self.put(replace(record, at_ms=now_ms, undo_until_ms=until_ms))
                elif record.undo_until_ms <= now_ms:
                    old.append(item.key)
            after = items[-1].key
        if count - len(old) > MAX_CHANGES:
            oldest = await self._port.list_state(PREFIX, limit=min(1000, count - len(old) - MAX_CHANGES))
            old += [item.key for item in oldest if item.key not in old]
        for start in range(0, len(old), 90):
            try:
                await self._port.write_state(dict.fromkeys(old[start : start + 90]))
            except Conflict:
                return
