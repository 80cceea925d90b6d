"""A cursor that a client moved, as the change that the operation would have left: so that it can be undone alike."""

from __future__ import annotations

import asyncio
import base64
import logging

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError
from pydanube_core.facts import DataChange

from pydanube_admin.engine.change_records import APPLIED, ChangeRecord, Changes

_log = logging.getLogger("pydanube.admin")


class MovesByClients:
    """Keeps what the undo of such a move needs, beside the audit's records of it. Single user: the loop."""

    def __init__(self, port: ClusterPort, changes: Changes, undo_grace_ms: int) -> None:
        self._port = port
        self._changes = changes
        self._undo_grace_ms = undo_grace_ms
        self._under_way: set[asyncio.Task[None]] = set()  # as many as are gathered for the audit at once

    def keep_later(self, call_id: str, change: DataChange) -> None:
        """Keep a move soon: before the next change is planned, made or taken back."""
        record = moved_by_a_client(call_id, change, self._undo_grace_ms, self._port.life)
        if record is None or self._changes.no_room(record.image, destroys=True) is not None:
            return
        task = asyncio.get_running_loop().create_task(self._keep(record))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def settled(self) -> None:
        """Wait until nothing is being kept."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _keep(self, record: ChangeRecord) -> None:
        try:
            await self._changes.put(await self._changes.keep_image(record))
        except ClusterError as error:
            _log.warning("admin.move_not_kept", extra={"error": str(error)})
        else:
            self._changes.added(record)


def moved_by_a_client(call_id: str, change: DataChange, undo_grace_ms: int, life: str) -> ChangeRecord | None:
    """The record of the move, as of one by `subscriptions.seek`; None where it cannot be undone."""
    cursor = change.cursor
    if cursor is None or not undo_grace_ms or change.before is None or change.after is None:
        return None
    before, after = change.before["next_unacked"], change.after["next_unacked"]
    return ChangeRecord(
        call_id=call_id,
        plan_id="",
        operation="subscriptions.seek",
        arguments={"topic": cursor.log, "subscription": change.subscription, "to": f"offset:{after}"},
        principal=change.principal or change.client or change.address,
        at_ms=change.at_ms,
        undo_until_ms=change.at_ms + undo_grace_ms,
        diff=[
            {
                "path": f"topics{cursor.log}/subscriptions/{change.subscription}/cursor",
                "before": before,
                "after": after,
            }
        ],
        image={
            "moved_by": call_id,
            "subscription_ids": [cursor.subscription_id],
            "cursors": {cursor.log: base64.b64encode(cursor.image).decode()},
            "starts": {cursor.log: cursor.start_offset},
        },
        result={"cursors": [{"topic": cursor.log, "next_unacked": after}]},
        state=APPLIED,
        destroys=True,
        life=life,
    )
