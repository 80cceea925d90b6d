"""The options of a producer's lane, and its counters."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from pydanube_core.batch import Codec
from pydanube_core.errors import ClusterError

from pydanube.facts import ClientEventKind
from pydanube.options import ProducerOptions
from pydanube.retry import Retry
from pydanube.sending.outbound import OutBatch
from pydanube.wire.transport import Pause, Transport, sleep


@dataclass(slots=True, kw_only=True)
class LaneCounters:
    """Counters shared by the lanes of a producer."""

    acknowledged_messages: int = 0
    failed_messages: int = 0
    duplicate_messages: int = 0
    written_batches: int = 0
    resent_batches: int = 0
    reconnects: int = 0
    sessions: int = 0
    throttled_ms: int = 0
    throttled_by: str | None = None

    def throttled(self, ms: int, quota: str) -> None:
        """Count milliseconds for which the broker reads nothing more, because a quota is used up."""
        self.throttled_ms += ms
        self.throttled_by = quota


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOptions:
    """The parts of its producer and its client that a lane uses."""

    topic: str  # as the user names it
    partition: int | None
    concrete_topic: str
    producer: ProducerOptions
    codec: Codec
    retry: Retry
    locate: Callable[[str], Coroutine[Any, Any, Transport]]
    pause: Pause = sleep
    released: Callable[[OutBatch], None]  # the batch was answered: its room in the window is free again
    died: Callable[[ClusterError], None]  # no message of this lane will ever go out again
    emit: Callable[[ClientEventKind, str, int, str], None]
    # Called with True while the partition's owner does not answer
    down: Callable[[bool], None] = lambda _: None
    # Gives a batch that was never sent to another partition. Returns False if none may take it.
    reroute: Callable[[OutBatch], bool] = lambda _: False
    # No caller waits for receipts: they may come with the broker's next message
    receipts_may_wait: bool = False
    counters: LaneCounters = field(default_factory=LaneCounters)
