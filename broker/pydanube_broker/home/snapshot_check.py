"""Read the newest metadata snapshot of a cluster back from the object store, and compare it: `danube cluster snapshot`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
from pydanube_core.errors import InvalidArgument
from pydanube_storage.metadata import EmbeddedStore, KeyRange, MetadataStore, read_all
from pydanube_storage.metadata.etcd import EtcdStore
from pydanube_storage.metadata.snapshots import Comparison, Snapshot, compare, read_newest
from pydanube_storage.objects import open_store

from pydanube_broker.home.cluster_file import SQLITE
from pydanube_broker.home.metadata_home import options_of
from pydanube_broker.settings.sections import EMBEDDED, Settings
from pydanube_broker.tier.options import store_options
from pydanube_broker.tier.tier import CLUSTER_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """`comparison`: None if the snapshot was only read back."""

    cluster: str
    snapshot: Snapshot
    comparison: Comparison | None


async def read_back(settings: Settings, *, verify: bool) -> ReadBack:
    """Read the newest snapshot back. With `verify`, compare it with the metadata, which it only reads.

    Raises:
        DataDirLocked: a lone broker runs, and its metadata are to be compared.
        ObjectMissing, CorruptObject, FormatTooNew: of the snapshot.
        InvalidArgument, MetadataUnavailable, StoreUnavailable.
    """
    assert settings.data.dir is not None
    folder = settings.data.dir.expanduser().absolute()
    store = open_store(store_options(settings, folder, spool="snapshot"))
    async with AsyncExitStack() as stack:
        stack.callback(store.close)
        if not verify:
            found = [each for each in store.folders("") if store.folders(each).count("metadata")]
            if len(found) != 1:
                raise InvalidArgument(
                    f"{store.url} has snapshots of {len(found)} clusters ({', '.join(found)}): --verify reads that of the "
                    "metadata",
                    field="tier.url",
                    value=store.url,
                )
            newest = await anyio.to_thread.run_sync(read_newest, store, found[0])
            return ReadBack(cluster=found[0], snapshot=newest, comparison=None)
        metadata = await stack.enter_async_context(_metadata(settings, folder))
        name = await metadata.get(CLUSTER_KEY)
        if name is None:
            raise InvalidArgument(
                f"the metadata of {folder} name no cluster: no broker with an object store has used them",
                field="metadata.url",
                value=settings.metadata.url,
            )
        cluster = name.value.decode()
        # The snapshot is read first, so that later changes have higher revisions than it.
        newest = await anyio.to_thread.run_sync(read_newest, store, cluster)
        items, revision = await read_all(metadata, KeyRange.prefix("/"))
        return ReadBack(cluster=cluster, snapshot=newest, comparison=compare(newest, items, revision))


@asynccontextmanager
async def _metadata(settings: Settings, folder: Path) -> AsyncIterator[MetadataStore]:
    if settings.metadata.url != EMBEDDED:
        async with EtcdStore(options_of(settings)) as etcd:
            yield etcd
        return
    if not (folder / SQLITE).exists():
        raise InvalidArgument(
            f"{folder} has no metadata of a lone broker: name a directory that one has used, or --metadata etcd://host:2379/prefix",
            field="data.dir",
            value=str(folder),
        )
    async with EmbeddedStore(folder / SQLITE) as lone:
        yield lone
