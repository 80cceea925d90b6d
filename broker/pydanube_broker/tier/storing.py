"""The chain of this broker's journal, as stored topics use it: begun with the first one, and recorded for its heirs.

Heirs find the chain by the record `/journals/<broker>`. While other brokers take topics over, the record is closing and
the chain is not continued: records wait, and nothing of a stored topic is acknowledged. `begin` succeeds once the leader
has opened the record again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from pydanube_core.errors import Retryable, Unavailable

from pydanube_broker.cluster.membership import Membership, Registration
from pydanube_broker.tier.chain_record import ChainRecord
from pydanube_broker.tier.journal_chain import JournalChain

log = logging.getLogger("pydanube.chain")

AGAIN_S: Final = 0.5
_RETRY_MS: Final = 1_000


class Storing:
    """See the module. Single user: the loop.

    Args:
        record: the chain's part of `/journals/<broker>`, None for a lone broker.
        membership: the registrations of this broker.
        cluster: returns the folder of the cluster's objects.
    """

    def __init__(
        self,
        chain: JournalChain,
        record: ChainRecord | None,
        membership: Membership,
        cluster: Callable[[], Awaitable[str]],
    ) -> None:
        #: called when the record has that the journal is copied, with the registration from before that
        self.on_recorded: Callable[[Registration], None] = lambda registration: None
        self._chain = chain
        self._record = record
        self._membership = membership
        self._cluster = cluster
        self._wanted = anyio.Event()
        self._needed = False
        self._beginning = anyio.Lock()

    async def check(self) -> None:
        """Check that topics can be stored in the object store. Raises `StoreUnavailable`, `StoreUnsuitable`."""
        await self._chain.check(await self._cluster())

    async def begin(self, *, needed: bool = True) -> None:
        """Copy the journal from now on, and record that for heirs. Idempotent.

        Args:
            needed: topics are stored by the chain. Nothing of them is acknowledged before this is durable.

        Raises:
            Unavailable: other brokers take this broker's topics over.
            StoreUnavailable, StoreUnsuitable: see `JournalChain.want`.
        """
        async with self._beginning:
            if needed and self._chain.is_needed and self._chain.is_wanted:
                return
            if self._record is not None:
                registration = self._membership.registration
                term = await self._record.copied(self._chain.from_number)
                if term is None:
                    raise Unavailable(
                        "other brokers take topics of this one over: nothing is stored until they have them",
                        retry_after_ms=_RETRY_MS,
                    )
                await self._chain.begin_term(term)
                self.on_recorded(registration)
            await self._chain.want(await self._cluster(), needed=needed)

    @property
    def is_needed(self) -> bool:
        """Whether topics are stored by the chain, as the journal's folder has it."""
        return self._chain.is_needed

    async def not_needed(self, is_needed: Callable[[], bool]) -> None:
        """Record that no topic is stored by the chain, unless `is_needed` by then. Copying continues until a restart."""
        async with self._beginning:
            if not is_needed():
                await self._chain.not_needed()
                self._needed = False

    async def until_stored(self) -> None:
        """Wait until everything appended to the journal so far is in the object store. Raises `Fenced`, and as `begin`."""
        await self.begin()
        await self._chain.until_all_stored()

    def want(self, *, needed: bool = True) -> None:
        """Have `run` begin. Until it has, stored topics acknowledge nothing."""
        self._needed = self._needed or needed
        self._wanted.set()

    async def begin_in_time(self, *, needed: bool) -> None:
        """As `begin`, again while other brokers take topics over or the store is away."""
        told = False
        while True:
            try:
                return await self.begin(needed=needed)
            except Retryable as error:
                if not told:
                    told = True
                    log.warning("storing_waits", extra={"code": error.code, "error": error.message})
                await anyio.sleep(AGAIN_S)

    async def run(self) -> None:
        """Begin as often as it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            await self.begin_in_time(needed=self._needed)

    async def keep_recorded(self) -> None:
        """After each new registration of this process, record again that the journal is copied.

        The leader clears that when a broker is back whose chain was fenced.
        """
        while self._record is not None:
            await self._membership.until_renewed()
            while self._chain.is_wanted:
                try:
                    if await self._record.copied(self._chain.from_number) is not None:
                        break
                except Retryable as error:
                    log.info("chain_not_recorded", extra={"code": error.code})
                await anyio.sleep(AGAIN_S)
