"""For tests of faces: what the admin core keeps in a cluster, in tables (`MemoryCluster` is one)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pydanube_core.cluster_port import TopicKey
from pydanube_core.errors import ClusterError, Conflict, InvalidArgument
from pydanube_core.facts import LogLine, SettingFacts, StateItem, TopicFacts, TrafficFacts
from pydanube_core.positions import Position, PositionKind

FAILURE_POLICY: Final = {
    "max_redelivery_count": 5,
    "ack_timeout_ms": 30_000,
    "base_redelivery_delay_ms": 1_000,
    "max_redelivery_delay_ms": 60_000,
    "backoff_strategy": "exponential",
    "poison_policy": "block",
    "dead_letter_topic": None,
}


class MemoryState:
    """`StatePort` and `AuditPort`. `audit_error`, once set, is raised by every write of the audit."""

    def __init__(self) -> None:
        self._state: dict[str, StateItem] = {}
        self._revision = 0
        self.audit: list[bytes] = []
        self.audit_error: ClusterError | None = None

    async def read_state(self, key: str) -> StateItem | None:
        return self._state.get(key)

    async def list_state(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, descending: bool = False
    ) -> Sequence[StateItem]:
        found = [
            item
            for key, item in sorted(self._state.items(), reverse=descending)
            if key.startswith(prefix) and (after is None or (key < after if descending else key > after))
        ]
        return found[:limit]

    async def write_state(
        self, changes: Mapping[str, bytes | None], *, expected: Mapping[str, int | None] | None = None
    ) -> int:
        for key, revision in (expected or {}).items():
            present = self._state.get(key)
            if (None if present is None else present.revision) != revision:
                raise Conflict(f"{key} has changed", key=key)
        self._revision += 1
        for key, value in changes.items():
            if value is None:
                self._state.pop(key, None)
            else:
                self._state[key] = StateItem(key=key, value=value, revision=self._revision)
        return self._revision

    async def disconnect(self, session_id: str) -> bool:
        return False

    async def traffic(self, topic: str | None) -> TrafficFacts:
        return TrafficFacts(
            messages_in=0, bytes_in=0, messages_out=0, redelivered=0, publish_rejected=0, dropped=0
        )

    async def settings(self) -> Sequence[SettingFacts]:
        return ()

    async def log_lines(self, *, lines: int, level: str | None, since_ms: int | None) -> Sequence[LogLine]:
        return ()

    async def open_audit(self) -> tuple[int, bytes | None]:
        return len(self.audit), self.audit[-1] if self.audit else None

    async def append_audit(self, payloads: Sequence[bytes]) -> None:
        if self.audit_error is not None:
            raise self.audit_error
        self.audit += payloads

    async def read_audit(self, *, start: int, max_messages: int) -> tuple[int, Sequence[tuple[int, bytes]]]:
        return 0, list(enumerate(self.audit))[start : start + max_messages]


def changed(own: Mapping[str, int], changes: Mapping[str, int | None]) -> dict[str, int]:
    kept = {**own, **changes}
    return {name: value for name, value in kept.items() if value is not None}


def resolve(log: TopicFacts, position: Position) -> int:
    match position.kind:
        case PositionKind.EARLIEST:
            return log.start_offset
        case PositionKind.OFFSET if position.value > log.next_offset:
            raise InvalidArgument("beyond the end", field="position", value=str(position))
        case PositionKind.OFFSET:
            return max(log.start_offset, position.value)
        case _:
            return log.next_offset  # there are no messages, so none is younger than a time


def index_of(topics: Iterable[TopicFacts]) -> list[TopicKey]:
    """The topics as people name them, and who owns what holds their messages."""
    owners: dict[str, list[str | None]] = {}
    for each in topics:
        under = owners.setdefault(each.parent or each.topic, [])
        if not each.partitions:
            under.append(each.owner)
    return [TopicKey(*item) for item in owners.items()]
