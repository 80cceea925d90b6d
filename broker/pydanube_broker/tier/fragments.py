"""Fragments in the object store: `<cluster>/fragments/<broker>-<random>.fragment`, written once and read back.

The tier's process asks the store (`FragmentWork`), the broker asks it (`Fragments`). Nothing here knows what a fragment
says; `topics.fragment` does. Reports of topics (`kept_states`) are fragments, too, of which the newest is kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from pydanube_core.errors import StoreUnavailable
from pydanube_storage.objects import ObjectFact, ObjectStore
from pydanube_storage.objects.store_time import store_now_ms

if TYPE_CHECKING:  # to read the whole cluster package for two names doubled the start of the tier's process
    from pydanube_broker.cluster.ids import BrokerId
    from pydanube_broker.cluster.move_record import HandOverPart

Answer: TypeAlias = tuple[dict[str, Any], bytes]
#: a call of the tier's process
Call = Callable[[str, dict[str, Any], bytes], Awaitable[tuple[dict[str, Any], bytes | memoryview]]]


class FragmentWork:
    """Calls of the broker: `name(arguments, blob) → (result, blob)`. Blocking."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def calls(self) -> Mapping[str, Callable[[dict[str, Any], bytes], Answer]]:
        return {
            "fragment_write": self.write,
            "fragment_read": self.read,
            "fragments_collect": self.collect,
            "states_write": self.replace,
            "states_newest": self.newest,
        }

    def write(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Store a fragment as `key` and read it back: the result is what the store has, not what it was given.

        Raises `StoreUnavailable`: the store has something else, or nothing.
        """
        key = arguments["key"]
        self._store.put(key, bytes(blob))
        if self._whole(key) != blob:
            raise StoreUnavailable(
                f"fragment {key} in {self._store.url} is not what was uploaded: it is written again under another name",
                store=self._store.url,
                key=key,
                cause="mismatch",
            )
        return {}, b""

    def read(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Read the bytes [`start`, `end`) of `key`."""
        return {}, self._store.read(arguments["key"], arguments["start"], arguments["end"])

    def collect(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Delete objects below `prefix` that are older than `age_ms`: by the store's times alone."""
        prefix = arguments["prefix"]
        now_ms = store_now_ms(self._store, f"{prefix}/time")
        if now_ms is None:
            return {"deleted": 0}, b""
        old = [
            fact.key
            for fact in self._store.list(prefix)
            if fact.modified_ms is not None and fact.modified_ms < now_ms - arguments["age_ms"]
        ]
        for key in old:
            self._store.delete(key)
        return {"deleted": len(old)}, b""

    def replace(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Store a fragment as `folder`/`name`, as `write` does, and delete those of the folder that it replaces.

        Raises `StoreUnavailable`: the former ones are there as they were.
        """
        folder = arguments["folder"]
        key = f"{folder}/{arguments['name']}"
        self.write({"key": key}, blob)
        for fact in self._of(folder):
            if fact.key < key:
                self._store.delete(fact.key)
        return {}, b""

    def newest(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return the newest fragment of `folder`, and when it was written; nothing if there is none."""
        found = max(self._of(arguments["folder"]), key=lambda fact: fact.key, default=None)
        if found is None:
            return {}, b""
        return {"written_ms": found.modified_ms}, self._whole(found.key)

    def _whole(self, key: str) -> bytes:
        return self._store.read(key, 0, self._store.size(key))

    def _of(self, folder: str) -> list[ObjectFact]:
        return [fact for fact in self._store.list(folder) if fact.key.startswith(f"{folder}/")]


class Fragments:
    """Fragments of the broker. `call` asks the tier's process. Single user: the loop."""

    def __init__(self, call: Call, cluster: str, broker_id: BrokerId) -> None:
        self._call = call
        self._cluster = cluster
        self._broker_id = broker_id

    async def write(self, data: bytes, *, awaited: bool = False) -> str:
        """Store a fragment under a new name; return that once the fragment was read back.

        Args:
            awaited: clients wait for it, so that it goes before what nobody waits for.

        Raises `StoreUnavailable`, `DiskFull`: it may be there, and nobody knows of it.
        """
        key = f"{self._cluster}/fragments/{self._broker_id}-{secrets.token_hex(8)}.fragment"
        await self._call("fragment_write", {"key": key, "awaited": awaited}, data)
        return key

    async def collect(self, *, age_ms: int) -> int:
        """Delete fragments of all brokers that are older, by the store's times; return how many. To be called when none is needed.

        Raises `StoreUnavailable`.
        """
        prefix = f"{self._cluster}/fragments"
        found, _ = await self._call("fragments_collect", {"prefix": prefix, "age_ms": age_ms}, b"")
        return int(found["deleted"])

    async def read(self, part: HandOverPart, *, awaited: bool = False) -> bytes:
        """Return the bytes of a part as the store has them; `awaited` as in `write`.

        Raises `ObjectMissing`, `CorruptObject`, `StoreUnavailable`.
        """
        place = {"key": part.key, "start": part.start, "end": part.end}
        _, data = await self._call("fragment_read", {**place, "awaited": awaited}, b"")
        return bytes(data)
