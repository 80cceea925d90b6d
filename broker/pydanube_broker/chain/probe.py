"""Check that an object store enforces create-only names, on which fences rely."""

from __future__ import annotations

import contextlib
import secrets

import anyio
from pydanube_core.errors import ClusterError, StoreUnsuitable

from pydanube_broker.chain.store import ChainStore

_AT_ONCE = 4


async def check_create_only(store: ChainStore, cluster: str, url: str) -> None:
    """Create objects twice, sequentially and concurrently, below `<cluster>/journals/probe/`, then delete them.

    Raises:
        StoreUnsuitable: a second object replaced the first.
        StoreUnavailable: the store does not answer.
    """
    folder = f"{cluster}/journals/probe/{secrets.token_hex(8)}"
    one, many = f"{folder}/one", f"{folder}/many"
    made: list[bool] = []

    async def create(content: bytes) -> None:
        made.append(await store.create(many, content))

    try:
        first = await store.create(one, b"first")
        kept = first and not await store.create(one, b"second") and await store.read(one) == b"first"
        if kept:
            async with anyio.create_task_group() as group:
                for number in range(_AT_ONCE):
                    group.start_soon(create, b"%d" % number)
            kept = sum(made) <= 1
    finally:
        # Otherwise an unavailable store would replace a cancellation by its error
        with contextlib.suppress(ClusterError):
            for key in (one, many):
                await store.delete(key)
    if not kept:
        raise StoreUnsuitable(
            f"the object store {url} ignores If-None-Match: * and replaces an object that exists, so a lost broker "
            "could not be fenced: topics cannot be stored there. Use another store for tier.url, such as S3, Google's, "
            "Azure's or a folder, or durability fsynced without journal.copy",
            store=url,
            field="tier.url",
        )
