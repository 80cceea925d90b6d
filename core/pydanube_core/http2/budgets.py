"""Budgets for useless behaviour of a peer, by kind. A peer that exceeds one loses its connection.

HTTP/2 lets a peer cause work at no cost of its own: requests reset immediately (CVE-2023-44487), endless SETTINGS, PING,
empty or unknown frames (CVE-2019-9512 and its siblings), windows opened byte by byte. Each of these is harmless now and
then. So each kind has a budget: a burst, refilled at a steady rate. When one is exceeded, the connection ends with
ENHANCE_YOUR_CALM. Times are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from pydanube_core.http2.codes import ConnectionFailure, ErrorCode


class BudgetKind(StrEnum):
    """The kinds of useless behaviour. The value is the reason in the log and in the metrics."""

    RESETS = "rapid_reset"
    FAULTS = "stream_errors"  # streams that we reset because of an error of the peer
    SETTINGS = "settings_flood"
    PINGS = "ping_flood"
    EMPTY_DATA = "empty_data_flood"
    PRIORITIES = "priority_flood"
    UNKNOWN = "unknown_frame_flood"
    TINY_WINDOWS = "tiny_window_updates"


#: kind → (burst, refill per second)
BUDGETS: Final[Mapping[BudgetKind, tuple[int, float]]] = MappingProxyType(
    {
        BudgetKind.RESETS: (1000, 100.0),  # a client that is stopped resets all its open streams
        BudgetKind.FAULTS: (100, 10.0),
        BudgetKind.SETTINGS: (50, 2.0),
        BudgetKind.PINGS: (200, 50.0),  # grpc's bandwidth estimators always have one pending
        BudgetKind.EMPTY_DATA: (200, 20.0),
        BudgetKind.PRIORITIES: (1000, 100.0),
        BudgetKind.UNKNOWN: (1000, 100.0),
        BudgetKind.TINY_WINDOWS: (1000, 100.0),
    }
)


class Budgets:
    """The remaining budgets of one connection, by kind."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: dict[BudgetKind, tuple[float, float]] = {}  # kind → (left, as of)

    def spend(self, kind: BudgetKind, now: float, count: int = 1) -> None:
        """Count one event, or more if it causes more work. Raises `ConnectionFailure` if the budget is used up."""
        burst, rate = BUDGETS[kind]
        left, since = self._left.get(kind, (float(burst), now))
        left = min(burst, left + (now - since) * rate) - count
        self._left[kind] = (left, now)
        if left < 0:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, kind.value)
