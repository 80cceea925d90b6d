"""Freezes: while one holds, a face or a principal may read and change nothing.

A freeze is a record in the metadata store, so it holds at every broker, and ends at its time or by `faces.thaw`. It takes
no right away from other faces. The operator at a broker's own socket is never frozen, so a freeze can always be lifted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import Frozen
from pydanube_core.stored_json import VersionedJson
from pydanube_core.units import format_time

from pydanube_admin.engine.operation import next_call
from pydanube_admin.engine.permission import sits_at_the_broker
from pydanube_admin.engine.stored_records import readable

PREFIX: Final = "freezes/"
MAX_FREEZES: Final = 100
ALL: Final = "all"
FACES: Final = {
    "mcp": "mcp",
    "jsonrpc": "jsonrpc",
    "cli": "cli",
    "console": "tui",
}  # as callers write them → of a call
OURSELVES: Final = frozenset({"balance"})  # faces of the broker's own calls, which no caller may name


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(VersionedJson):
    """One freeze, of a face or of a principal."""

    face: str | None  # as callers write it, `all` included
    principal: str | None
    until_ms: int | None  # None: until it is lifted
    reason: str
    by: str
    at_ms: int

    @property
    def key(self) -> str:
        name = f"face {self.face}" if self.face is not None else f"principal {self.principal}"
        return PREFIX + hashlib.sha256(name.encode()).hexdigest()[:32]

    def holds(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms

    def covers(self, face: str, principals: Collection[str]) -> bool:
        """Return whether calls of these principals over a face are frozen by this."""
        if self.principal is not None:
            return self.principal in principals
        return self.face == ALL or FACES.get(self.face or "") == face


async def freezes(port: ClusterPort, now_ms: int) -> list[Freeze]:
    """Return the freezes that hold, oldest first."""
    items = await port.list_state(PREFIX)
    found = [record for _, record in readable(items, Freeze.from_bytes) if record.holds(now_ms)]
    return sorted(found, key=lambda each: each.at_ms)


async def check_not_frozen(
    port: ClusterPort, *, face: str, principals: Collection[str], operation: str, now_ms: int
) -> None:
    """Check that changes over a face are not frozen. Raises `Frozen`.

    Args:
        principals: the one that the call counts as, and the one whose credential it showed, which may act for others.
    """
    if face in OURSELVES or sits_at_the_broker():
        return
    for each in await freezes(port, now_ms):
        if each.covers(face, principals):
            subject = (
                f"the principal {each.principal[:80]}"
                if each.principal is not None
                else f"the face {each.face}"
            )
            until = "it is lifted" if each.until_ms is None else format_time(each.until_ms)
            where = (
                "over the socket in the data folder, on the broker's machine"
                if each.face == ALL
                else "from a face that is not frozen"
            )
            raise Frozen(
                f"{operation} was refused: {subject} is frozen until {until} and may only read. Nothing was changed. "
                f"`faces.list` shows by whom it was frozen and why. A person lifts it with `danube faces thaw` {where}",
                field="face" if each.principal is None else "principal",
                value=each.face if each.principal is None else each.principal,
                until=None if each.until_ms is None else format_time(each.until_ms),
                by=each.by,
                untrusted={"reason": each.reason},
                next=[next_call("faces.list", {}, "shows who froze it and why")],
            )
