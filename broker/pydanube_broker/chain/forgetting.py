"""Delete the pieces of a chain that no reader needs, once the number at which reading begins is durable.

The pieces of fences and strays are never deleted: a late piece of a process that is gone must not find its name free.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from pydanube_core.errors import ClusterError

from pydanube_broker.chain.piece import (
    FENCE_BODY_BYTES,
    HEADER_BYTES,
    chain_folder,
    decode_header,
    number_in_key,
)
from pydanube_broker.chain.store import ChainStore

log = logging.getLogger("pydanube.chain")

_RETRY_S: Final = 30.0


class Forgetting:
    """Moves the beginning of one chain. `keep_from` makes its number durable."""

    def __init__(
        self, store: ChainStore, cluster: str, journal: int, keep_from: Callable[[int], Awaitable[None]]
    ) -> None:
        self._store = store
        self._folder = chain_folder(cluster, journal)
        self._journal = journal
        self._keep_from = keep_from
        self._from = 0
        self._kept: set[str] = set()  # pieces of fences and strays whose headers were read
        self._wake = anyio.Event()

    def begin_at(self, number: int) -> None:
        """Let reading begin at `number`: a reader needs no piece below it."""
        if number > self._from:
            self._from = number
            self._wake.set()

    async def run(self) -> None:
        """Delete pieces until cancelled. An unavailable store delays it."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            number = self._from  # it may rise during the call
            try:
                await self._keep_from(number)
                await self._delete_below(number)
            except ClusterError as error:
                log.warning("chain_not_shortened", extra={"error": error.message})
                await anyio.sleep(_RETRY_S)
                self._wake.set()

    async def _delete_below(self, number: int) -> None:
        pieces: list[str] = []
        before = None
        for key in await self._store.names(self._folder):
            own = number_in_key(key, self._folder)
            if own is None:
                continue
            if own >= number or key in self._kept:
                before = None
                continue
            data = await self._store.read(key, HEADER_BYTES)
            if data is None:
                continue
            header = decode_header(data, journal=self._journal, number=own)
            stray = before is not None and header.before != before.digest
            if stray or header.body_bytes == FENCE_BODY_BYTES:
                self._kept.add(key)
            else:
                pieces.append(key)
            before = before if stray else header
        for key in pieces:
            await self._store.delete(key)
