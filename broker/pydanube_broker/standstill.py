"""Whether this process stood still for so long that its place in the cluster may be another's by now.

Whoever was stopped (SIGSTOP, a suspended machine, a loop that hung) finds its sockets full of requests when it goes on,
and may have been removed meanwhile, its topics given to others. So nothing is accepted until the metadata have said
that the place is still its own. The gap is noticed by the first publish behind it, or by a timer, whichever runs first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
from pydanube_core.errors import Unavailable

# Half a lease: who stood still for less was registered all the time, and nobody that is registered is removed.
LONGEST_MS: Final = 5_000


class Standstill:
    """See the module.

    Args:
        now_ms: a clock that counts suspension too.
        without_metadata: whether the broker goes on without its metadata, as far as it knows.
    """

    __slots__ = (
        "_error",
        "_now_ms",
        "_seen_ms",
        "_without_metadata",
        "noticed",
        "number",
        "was_without_metadata",
    )

    def __init__(self, now_ms: Callable[[], int], without_metadata: Callable[[], bool]) -> None:
        self._now_ms = now_ms
        self._seen_ms = now_ms()
        self._without_metadata = without_metadata
        self._error: Unavailable | None = None
        self.number = 0  # of the last one
        self.was_without_metadata = False  # when that began
        self.noticed = anyio.Event()  # set while one is to be asked after

    def look(self) -> Unavailable | None:
        """Return the error that everything is refused with now, if it is; to be called once a second at least."""
        now_ms = self._now_ms()
        gap_ms, self._seen_ms = now_ms - self._seen_ms, now_ms
        if gap_ms > LONGEST_MS:
            self.number += 1
            if self._error is None:
                self.was_without_metadata = self._without_metadata()
            self._error = Unavailable(
                f"the broker stood still for {gap_ms / 1000:.0f} s and asks etcd whether its topics are still its own: "
                "try again in a moment",
                retry_after_ms=100,
            )
            self.noticed.set()
        return self._error

    def settled(self, number: int) -> None:
        """End the standstill of that number: the place is still the broker's own. There may be a later one."""
        self.look()
        if self.number == number:
            self._error, self.noticed = None, anyio.Event()
