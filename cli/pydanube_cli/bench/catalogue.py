"""Which scenarios there are and what a run of one is made of; importable without what measuring needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_MESSAGES", "DEFAULT_PRODUCERS", "DEFAULT_RUNS", "LATER", "WRITERS", "Plan"]

WRITERS: Final = 8

DEFAULT_MESSAGES: Final = {
    "e2e": 1_000_000,
    "publish": 1_000_000,
    "consume": 1_000_000,
    "latency": 2_000,
    "await": 100_000,
    "backlog": 5_000_000,
}
DEFAULT_PRODUCERS: Final = {"await": 256, "backlog": WRITERS}
DEFAULT_RUNS: Final = {"backlog": 3}
LATER: Final = {"topics": "cluster", "unary": "speed", "replay": "tier", "tier": "tier"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    scenario: str
    size: int
    messages: int
    producers: int
    consumers: int
    each: bool
    compression: str
    timeout_s: float

    @property
    def shares(self) -> list[int]:
        """How many messages each producer sends."""
        base, more = divmod(self.messages, self.producers)
        return [base + (index < more) for index in range(self.producers)]
