"""What tests of all metadata stores share, so that one on etcd and one of our own can be asked the same."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import anyio
from pydanube_storage.metadata import DeleteRange, EventKind, KeyRange, MetadataStore, Revision
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions, EtcdStore

from tests.support.etcd import EtcdMembers

OpenStore: TypeAlias = Callable[..., AbstractAsyncContextManager[MetadataStore]]
LetPass: TypeAlias = Callable[[int], Awaitable[None]]
EVERYTHING = KeyRange.prefix("/")
_prefixes = itertools.count()


def options(etcd: EtcdMembers, *, prefix: str | None = None) -> EtcdOptions:
    """To open a store on these members, under a prefix nobody has."""
    return EtcdOptions(address=EtcdAddress.parse(etcd.url(prefix or f"/test-{next(_prefixes)}")))


@asynccontextmanager
async def opened(options: EtcdOptions) -> AsyncIterator[EtcdStore]:
    """An etcd store that leaves no key, as a lease that ran out later would move another test's revisions."""
    async with EtcdStore(options) as store:
        try:
            yield store
        finally:
            with anyio.CancelScope(shield=True):
                await store.transact([DeleteRange(EVERYTHING)])


async def revision(store: MetadataStore) -> Revision:
    return (await store.range(EVERYTHING, limit=1)).revision


async def forget(store: MetadataStore, *, keep: int) -> None:
    """Keep that many revisions of history. The other stores were opened so and do it by themselves."""
    if isinstance(store, EtcdStore):
        await store.forget_history(Revision(await revision(store) - keep))


async def until_gone(store: MetadataStore, key: str) -> None:
    """Wait for the deletion of a key whose time has come; at once but on etcd, which looks twice a second."""
    page = await store.range(EVERYTHING)
    if any(item.key == key for item in page.items):
        async with store.watch(EVERYTHING, from_revision=Revision(page.revision + 1)) as events:
            async for event in events:
                if (event.kind, event.key) == (EventKind.DELETE, key):
                    return
