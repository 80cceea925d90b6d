"""Calls of the tier's process that store brokers' reports of their topics (`topic_reports`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from pydanube_core.errors import StoreUnavailable
from pydanube_storage.objects import ObjectFact, ObjectStore

Answer: TypeAlias = tuple[dict[str, Any], bytes]
#: a call of the tier's process
Call = Callable[[str, dict[str, Any], bytes], Awaitable[tuple[dict[str, Any], bytes | memoryview]]]


class TopicReportsWork:
    """Calls of the broker: `name(arguments, blob) → (result, blob)`. Blocking."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def calls(self) -> Mapping[str, Callable[[dict[str, Any], bytes], Answer]]:
        return {"states_write": self.replace, "states_newest": self.newest}

    def replace(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Store a report as `folder`/`name`, read it back, and delete older reports of the folder.

        Raises `StoreUnavailable`: the store does not have the report as written. Older reports are unchanged.
        """
        folder = arguments["folder"]
        key = f"{folder}/{arguments['name']}"
        self._store.put(key, bytes(blob))
        if self._whole(key) != blob:
            raise StoreUnavailable(
                f"report {key} in {self._store.url} differs from the upload. It is uploaded again under another name",
                store=self._store.url,
                key=key,
                cause="mismatch",
            )
        for fact in self._of(folder):
            if fact.key < key:
                self._store.delete(fact.key)
        return {}, b""

    def newest(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return the newest report of `folder` and the time of its write, or an empty answer."""
        found = max(self._of(arguments["folder"]), key=lambda fact: fact.key, default=None)
        if found is None:
            return {}, b""
        return {"written_ms": found.modified_ms}, self._whole(found.key)

    def _whole(self, key: str) -> bytes:
        return self._store.read(key, 0, self._store.size(key))

    def _of(self, folder: str) -> list[ObjectFact]:
        return [fact for fact in self._store.list(folder) if fact.key.startswith(f"{folder}/")]
