"""The console's cluster, the state of its connection, and the options of the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydanube_core.errors import ClusterError

from pydanube_tui.actions import ACTIONS, Action

FASTEST_S: Final = 0.25
SLOWEST_S: Final = 300.0
RETRY_S: Final = 5.0  # at most, between two tries


def bearable(refresh_s: float) -> float:
    """Return the permitted refresh interval nearest to the wish."""
    return max(FASTEST_S, min(SLOWEST_S, refresh_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster to choose from."""

    name: str
    admin_url: str
    broker_url: str
    production: bool = False  # always shown in colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags and files with which the console was started."""

    refresh_s: float = 2.0
    allow_writes: bool = False
    theme: str = "dark"
    ascii_only: bool = False
    no_colour: bool = False
    principal: str | None = None
    timeout_s: float = 10.0
    idle_s: float | None = None  # the session ends after so long without a key or a click
    actions: Mapping[str, Action] = field(default_factory=lambda: ACTIONS)
    state_file: Path | None = None  # where columns and order are remembered. None: nowhere
    files: Path = Path()  # where copies, exports and pictures go
    now: Callable[[], float] = time.time


class State(StrEnum):
    """The state of the connection."""

    CONNECTING = "connecting"
    LIVE = "live"
    LOST = "lost"
    REFUSED = "refused"  # it answers, but not this


@dataclass(slots=True, kw_only=True)
class Connection:
    """The state, the time of the data, and the number of failed attempts."""

    state: State = State.CONNECTING
    as_of_ms: int | None = None
    tries: int = 0
    error: ClusterError | None = None

    def answered(self, as_of_ms: int) -> None:
        """Note a successful refresh, with the time of its data."""
        self.state, self.as_of_ms, self.tries, self.error = State.LIVE, as_of_ms, 0, None

    def failed(self, error: ClusterError) -> None:
        """Note a failed refresh: lost if a retry may help, else refused."""
        self.error = error
        self.tries += 1
        self.state = State.LOST if error.retryable else State.REFUSED

    def wait_s(self, refresh_s: float) -> float:
        """Return the seconds until the next attempt."""
        if self.state is State.LOST:
            return min(RETRY_S, 0.5 * float(2 ** min(self.tries - 1, 5)))
        return refresh_s

    def age_s(self, now_ms: int) -> float | None:
        """Return the age of the data."""
        return None if self.as_of_ms is None else max(0, now_ms - self.as_of_ms) / 1000

    def stale(self, now_ms: int, refresh_s: float) -> bool:
        """Return whether the data is older than it should be."""
        age_s = self.age_s(now_ms)
        return self.state is State.LOST or (age_s is not None and age_s > max(10.0, 3 * refresh_s))
