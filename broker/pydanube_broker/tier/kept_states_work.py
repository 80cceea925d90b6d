"""Write and read brokers' reports of their topics, in the tier's process (`kept_states`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydanube_core.errors import StoreUnavailable
from pydanube_storage.objects import ObjectFact, ObjectStore

from pydanube_broker.tier.fragments import Answer


class KeptStatesWork:
    """Calls of the broker: `name(arguments, blob) → (result, blob)`. Blocking."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def calls(self) -> Mapping[str, Callable[[dict[str, Any], bytes], Answer]]:
        return {"states_write": self.write, "states_newest": self.newest}

    def write(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Store the newest report as `folder`/`name`, read it back, and delete the one that it replaces.

        Raises `StoreUnavailable`: the former ones are there as they were.
        """
        folder = arguments["folder"]
        key = f"{folder}/{arguments['name']}"
        self._store.put(key, bytes(blob))
        if self._store.read(key, 0, self._store.size(key)) != blob:
            raise StoreUnavailable(
                f"{key} in {self._store.url} is not what was uploaded", store=self._store.url, key=key
            )
        for fact in self._of(folder):
            if fact.key < key:
                self._store.delete(fact.key)
        return {}, b""

    def newest(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return the newest report of `folder`, and when it was written; nothing if there is none."""
        found = max(self._of(arguments["folder"]), key=lambda fact: fact.key, default=None)
        if found is None:
            return {}, b""
        size = self._store.size(found.key)
        return {"written_ms": found.modified_ms}, self._store.read(found.key, 0, size)

    def _of(self, folder: str) -> list[ObjectFact]:
        return [fact for fact in self._store.list(folder) if fact.key.startswith(f"{folder}/")]
