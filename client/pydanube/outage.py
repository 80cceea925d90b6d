"""Log that the client waits for its broker: once per outage, not per topic or retry, and again if the reason changes.

Parts that wait are grouped by waiter (a producer, a consumer). The outage is over when none is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

NOTICE_S: Final = 1.0  # a broker that restarts, or a connection that breaks once, is not worth a line
AGAIN_S: Final = 4.0  # between two lines of one outage. The second comes when the reason has changed

_log = logging.getLogger("pydanube")


class Outage:
    """The outages of one client.

    Args:
        url: the address that it was given.
        max_elapsed_s: how long it tries.
    """

    def __init__(self, url: str, max_elapsed_s: float) -> None:
        self._url = url
        self._max_elapsed_s = max_elapsed_s
        # waiting part → since when, a sentence with its url, and the reason. The longest waiting comes first
        self._waiting: dict[tuple[int, str], tuple[float, str, str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._told = False
        self._told_reason, self._told_at_s = "", 0.0
        self._ids = 0

    def waiter(self, what: str) -> Waiter:
        """Return a waiter. `what` names it in logs: `a producer on /default/orders`."""
        self._ids += 1
        return Waiter(self, self._ids, what)

    def waiting(self) -> list[str]:
        """Return a sentence with broker and reason for each waiting part."""
        return [f"{sentence}: {reason or 'no answer yet'}" for _, sentence, reason in self._waiting.values()]

    def begin(self, who: tuple[int, str], what: str, url: str, reason: str) -> None:
        """Note that `who` waits from now on, or for another reason."""
        loop = asyncio.get_running_loop()
        since_s = self._waiting[who][0] if who in self._waiting else loop.time()
        self._waiting[who] = (since_s, f"{what} waits for the broker at {url or self._url}", reason)
        if self._timer is None and not self._told:
            self._timer = loop.call_later(NOTICE_S, self._tell)
        elif self._told and reason != self._told_reason and loop.time() - self._told_at_s >= AGAIN_S:
            self._tell()

    def end(self, who: tuple[int, str]) -> None:
        """Note that `who` waits no longer: it got its answer, or gave up."""
        if self._waiting.pop(who, None) is None or self._waiting:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._told:
            self._told = False
            _log.info("the broker at %s is waited for no longer", self._url)

    def end_all(self, waiter: int) -> None:
        """Note that nothing of this waiter waits any longer."""
        for who in [who for who in self._waiting if who[0] == waiter]:
            self.end(who)

    def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        since_s, sentence, reason = next(iter(self._waiting.values()))
        early_s = since_s + NOTICE_S - loop.time()
        if early_s > 0:  # those that waited when the timer was set have their answer
            self._timer = loop.call_later(early_s, self._tell)
            return
        self._timer = None
        if self._told and reason == self._told_reason:
            return  # another part waits for another reason
        self._told_reason, self._told_at_s = reason, loop.time()
        others = len(self._waiting) - 1
        _log.warning(
            "%s%s for up to %g s: %s",
            sentence,
            f" (and {others} more)" if others else "",
            self._max_elapsed_s,
            reason or "it has not answered yet",
        )
        self._told = True


class Waiter:
    """One producer, consumer or reader that may have to wait, over all its partitions."""

    __slots__ = ("_id", "_outage", "_what")

    def __init__(self, outage: Outage, id: int, what: str) -> None:
        self._outage = outage
        self._id = id
        self._what = what

    def begin(self, part: str, url: str, reason: str) -> None:
        """Note that the connection for `part` is lost."""
        self._outage.begin((self._id, part), self._what, url, reason)

    def end(self, part: str) -> None:
        """Note that the connection for `part` is back, or given up."""
        self._outage.end((self._id, part))

    def end_all(self) -> None:
        """Note that nothing waits any longer: the owner has closed."""
        self._outage.end_all(self._id)

    @contextmanager
    def asking(self, part: str) -> Iterator[Callable[[str], None]]:
        """Context in which an answer is awaited, over all retries. Call its value with each failure."""
        self.begin(part, "", "")
        try:
            yield lambda reason: self.begin(part, "", reason)
        finally:
            self.end(part)
