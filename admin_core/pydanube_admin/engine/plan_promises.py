"""Promises of undo: a plan promises none that there is no room for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pydanube_core.cluster_port import ClusterPort

from pydanube_admin.engine.change_records import Changes
from pydanube_admin.engine.forecast import Forecast, entry

UNDO_PATH: Final = "undo"  # of what a plan says of its own undo
NEAR_GUARD_TIMES: Final = 2  # times what the disk guard keeps free


async def as_promised(port: ClusterPort, changes: Changes, found: Forecast, *, destroys: bool) -> Forecast:
    """The forecast of a change that has an undo; not reversible where that could not be kept for its grace."""
    image = found.image or {}
    if changes.no_room(image, destroys=destroys) is not None:
        return replace(found, reversible=False)
    if "call_id" not in image:  # by which what a deletion keeps is found
        return found
    disk = (await port.status()).disk
    free, guard = disk.get("free_bytes"), disk.get("guard_bytes")
    if free is None or not guard or free >= NEAR_GUARD_TIMES * guard:
        return found
    if free < guard:
        return replace(found, reversible=False)
    until = f"given up as soon as fewer than {guard} bytes are free on the data disk; {free} are"
    return replace(found, diff=[*found.diff, entry(UNDO_PATH, None, until)])
