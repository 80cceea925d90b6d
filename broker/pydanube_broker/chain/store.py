"""The object store as a chain needs it: create a piece only if its name is free, read, list, delete.

Asynchronous, unlike `ObjectStore`, which blocks: the broker's adapter calls the tier's process, tests and commands use
`ChainObjects`, and the simulation implements the store itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

import anyio
import anyio.to_thread
from pydanube_core.errors import ObjectMissing
from pydanube_storage.objects import ObjectStore

_THREADS: Final = 16  # concurrent reads


class ChainStore(Protocol):
    """Every method may raise `StoreUnavailable`. A `create` that raised it may still create the object, also later."""

    async def create(self, key: str, data: bytes) -> bool:
        """Create an object, durable on return. If the key is taken, change nothing and return False.

        False is also returned to a retry whose first attempt succeeded: read the object.
        """

    async def read(self, key: str, most_bytes: int | None = None) -> bytes | None:
        """Read an object, or its first bytes. Returns None if it does not exist."""

    async def read_many(self, keys: Sequence[str], most_bytes: int | None = None) -> Sequence[bytes | None]:
        """Read objects concurrently, as `read`. Return them in the order of their keys."""

    async def names(self, folder: str) -> Sequence[str]:
        """Return the keys of all objects below a folder, ascending."""

    async def delete(self, key: str) -> None:
        """Delete an object, without an error if it does not exist."""


class ChainObjects:
    """A `ChainStore` over an object store, each call in a thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._reads = ConcurrentReads(store)
        self._limiter = anyio.CapacityLimiter(_THREADS)

    async def create(self, key: str, data: bytes) -> bool:
        return await anyio.to_thread.run_sync(self._store.create, key, data, limiter=self._limiter)

    async def read(self, key: str, most_bytes: int | None = None) -> bytes | None:
        return await anyio.to_thread.run_sync(
            read_object, self._store, key, most_bytes, limiter=self._limiter
        )

    async def read_many(self, keys: Sequence[str], most_bytes: int | None = None) -> Sequence[bytes | None]:
        return await anyio.to_thread.run_sync(self._reads, keys, most_bytes, limiter=self._limiter)

    async def names(self, folder: str) -> Sequence[str]:
        return await anyio.to_thread.run_sync(names_below, self._store, folder, limiter=self._limiter)

    async def delete(self, key: str) -> None:
        await anyio.to_thread.run_sync(self._store.delete, key, limiter=self._limiter)


def read_object(store: ObjectStore, key: str, most_bytes: int | None) -> bytes | None:
    """Read an object, or its first bytes. Returns None if it does not exist. Blocking."""
    try:
        size = store.size(key)
        return store.read(key, 0, size if most_bytes is None else min(size, most_bytes))
    except ObjectMissing:
        return None


def names_below(store: ObjectStore, folder: str) -> list[str]:
    """Return the keys of all objects below a folder, ascending. Blocking."""
    return [fact.key for fact in store.list(folder)]


class ConcurrentReads:
    """Reads objects, or their first bytes, in threads of its own. Blocking."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(_THREADS, "chain-read")  # started by the first call

    def __call__(self, keys: Sequence[str], most_bytes: int | None) -> list[bytes | None]:
        return list(self._threads.map(lambda key: read_object(self._store, key, most_bytes), keys))
