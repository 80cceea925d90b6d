"""The memory that the broker holds for its peers: one budget over all connections of all ports.

Each connection reports the bytes held on its behalf: incomplete messages and those that no handler takes yet, answers
and deliveries that wait to be read, open streams with their headers, the buffer of its transport, and the memory of TLS
until the peer is authenticated. Limits per connection keep a single one small. This budget bounds the sum.

Connections are grouped by the principal of their certificate and their address. If the budget is used up, the group
that holds most gives back first: of its connections that hold more than their part, the one whose bytes have waited
longest is closed. Above half of the budget, connections whose bytes have waited for `PATIENCE_S` are closed, so that
bytes that move keep the other half.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydanube_core.facts import Reason

from pydanube_broker.rpc.caller import Peer

PATIENCE_S: Final = 10.0
LOOK_S: Final = 1.0
AT_ONCE: Final = 64  # connections closed in one turn of the loop
SHOWN_S: Final = 60.0  # seconds for which the status shows that connections were closed
#: OpenSSL's state of a connection. Beside it the transport keeps the largest piece that it ever read, up to 256 KiB.
TLS_BYTES: Final = 48 << 10

Group = tuple[str, str]


def _nothing_held() -> int:
    return 0


def _nothing_to_close() -> None: ...


class PeerBuffer:
    """The memory held for one connection, and how long it has been waiting, estimated from the bytes that pass.

    Args:
        holds: returns the bytes held for it now.
        give_up: closes it immediately, and nothing is held any more.
    """

    __slots__ = ("_at", "_before", "_rate", "give_up", "group", "held", "holds", "passed", "since")

    def __init__(
        self, peer: Peer, now: float, *, holds: Callable[[], int], give_up: Callable[[], None]
    ) -> None:
        self.group: Group = next(iter(peer.names), ""), peer.host.removeprefix("ipv4:").removeprefix("ipv6:")
        self.holds = holds
        self.give_up = give_up
        self.held = 0  # as last reported
        self.passed = 0  # bytes received and sent
        self.since = now  # since when bytes are held without a break
        self._at = now
        self._before = 0
        self._rate = 0.0

    def release(self) -> None:
        """Drop the references to the connection, which is gone and refers to this."""
        self.holds, self.give_up = _nothing_held, _nothing_to_close

    def look(self, now: float) -> None:
        """Measure the bytes that pass. Called every few seconds."""
        if now > self._at:
            self._rate = (self.passed - self._before) / (now - self._at)
            self._at, self._before = now, self.passed

    def waits_s(self, now: float) -> float:
        """Return how long the held bytes take to pass at this pace, at most for as long as they have been held."""
        return min(now - self.since, self.held / self._rate if self._rate else math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMemoryStatistics:
    """Memory held for peers, for status and metrics."""

    held_bytes: int
    limit_bytes: int
    connections_closed: int  # since the start, to make room


class PeerMemory:
    """See the module. Single user: the loop."""

    def __init__(self, limit_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.closed = 0
        self._clock = clock
        self._groups: dict[Group, dict[PeerBuffer, None]] = {}
        self._bytes: dict[Group, int] = {}
        self._due: asyncio.Handle | None = None
        self._waiting = False  # `_due` is a second away
        self._closed_at = -math.inf
        self._last: Group | None = None  # group whose connections were closed

    def note(self, buffer: PeerBuffer, count: int) -> None:
        """Note how many bytes are held for this connection now."""
        group, before = buffer.group, buffer.held
        buffer.held = count
        self.held_bytes += count - before
        if not before:
            buffer.since = self._clock()
            self._groups.setdefault(group, {})[buffer] = None
        self._bytes[group] = self._bytes.get(group, 0) + count - before
        if not count:
            self._groups[group].pop(buffer, None)
            if not self._groups[group]:
                del self._groups[group], self._bytes[group]
        if self.held_bytes * 2 > self.limit_bytes and count > before:
            self._look_again(at_once=self.held_bytes > self.limit_bytes)

    def _look_again(self, *, at_once: bool) -> None:
        if self._due is not None:
            if not at_once or not self._waiting:
                return
            self._due.cancel()
        self._waiting = not at_once
        loop = asyncio.get_running_loop()
        self._due = loop.call_soon(self.make_room) if at_once else loop.call_later(LOOK_S, self.make_room)

    def make_room(self) -> None:
        """Close connections until the budget suffices, a few in each turn of the loop."""
        self._due = None
        found = self._first_to_go()
        for buffer in found:
            self._last, self._closed_at = buffer.group, self._clock()
            self.note(buffer, 0)
            self.closed += 1
            buffer.give_up()
        if self.held_bytes * 2 > self.limit_bytes:
            self._look_again(at_once=bool(found))

    def _first_to_go(self) -> list[PeerBuffer]:
        """Return the connections to close, of the group that holds most. Empty if none has to be closed now."""
        group = max(self._bytes, key=self._bytes.__getitem__, default=None)
        if group is None:
            return []
        for buffer in tuple(self._groups[group]):  # current sizes, not the last reported ones
            self.note(buffer, buffer.holds())
        over, now = self.held_bytes > self.limit_bytes, self._clock()
        too_many = self.held_bytes - (self.limit_bytes * 7 // 8 if over else self.limit_bytes // 2)
        members = self._groups.get(group, {})
        part = self._bytes.get(group, 0) // max(1, len(members))
        found: list[PeerBuffer] = []
        for buffer in sorted(
            (each for each in members if each.held >= part), key=lambda each: -each.waits_s(now)
        )[:AT_ONCE]:
            if too_many <= 0 or (not over and buffer.waits_s(now) < PATIENCE_S):
                break
            found.append(buffer)
            too_many -= buffer.held
        return found

    def statistics(self) -> PeerMemoryStatistics:
        return PeerMemoryStatistics(
            held_bytes=self.held_bytes, limit_bytes=self.limit_bytes, connections_closed=self.closed
        )

    def reason(self) -> Reason | None:
        """Return the reason for `/status` while the budget is exceeded and connections are closed, or None."""
        ago_s = self._clock() - self._closed_at
        if ago_s > SHOWN_S and self.held_bytes * 2 <= self.limit_bytes:
            return None
        group = max(self._bytes, key=self._bytes.__getitem__, default=self._last)
        most = "" if group is None else f", most of them for {' at '.join(part for part in group if part)}"
        return Reason(
            code="PEER_MEMORY",
            message=f"{self.held_bytes} of {self.limit_bytes} bytes are held for connected clients{most}. Since the start, {self.closed} "
            "connections were closed because of this bound. Find clients that send halves of messages or read nothing, or raise "
            "server.peer_memory_bytes",
        )
