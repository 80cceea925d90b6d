"""Write in bulk to a metadata store, and raise its revision above ids that are in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import anyio
from pydanube_storage.metadata import MAX_OPERATIONS, MAX_TRANSACTION_BYTES, Put, Revision
from pydanube_storage.metadata.etcd import EtcdStore

_AT_ONCE: Final = 64  # concurrent empty changes
_BETWEEN_COMPACTIONS: Final = 20_000

#: called with a line before each step of a command
Say = Callable[[str], None]


def parts(writes: Iterable[Put]) -> Iterator[list[Put]]:
    """Split writes into lists that fit into one transaction each."""
    part: list[Put] = []
    size = 0
    for write in writes:
        cost = len(write.key.encode()) + len(write.value) + 64
        if part and (len(part) == MAX_OPERATIONS or size + cost > MAX_TRANSACTION_BYTES):
            yield part
            part, size = [], 0
        part.append(write)
        size += cost
    if part:
        yield part


async def raise_revision(etcd: EtcdStore, above: Revision, change: Put, say: Say) -> None:
    """Repeat `change`, which has no effect, until etcd's revision is above `above`: no id up to it is issued again."""

    async def repeat(times: int) -> None:
        for _ in range(times):
            await etcd.transact([change])

    while (now := etcd.statistics().revision) <= above:
        say(f"etcd is at revision {now} of {above}")
        count = min(above + 1 - now, _BETWEEN_COMPACTIONS)
        async with anyio.create_task_group() as group:
            for each in range(_AT_ONCE):
                group.start_soon(repeat, len(range(each, count, _AT_ONCE)))
        await etcd.forget_history(etcd.statistics().revision)
