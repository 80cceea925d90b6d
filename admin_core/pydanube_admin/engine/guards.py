"""Guards of changes under way, in the metadata store: one change of a target at a time, at any broker.

A guard is a key that exists while a call is under way. One write takes it, on condition that it is absent. It
names the call and the life of the broker that took it. A guard whose life is over has no holder: any call may
replace it, by a write on condition that it is unchanged. No decision depends on clocks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, Conflict
from pydanube_core.facts import StateItem
from pydanube_core.names import TopicName

from pydanube_admin.engine.stored_records import readable
from pydanube_admin.engine.task_records import broker_of

_log = logging.getLogger("pydanube.admin")

PREFIX: Final = "guards/"
WAIT_S: Final = 10.0  # wait for another broker's change of the same target, which mostly takes milliseconds
LOOK_S: Final = 0.05
_NAMED: Final = ("topic", "namespace", "subject", "broker_id")


def target_of(group: str, arguments: Mapping[str, Any]) -> str:
    """Return the target that a call changes: the first of topic, namespace, subject and broker, else the whole group."""
    for name in _NAMED:
        given = arguments.get(name)
        if not isinstance(given, str):
            continue
        if name == "topic":
            try:
                given = str(TopicName.parse(given).base)
            except ClusterError:  # the change itself is refused for it
                continue
        return f"{name} {given}"
    return group


class Guards:
    """The guards of the cluster, as one admin core takes them. Single user: the loop."""

    def __init__(self, port: ClusterPort) -> None:
        self._port = port
        # Key and revision of guards whose release failed: the next call releases them
        self._left: dict[str, int] = {}

    @asynccontextmanager
    async def held(self, target: str, call_id: str) -> AsyncIterator[None]:
        """Hold the guard of a target while a call changes it.

        Raises `Conflict`: another call still holds it after `WAIT_S`.
        """
        key = PREFIX + hashlib.blake2b(target.encode(), digest_size=16).hexdigest()
        value = json.dumps({"thing": target, "call_id": call_id, "life": self._port.life}).encode()
        for each, revision in list(self._left.items()):
            await self._let_go(each, revision)
        revision = await self._take(key, value, target)
        try:
            yield
        finally:
            self._left[key] = revision
            await self._let_go(key, revision)

    async def _take(self, key: str, value: bytes, target: str) -> int:
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while True:
            holder = await self._port.read_state(key)
            if holder is None or await self._is_free(holder):
                expected = {key: None if holder is None else holder.revision}
                try:
                    return await self._port.write_state({key: value}, expected=expected)
                except Conflict:  # another call was quicker
                    continue
            if asyncio.get_running_loop().time() >= deadline:
                held = json.loads(holder.value)
                raise Conflict(
                    f"another change of {target} has been under way for {WAIT_S:.0f} s: the call {held['call_id']}, at the "
                    f"broker {broker_of(held['life'])}. Try again when it is done",
                    thing=target,
                    by_call_id=held["call_id"],
                    retry_after_ms=1000,
                )
            await asyncio.sleep(LOOK_S)

    async def _is_free(self, holder: StateItem) -> bool:
        return await self._port.is_over(json.loads(holder.value)["life"])

    async def _let_go(self, key: str, revision: int) -> None:
        try:
            await self._port.write_state({key: None}, expected={key: revision})
        except Conflict:  # another call has taken it over
            pass
        except ClusterError as error:
            _log.warning("admin.guard_not_let_go", extra={"error": str(error)})
            return
        if self._left.get(key) == revision:
            del self._left[key]

    async def calls(self) -> set[str]:
        """Return the calls under way at live brokers. Delete the guards of ended starts."""
        found: set[str] = set()
        items = await self._port.list_state(PREFIX)
        for item, body in readable(items, json.loads):
            if not await self._port.is_over(body["life"]):
                found.add(body["call_id"])
                continue
            try:
                await self._port.write_state({item.key: None}, expected={item.key: item.revision})
            except Conflict:  # taken over
                continue
        return found
