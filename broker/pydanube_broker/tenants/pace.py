"""Pause a session while a quota that it counts against is used up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pydanube_broker.tenants.quotas import Share, Waited


class Pace:
    """See the module.

    Args:
        share: the accounts that the session counts against. None: none, because it has no topic yet.
        topic: its name in diagnosis.
        go_on: called when the debt is paid.
    """

    __slots__ = ("_go_on", "_share", "_topic", "slowed", "unreported")

    def __init__(self, share: Share | None = None, topic: str = "", go_on: Callable[[], None] = lambda: None):
        self.slowed = False
        self.unreported: Waited | None = None  # the last wait, until it is reported to the client
        self._share = share
        self._topic = topic
        self._go_on = go_on

    def check_publish(self) -> None:
        """Raise `QuotaExceeded` if nothing more may be published now."""
        if self._share is not None and self._share.on:
            self._share.check_publish()

    def count_published(self, messages: int, size: int) -> None:
        """Count published messages and their bytes. Pause the producer if its quota is used up."""
        if self._share is not None and self._share.on:
            self._wait(self._share.count_published(self._topic, messages, size))

    def count_delivered(self, messages: int, size: int) -> None:
        """Count delivered messages and their bytes. Pause delivery if the quota is used up."""
        if self._share is not None and self._share.on:
            self._wait(self._share.count_delivered(self._topic, messages, size))

    def producers(self, change: int) -> None:
        """Count producers that came (positive) or left (negative)."""
        if self._share is not None:
            self._share.producers(change)

    def _wait(self, waited: Waited | None) -> None:
        if waited is not None and not self.slowed:
            self.slowed, self.unreported = True, waited
            asyncio.get_running_loop().call_later(waited.wait_ms / 1000, self._paid)

    def _paid(self) -> None:
        self.slowed = False
        self._go_on()
