"""Read the time of an object store from an object that is written for this purpose.

The age of an object is the difference of two times of the store. The clocks of the brokers play no part, so a broker whose
clock is wrong deletes nothing too early.
"""

from __future__ import annotations

import secrets

from pydanube_storage.objects.protocol import ObjectStore


def store_now_ms(store: ObjectStore, folder: str) -> int | None:
    """Return the store's time in milliseconds since 1970, or None if its listings have no times.

    Args:
        folder: where an object is written, listed and deleted again.

    Raises `StoreUnavailable`.
    """
    key = f"{folder}/{secrets.token_hex(8)}.time"
    store.put(key, b"")
    try:
        return next((fact.modified_ms for fact in store.list(folder) if fact.key == key), None)
    finally:
        store.delete(key)
