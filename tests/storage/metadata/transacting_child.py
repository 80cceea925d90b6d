"""Child of the SIGKILL test: transact in a loop and print each transaction once it is acknowledged.

Eight tasks write, so that commits are shared; each transaction is two keys that must be there both or not at all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from pydanube_storage.metadata import Absent, EmbeddedStore, MetadataStore, Put


async def write(store: MetadataStore, worker: int) -> None:
    number = 0
    while True:
        name = f"{worker}-{number:06d}"
        writes = [Put(f"/left/{name}", b"l" * 200), Put(f"/right/{name}", b"r" * 200)]
        revision = await store.transact(writes, guards=[Absent(f"/left/{name}")])
        sys.stdout.write(f"{name} {revision}\n")
        sys.stdout.flush()
        number += 1


async def main() -> None:
    async with EmbeddedStore(Path(sys.argv[1])) as store, anyio.create_task_group() as group:
        for worker in range(8):
            group.start_soon(write, store, worker)


anyio.run(main)
