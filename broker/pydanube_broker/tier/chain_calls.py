"""A chain's calls of its object store, in a separate process, so that neither the loop nor tier uploads delay them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydanube_storage.objects import ObjectStore

from pydanube_broker.chain.store import ConcurrentReads, names_below, read_object
from pydanube_broker.tier.topic_reports_work import Answer, Call, TopicReportsWork

THREADS: Final = 8  # pieces on their way, and a few reads beside them


class ChainWork:
    """The calls in the child: `name(arguments, blob) → (result, blob)`. Blocking."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._reads = ConcurrentReads(store)

    def calls(self) -> Mapping[str, Callable[[dict[str, Any], bytes], Answer]]:
        return {
            "create": self.create,
            "read": self.read,
            "read_many": self.read_many,
            "names": self.names,
            "delete": self.delete,
            "states_newest": TopicReportsWork(self._store).newest,
        }

    def create(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        return {"made": self._store.create(arguments["key"], blob)}, b""

    def read(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        data = read_object(self._store, arguments["key"], arguments["most_bytes"])
        return {"found": data is not None}, data or b""

    def read_many(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        found = self._reads(arguments["keys"], arguments["most_bytes"])
        sizes = [None if data is None else len(data) for data in found]
        return {"sizes": sizes}, b"".join(data or b"" for data in found)

    def names(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        return {"names": names_below(self._store, arguments["folder"])}, b""

    def delete(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        self._store.delete(arguments["key"])
        return {}, b""


class ChainCalls:
    """The broker's side: a `ChainStore`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def create(self, key: str, data: bytes) -> bool:
        result, _ = await self._call("create", {"key": key, "awaited": True}, data)
        return bool(result["made"])

    async def read(self, key: str, most_bytes: int | None = None) -> bytes | None:
        result, data = await self._call("read", {"key": key, "most_bytes": most_bytes}, b"")
        return bytes(data) if result["found"] else None

    async def read_many(self, keys: Sequence[str], most_bytes: int | None = None) -> Sequence[bytes | None]:
        arguments = {"keys": list(keys), "most_bytes": most_bytes, "awaited": True}
        result, data = await self._call("read_many", arguments, b"")
        found: list[bytes | None] = []
        at = 0
        for size in result["sizes"]:
            found.append(None if size is None else bytes(data[at : at + size]))
            at += size or 0
        return found

    async def names(self, folder: str) -> Sequence[str]:
        result, _ = await self._call("names", {"folder": folder, "awaited": True}, b"")
        return [str(name) for name in result["names"]]

    async def delete(self, key: str) -> None:
        await self._call("delete", {"key": key, "awaited": True}, b"")
