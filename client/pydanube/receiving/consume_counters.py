"""The counters of a consumer or reader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class ConsumeCounters:
    """Counts over all lanes, also those that have left, with the fields of `ConsumerStatistics`."""

    received_messages: int = 0
    received_bytes: int = 0
    acked_messages: int = 0  # in sessions that have ended
    nacked_messages: int = 0
    redelivered_messages: int = 0
    stale_messages: int = 0
    stale_acks: int = 0
    reconnects: int = 0
