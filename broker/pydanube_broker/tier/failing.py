"""Topics whose work in the tier failed: each is tried again after a pause that grows, while the others go on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import ClusterError

log = logging.getLogger("pydanube.tier")

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


@dataclass(slots=True)
class Failure:
    """Why a topic's work failed, how often in a row, and when it is tried again."""

    error: ClusterError
    count: int
    again_s: float  # of the loop's clock, so that a step of the wall clock does not make it an hour


class Failures(dict[int, Failure]):
    """The failures by topic id. `event`: the log event of each."""

    def __init__(self, event: str) -> None:
        super().__init__()
        self._event = event

    def pausing(self, topic_id: int) -> bool:
        """Return whether a topic is not to be tried yet."""
        failure = self.get(topic_id)
        return failure is not None and asyncio.get_running_loop().time() < failure.again_s

    def note(
        self, topic_id: int, topic: str, error: ClusterError, *, more: int = 1, at_once: bool = False
    ) -> None:
        """Note that the work of a topic failed.

        Args:
            more: how much that adds to the failures in a row.
            at_once: no pause while these are one or two.
        """
        former = self.get(topic_id)
        count = 1 if former is None else former.count + more
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(count - 1, 6))
        if at_once and count <= 2:
            pause_s = 0.0
        self[topic_id] = Failure(error, count, asyncio.get_running_loop().time() + pause_s)
        log.warning(
            self._event,
            extra={
                "topic": topic,
                "code": error.code,
                "error": error.message,
                "attempts": count,
                "again_in_s": pause_s,
            },
        )
