"""How long to observe, and how long to wait before something is called wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SHORTEST_ALLOWED_AGE_S: Final = 1.0
LEAST_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisOptions:
    """The settings `[diagnosis]`, and what follows from them. Reports give their own."""

    sample_interval_s: float = 5.0
    window_s: float = 300.0
    stuck_after_s: float = 300.0
    open_after: int = 2
    close_after: int = 3
    allowed_messages: int = 0  # unread messages that are no news
    slow_eta_s: float = 3600.0

    def __post_init__(self) -> None:
        assert self.sample_interval_s > 0
        assert self.window_s > 0
        assert self.open_after >= 1
        assert self.close_after >= 1

    @property
    def allowed_age_s(self) -> float:
        """The age up to which unread messages are not late: two samples (10 s by default), at least a second."""
        return max(SHORTEST_ALLOWED_AGE_S, 2 * self.sample_interval_s)

    @property
    def patience_s(self) -> float:
        """The time after which a client that went is missed: half a minute, enough for a process to restart."""
        return min(LEAST_PATIENCE_S, self.stuck_after_s)
