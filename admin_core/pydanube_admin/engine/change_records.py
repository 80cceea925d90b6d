"""Records of changes in the metadata store, kept until the changes can no longer be undone.

A record is written before the effect (`applying`) and again after it (`applied`). One that is still
`applying` when the admin core starts was cut off: its effect is unknown, and its undo must work either way.
Between its named steps (`ChangeStep`) a test can kill the process (`pydanube_core.kill_steps`). After each step the state is either the one before or the one after, the audit records which, and the undo restores the
state before.

A large image is stored beside its record in several values, which are written before it and deleted after it.
The next sweep deletes values that a crash left without a record. A promised undo stays possible: destructive
changes and others have separate limits. If a limit is reached, the plan states it (`as_promised`), and no
older change is displaced.

A cursor that a client moved is kept as the change that `subscriptions.seek` would have left
(`MovesByClients`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, Conflict
from pydanube_core.facts import DataChange
from pydanube_core.stored_json import VersionedJson

from pydanube_admin.engine.forecast import Forecast, entry
from pydanube_admin.engine.stored_records import is_id, readable, time_of


class ChangeStep(StrEnum):
    CHECKED = "change-checked"  # the token and the state under it are right, nothing is written
    RECORDED = "change-recorded"  # the audit's `call` is on stable storage
    # A large image for the undo is stored, and nothing refers to it
    IMAGE_KEPT = "change-image-kept"
    BEGUN = "change-begun"  # the record for the undo is stored and the plan is used
    MADE = "change-made"  # the effect
    KEPT = "change-kept"  # its result
    TOLD = "change-told"  # the audit's `outcome` is on stable storage
    TAKEN_BACK = "change-taken-back"  # of an undo: the state is the one of before, the change not yet marked


PREFIX: Final = "changes/"
APPLYING, APPLIED, FAILED, INTERRUPTED, UNDONE = "applying", "applied", "failed", "interrupted", "undone"
UNDOING: Final = "undoing"  # an undo was begun: it is unknown whether the change still stands
IMAGES: Final = "change-images/"
INLINE_BYTES: Final = 16 * 1024  # of an image that is kept in its record: all records are read once a minute
PART_BYTES: Final = 200 * 1024  # of an image, in one value of the store
MAX_IMAGE_BYTES: Final = 4 * 1024 * 1024
MAX_IMAGES_BYTES: Final = 256 * 1024 * 1024  # of all
UNDO: Final = "changes.undo"
SWEEP_MS: Final = 60_000
ORPHAN_MS: Final = 3_600_000  # an image whose record does not exist by then was left by a crash
MAX_CHANGES: Final = 10_000  # of those that destroy, and of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRecord(VersionedJson):
    """A change that can be undone until `undo_until_ms`. `image`: the former state that undo needs."""

    call_id: str
    plan_id: str
    operation: str
    arguments: Mapping[str, Any]
    principal: str
    at_ms: int
    undo_until_ms: int
    diff: list[dict[str, Any]]
    image: Mapping[str, Any]
    result: Mapping[str, Any] | None = None
    state: str = APPLYING
    undone_by: str | None = None
    destroys: bool = False
    image_bytes: int = 0  # of an image that lies beside the record
    life: str = ""  # of the broker that makes it
    principal_type: str = ""  # as of its call

    def to_bytes(self) -> bytes:
        return VersionedJson.to_bytes(replace(self, image={}) if self.image_bytes else self)

    def image_parts(self) -> list[str]:
        """Return the keys of the values that have the image."""
        return [
            f"{IMAGES}{self.call_id}/{number:03d}" for number in range(-(-self.image_bytes // PART_BYTES))
        ]


class Changes:
    """The changes of the cluster, stored through the broker's port."""

    def __init__(self, port: ClusterPort) -> None:
        self._port = port
        self._swept_ms = 0
        # By whether they destroy, as of the last sweep and with changes added since
        self._kept: Counter[bool] = Counter()
        self._images_bytes = 0

    async def get(self, call_id: str) -> tuple[ChangeRecord, int] | None:
        """Return a change with its image, and its revision."""
        item = await self._port.read_state(PREFIX + call_id) if is_id(call_id) else None
        if item is None:
            return None
        record = ChangeRecord.from_bytes(item.value)
        parts = [await self._port.read_state(key) for key in record.image_parts()]
        if parts:
            record = replace(
                record, image=json.loads(b"".join(part.value for part in parts if part is not None))
            )
        return record, item.revision

    def no_room(self, image: Mapping[str, Any], *, destroys: bool) -> str | None:
        """Return why a change with that image could not be undone, or None if it can."""
        size = len(_encoded(image))
        if size > MAX_IMAGE_BYTES:
            return f"its undo would need {size} bytes of the state before, and {MAX_IMAGE_BYTES} can be kept"
        if size > INLINE_BYTES and self._images_bytes + size > MAX_IMAGES_BYTES:
            return f"the former states that undos need take {self._images_bytes} of {MAX_IMAGES_BYTES} bytes"
        if self._kept[destroys] >= MAX_CHANGES:
            return f"{MAX_CHANGES} changes of its kind can be undone by now, and none of them is displaced"
        return None

    async def keep_image(self, record: ChangeRecord) -> ChangeRecord:
        """Store a large image before its record, and return the record to write."""
        image = _encoded(record.image)
        if len(image) <= INLINE_BYTES:
            return record
        record = replace(record, image_bytes=len(image))
        for number, key in enumerate(record.image_parts()):
            await self._port.write_state({key: image[number * PART_BYTES : (number + 1) * PART_BYTES]})
        return record

    def added(self, record: ChangeRecord) -> None:
        """Note that a change is kept from now on."""
        self._kept[record.destroys] += 1
        self._images_bytes += record.image_bytes

    async def was_made(self, call_id: str, operation: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether a change, or an undo, is recorded as complete."""
        if operation == UNDO:
            undone = await self.get(str(arguments.get("call_id")))
            return undone is not None and undone[0].undone_by == call_id
        kept = await self.get(call_id)
        return kept is not None and kept[0].state in (APPLIED, UNDOING, UNDONE)

    async def since(self, call_id: str) -> AsyncIterator[ChangeRecord]:
        """Return the changes begun after one, and not undone."""
        after: str | None = PREFIX + call_id
        while items := await self._port.list_state(PREFIX, after=after, limit=100):
            for item in items:
                if (record := ChangeRecord.from_bytes(item.value)).state != UNDONE:
                    yield record
            after = items[-1].key

    async def put(self, record: ChangeRecord, *others: tuple[str, bytes]) -> None:
        """Store a change, and `others` in the same transaction."""
        await self._port.write_state({PREFIX + record.call_id: record.to_bytes(), **dict(others)})

    async def forget(self, call_id: str) -> None:
        await self._port.write_state({PREFIX + call_id: None})

    async def cut_off(self) -> list[ChangeRecord]:
        """Return changes that began and never ended."""
        found = []
        after: str | None = None
        while items := await self._port.list_state(PREFIX, after=after):
            records = readable(items, ChangeRecord.from_bytes)
            found += [record for _, record in records if record.state == APPLYING]
            after = items[-1].key
        return found

    async def sweep(self, now_ms: int) -> None:
        """Delete changes whose grace is over, at most once a minute.

        The first call also deletes images without a change.
        """
        if 0 <= now_ms - self._swept_ms < SWEEP_MS:  # below 0: it was a clock that ran ahead
            return
        first, self._swept_ms = not self._swept_ms, now_ms
        ahead_ms, behind_ms = self._port.clock_apart_ms()
        old_ms, new_ms = now_ms - ahead_ms, now_ms + behind_ms  # by all clocks
        old: list[str] = []
        kept: dict[str, ChangeRecord] = {}
        after: str | None = None
        while items := await self._port.list_state(PREFIX, after=after):
            for item, record in readable(items, ChangeRecord.from_bytes):
                kept[record.call_id] = replace(record, image={}, result=None, diff=[])
                if record.state == APPLYING:
                    continue
                if record.at_ms > new_ms + SWEEP_MS:  # the same: its grace begins now
                    until_ms = new_ms + record.undo_until_ms - record.at_ms
                    await self.put(replace(record, at_ms=new_ms, undo_until_ms=until_ms))
                elif record.undo_until_ms <= old_ms:
                    old += [item.key, *record.image_parts()]
                    del kept[record.call_id]
            after = items[-1].key
        self._kept = Counter(record.destroys for record in kept.values())
        self._images_bytes = sum(record.image_bytes for record in kept.values())
        after = None
        while first and (items := await self._port.list_state(IMAGES, after=after, limit=10)):
            for key in [item.key for item in items]:
                call_id = key.split("/")[1]
                if call_id not in kept and time_of(call_id) < old_ms - ORPHAN_MS:
                    old.append(key)
            after = items[-1].key
        for start in range(0, len(old), 90):
            try:
                await self._port.write_state(dict.fromkeys(old[start : start + 90]))
            except Conflict:
                return


def _encoded(image: Mapping[str, Any]) -> bytes:
    return json.dumps(image, default=str).encode()


UNDO_PATH: Final = "undo"  # path of the entry about the plan's own undo
NEAR_GUARD_TIMES: Final = 2  # times the free space that the disk guard requires


async def as_promised(port: ClusterPort, changes: Changes, found: Forecast, *, destroys: bool) -> Forecast:
    """Return the forecast, as irreversible if its undo image cannot be kept for the grace period."""
    image = found.image or {}
    if changes.no_room(image, destroys=destroys) is not None:
        return replace(found, reversible=False)
    if "call_id" not in image:  # the key of everything that a deletion keeps
        return found
    disk = (await port.status()).disk
    free, guard = disk.get("free_bytes"), disk.get("guard_bytes")
    if free is None or not guard or free >= NEAR_GUARD_TIMES * guard:
        return found
    if free < guard:
        return replace(found, reversible=False)
    until = f"given up as soon as fewer than {guard} bytes are free on the data disk. Now {free} are"
    return replace(found, diff=[*found.diff, entry(UNDO_PATH, None, until)])


_log = logging.getLogger("pydanube.admin")


class MovesByClients:
    """Stores the undo images of cursors that clients moved, beside their audit. Single user: the loop."""

    def __init__(self, port: ClusterPort, changes: Changes, undo_grace_ms: int) -> None:
        self._port = port
        self._changes = changes
        self._undo_grace_ms = undo_grace_ms
        self._under_way: set[asyncio.Task[None]] = set()  # at most as many as one flush of the audit gathers

    def keep_later(self, call_id: str, change: DataChange) -> None:
        """Store a move soon: before the next change is planned, made or undone."""
        record = moved_by_a_client(call_id, change, self._undo_grace_ms, self._port.life)
        if record is None or self._changes.no_room(record.image, destroys=True) is not None:
            return
        task = asyncio.get_running_loop().create_task(self._keep(record))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def settled(self) -> None:
        """Wait until no move waits to be stored."""
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
    """Return the record of such a move, like one by `subscriptions.seek`, or None if it cannot be undone."""
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
        diff=[entry(f"topics{cursor.log}/subscriptions/{change.subscription}/cursor", before, after)],
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
