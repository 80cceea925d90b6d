"""The parts of its receiver and its client that a consumer's lane uses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydanube_core.errors import ClusterError

from pydanube.facts import ClientEventKind
from pydanube.message import Delivered, Lane
from pydanube.options import ReceiverOptions
from pydanube.receiving.consume_counters import ConsumeCounters
from pydanube.receiving.withheld import Behind
from pydanube.retry import Retry
from pydanube.wire.transport import Pause, Transport, sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """The parts of its receiver and its client that a lane uses. Its credit is its share of the receiver's."""

    topic: str
    partition: int | None
    concrete_topic: str
    receiver: ReceiverOptions
    # The consumer goes on with its other topics after such an error
    may_leave: tuple[type[ClusterError], ...]
    credit_messages: int
    credit_bytes: int
    retry: Retry
    locate: Callable[[str], Coroutine[Any, Any, Transport]]
    pause: Pause = sleep
    ready: Callable[[Delivered], None]
    handed_out: Callable[[Lane], int]  # of the lane's delivery that is being handed out
    position: Callable[[], tuple[int, int]]  # moves when the application is handed something, of any lane
    give_back: Callable[[Lane, Sequence[int]], list[int]]  # of these ranges, those not handed out
    reply: Callable[[str, str, bytes], Coroutine[Any, Any, None]]
    decode: Callable[[Any, Callable[..., Any] | None], Coroutine[Any, Any, Any]]
    changed: Callable[[], None]  # the lane ended, failed, or its session changed
    emit: Callable[[ClientEventKind, str, int, str], None]
    # Gives back those not handed out that came behind these messages of a delivery, with their keys
    behind: Callable[[Lane, Delivered, Sequence[int]], Behind] = lambda *_: Behind([], {}, ())
    counters: ConsumeCounters = field(default_factory=ConsumeCounters)
