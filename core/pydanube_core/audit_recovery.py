"""A recovery of a broker's directory by `danube cluster recover`, for the audit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecovery:
    """One recovery. `by`: the principal that called it."""

    recovery: str
    by: str
    time_ms: int

    def __post_init__(self) -> None:
        if not isinstance(self.recovery, str) or not isinstance(self.by, str):
            raise TypeError("recovery and by are texts")
        if not isinstance(self.time_ms, int):
            raise TypeError("time_ms is an integer")
