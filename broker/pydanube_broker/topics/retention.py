"""How much of a topic is kept, and which part of the journal is deleted without a cold tier.

With the cold tier on, retention deletes whole objects (`tier.upkeep`), and the journal does not keep messages that an
object holds: `journal.retention_*` then makes the broker tier early, and deletes nothing untiered. Without it, the
journal holds everything, and both the policies and `journal.retention_*` trim it, by segments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydanube_broker.settings.sections import Journal
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.topic import Topic, earliest_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How much of a topic is kept. None: everything. Messages below `from_offset` may go regardless of the others.

    Whole objects and segments go, as long as at least `bytes` stay.
    """

    bytes: int | None = None
    age_ms: int | None = None
    from_offset: int | None = None
    drop_unread: bool = False

    @classmethod
    def of(cls, limits: Limits) -> Keep:
        """Return a topic's limits: its own policies, else its namespace's. 0 is no limit."""
        return cls(
            bytes=limits.retention_bytes or None,
            age_ms=limits.retention_age_s * 1000 or None,
            from_offset=limits.retention_offset or None,
            drop_unread=bool(limits.drop_unread),
        )

    @property
    def everything(self) -> bool:
        return self.bytes is None and self.age_ms is None and self.from_offset is None

    def may_go(self, *, end: int, newest_ms: int, bytes_left: int, now: int, slowest: int | None) -> bool:
        """Return whether the oldest part of a topic may go: its offsets end at `end`, and `bytes_left` remain without it."""
        if slowest is not None and end > slowest and not self.drop_unread:
            return False
        return (
            (self.age_ms is not None and newest_ms < now - self.age_ms)
            or (self.bytes is not None and bytes_left >= self.bytes)
            or (self.from_offset is not None and end <= self.from_offset)
        )


def slowest_cursor(topic: Topic) -> int | None:
    """Return the lowest floor of all subscriptions, restorable ones included, or None if there are none."""
    pumps = topic.subscriptions.values()
    served = {pump.subscription_id for pump in pumps}
    deleted = [cursor.floor for number, cursor in topic.state.cursors.items() if number not in served]
    return min((*(pump.floor for pump in pumps), *deleted), default=None)


class JournalRetention:
    """Applies retention to the journal, every few seconds. Single user: the loop."""

    def __init__(self, hub: Hub, settings: Journal) -> None:
        self._hub = hub
        self._settings = settings
        self.wanted: dict[int, int] = {}  # audit topic id -> offset up to which the settings delete it

    def apply(self) -> None:
        """Delete all that exceeds the settings and, without a cold tier, the policies."""
        sealed = self._hub.journal.sealed()
        self._by_settings(sealed)
        if not self._hub.tiering:
            self._by_policies(sealed)

    def _by_settings(self, sealed: Iterable[tuple[int, int, Any]]) -> None:
        """Give up the oldest segments beyond `journal.retention_bytes` and `journal.retention_age`, of all topics alike."""
        limits = self._settings
        if limits.retention_bytes is None and limits.retention_age is None:
            return
        sealed = list(sealed)
        excess = sum(size for _, size, _ in sealed) - (limits.retention_bytes or 0)
        oldest_ms = None if limits.retention_age is None else earliest_ms() - int(limits.retention_age * 1000)
        for _, size, runs in sealed:
            too_big = limits.retention_bytes is not None and excess > 0
            too_old = oldest_ms is not None and all(
                self._newest_ms(topic_id, run.last_time_ms) < oldest_ms for topic_id, run in runs.items()
            )
            if not (too_big or too_old):
                return
            excess -= size
            for topic_id, run in runs.items():
                self._hub.give_up(topic_id, self._allowed(topic_id, run.end))

    def _allowed(self, topic_id: int, end: int) -> int:
        """Return the offset up to which to trim a topic.

        A mirror is not trimmed, because it follows its source. An audit topic only up to its begin, which is moved first.
        """
        topic = self._hub.topics.get(topic_id)
        if topic is not None and topic.link is not None and not self._hub.tiering:
            return 0
        if topic is None or self._hub.tiering or not topic.options.topic.is_audit:
            return end
        self.wanted[topic_id] = end
        return min(end, topic.gate.limits.retention_offset)

    def _newest_ms(self, topic_id: int, stamped_ms: int) -> int:
        """Return the newest append time, corrected for a clock that ran ahead."""
        topic = self._hub.topics.get(topic_id)
        return stamped_ms if topic is None else min(stamped_ms, topic.state.append_time_ms)

    def _by_policies(self, sealed: Iterable[tuple[int, int, Any]]) -> None:
        """Trim each topic by its own policies, as far as it is in sealed segments."""
        now = earliest_ms()
        of_topics: dict[int, list[Any]] = {}
        for _, _, runs in sealed:
            for topic_id, run in runs.items():
                of_topics.setdefault(topic_id, []).append(run)
        for topic_id, found in of_topics.items():
            if (topic := self._hub.topics.get(topic_id)) is not None:
                topic.trim(self._start_after(topic, Keep.of(topic.gate.limits), found, now))

    def forecast(self, topic: Topic, keep: Keep) -> tuple[int, int]:
        """Return where a topic would begin under these limits, and the bytes that would be deleted."""
        found = [runs[topic.topic_id] for _, _, runs in self._hub.journal.sealed() if topic.topic_id in runs]
        start, stored_bytes = (
            self._start_after(topic, keep, found, earliest_ms()),
            self._hub.journal.stored_bytes,
        )
        return start, stored_bytes(topic.topic_id, topic.start_offset) - stored_bytes(topic.topic_id, start)

    def _start_after(self, topic: Topic, keep: Keep, runs: Iterable[Any], now: int) -> int:
        """Return where a topic begins without its oldest runs that may go."""
        start = topic.start_offset
        if keep.everything:
            return start
        slowest = slowest_cursor(topic)
        for run in runs:
            if run.end <= start:
                continue
            if not keep.may_go(
                end=run.end,
                newest_ms=self._newest_ms(topic.topic_id, run.last_time_ms),
                bytes_left=self._hub.journal.stored_bytes(topic.topic_id, run.end),
                now=now,
                slowest=slowest,
            ):
                break
            start = run.end
        return start
