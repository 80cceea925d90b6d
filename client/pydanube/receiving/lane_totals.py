"""Sum the counters of a consumer's lanes, those that have left included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from pydanube.receiving.consume_lane import ConsumeLane


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTotals:
    """Sums of the counters of `ConsumeLane` with the same names."""

    received_messages: int = 0
    received_bytes: int = 0
    acked_messages: int = 0
    nacked_messages: int = 0
    redelivered_messages: int = 0
    stale_messages: int = 0
    stale_acks: int = 0
    reconnects: int = 0

    def plus(self, lanes: Iterable[ConsumeLane]) -> LaneTotals:
        """Return the sums with the present counters of these lanes added."""
        lanes = list(lanes)
        return LaneTotals(
            **{
                each.name: getattr(self, each.name) + sum(getattr(lane, each.name) for lane in lanes)
                for each in fields(self)
            }
        )
