"""The chain's object store at a broker: calls of the tier's process (`chain.ChainStore`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydanube_broker.tier.kept_states_work import Answer, Call

if TYPE_CHECKING:
    from pydanube_storage.objects import ObjectStore


class ChainWork:
    """Calls of the broker: `name(arguments, blob) → (result, blob)`. Blocking."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def calls(self) -> Mapping[str, Callable[[dict[str, Any], bytes], Answer]]:
        return {
            "chain_create": self.create,
            "chain_read": self.read,
            "chain_names": self.names,
            "chain_delete": self.delete,
        }

    def create(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        return {"made": self._store.create(arguments["key"], bytes(blob))}, b""

    def read(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        from pydanube_broker.chain.store import read_object

        found = read_object(self._store, arguments["key"], arguments["most_bytes"])
        return {"is_there": found is not None}, found or b""

    def names(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        from pydanube_broker.chain.store import names_below

        return {"names": names_below(self._store, arguments["folder"])}, b""

    def delete(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        self._store.delete(arguments["key"])
        return {}, b""


class TierChains:
    """A `ChainStore`. `call` calls the tier's process. If that ends, the outcome is unknown and the error retryable."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def create(self, key: str, data: bytes) -> bool:
        found, _ = await self._call("chain_create", {"key": key}, data)
        return bool(found["made"])

    async def read(self, key: str, most_bytes: int | None = None) -> bytes | None:
        found, data = await self._call("chain_read", {"key": key, "most_bytes": most_bytes}, b"")
        return bytes(data) if found["is_there"] else None

    async def names(self, folder: str) -> Sequence[str]:
        found, _ = await self._call("chain_names", {"folder": folder}, b"")
        return list(found["names"])

    async def delete(self, key: str) -> None:
        await self._call("chain_delete", {"key": key}, b"")
