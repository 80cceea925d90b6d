"""`MetadataStore` on etcd, through which several brokers agree (docs/design.md#8-metadata-and-the-cluster).

Every read is linearizable and shows how a change of unknown outcome ended, although such a change may still be under way
in etcd when a later read is answered: each transaction is guarded by the absence of a key, its fence. After an unknown
outcome the store creates that key before its next operation. From then on the change has happened or never will.

This module evens out where etcd differs from the protocol: leases of whole seconds, a watch that begins at the
compacted revision, deletions without the create revision of the deleted key.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, Self

import anyio
from pydanube_core.errors import ClosedResource, ClusterError
from pydanube_core.generated import etcd_pb2 as pb

from pydanube_storage.metadata.errors import LeaseLost
from pydanube_storage.metadata.etcd import link as api
from pydanube_storage.metadata.etcd.address import EtcdOptions
from pydanube_storage.metadata.etcd.link import EtcdLink, Method
from pydanube_storage.metadata.etcd.messages import Messages
from pydanube_storage.metadata.etcd.reads import Reads
from pydanube_storage.metadata.etcd.refusals import AlreadyCompacted, AnswerTooLarge, LeaseNotFound
from pydanube_storage.metadata.etcd.watch import EtcdWatch
from pydanube_storage.metadata.leases import check_ttl
from pydanube_storage.metadata.leaving import leave
from pydanube_storage.metadata.model import (
    MAX_PAGE_ITEMS,
    Event,
    Guard,
    KeyRange,
    KeyValue,
    LeaseId,
    Put,
    RangePage,
    Revision,
    Write,
    check_from_revision,
    check_key,
    check_limit,
    check_transaction,
)
from pydanube_storage.metadata.protocol import StoreStatistics

_FENCE_S: Final = 3600  # longer than any request is under way in etcd


class EtcdStore:
    """Use as `async with EtcdStore(options) as store` on asyncio.

    Entering reads etcd's revision. It raises `MetadataUnavailable`, `Unauthenticated`, `PermissionDenied`,
    `InvalidArgument` or `MissingExtra`, each with the remedy.
    """

    def __init__(self, options: EtcdOptions) -> None:
        self.link = EtcdLink(options)
        self._messages = Messages(options.address.prefix)
        self._stack = AsyncExitStack()
        self._tasks: Any = None
        self._reads = Reads(self._settled_call, lambda send: self._tasks.start_soon(send))
        self._open = False
        self._watches: set[EtcdWatch] = set()
        self._leases: set[LeaseId] = set()
        self._revision = Revision(0)
        self._compacted = Revision(0)
        self._cluster_id = 0
        self._transactions = 0
        self._conflicts = 0
        self._fence = secrets.token_hex(8)
        self._in_doubt: set[str] = set()  # fences of changes with unknown outcome

    @property
    def cluster_id(self) -> int:
        """etcd's own id of the cluster that answered last."""
        return self._cluster_id

    # Life

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.link)
            self._open = True
            await self.range(KeyRange.prefix("/"), limit=1)
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *failure: Any) -> bool | None:
        self._open = False
        for watch in tuple(self._watches):
            watch.close()
        self._reads.close()
        return await leave(self._stack, *failure)

    async def _call(self, method: Method, request: Any) -> Any:
        if not self._open:
            raise ClosedResource("the metadata store is closed", resource=type(self).__name__)
        answer = await self.link.call(method, request)
        self._note(answer.header)
        return answer

    async def _settled_call(self, method: Method, request: Any) -> Any:
        await self._settle()
        return await self._call(method, request)

    def _note(self, header: Any) -> None:
        self._revision = max(self._revision, Revision(header.revision))
        self._cluster_id = header.cluster_id or self._cluster_id

    # MetadataStore

    async def get(self, key: str) -> KeyValue | None:
        check_key(key)
        answer = await self._reads.read(self._messages.get(key))
        return self._messages.key_value(answer.kvs[0]) if answer.kvs else None

    async def range(
        self,
        range_: KeyRange,
        *,
        limit: int = MAX_PAGE_ITEMS,
        after: str | None = None,
        descending: bool = False,
    ) -> RangePage:
        """Read a page like `MetadataStore.range`. For a descending page etcd reads the whole range."""
        check_limit(limit)
        if after is not None:
            check_key(after, field="after")
        request = self._messages.range(range_, limit=limit, after=after, descending=descending)
        if request is None:  # an empty range: only the revision is needed
            answer = await self._reads.read(self._messages.get("/"))
            return RangePage(items=(), revision=Revision(answer.header.revision), more=False)
        while True:
            try:
                answer = await self._reads.read(request)
                break
            except AnswerTooLarge:  # large values: request a shorter page, with `more`
                request.limit = max(1, request.limit // 8)
        items = tuple(self._messages.key_value(item) for item in answer.kvs)
        return RangePage(items=items, revision=Revision(answer.header.revision), more=answer.more)

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        """Run a transaction like `MetadataStore.transact`.

        It may have happened if `MetadataUnavailable` has `outcome: "unknown"`.
        """
        fixed_guards, fixed_writes = tuple(guards), tuple(writes)
        check_transaction(fixed_guards, fixed_writes)
        while True:
            await self._settle()
            fence = self._fence
            try:
                answer = await self._call(
                    api.TXN, self._messages.transaction(fixed_guards, fixed_writes, fence=fence)
                )
            except LeaseNotFound:
                raise await self._lost_lease(fixed_writes) from None
            except BaseException as error:
                if not isinstance(error, ClusterError) or error.details.get("outcome") == "unknown":
                    self._doubt(fence)
                raise
            if answer.succeeded:
                self._transactions += 1
                return Revision(answer.header.revision)
            if not self._messages.is_fenced(answer):
                self._conflicts += 1
                raise self._messages.failed_guard(fixed_guards, answer)
            # A concurrent transaction with the same fence had an unknown outcome. This one has not happened.

    def _doubt(self, fence: str) -> None:
        self._in_doubt.add(fence)
        if self._fence == fence:
            self._fence = secrets.token_hex(8)

    async def _settle(self) -> None:
        """Ensure that no change with an unknown outcome can still happen."""
        while self._in_doubt:
            doubted = frozenset(self._in_doubt)
            lease = await self._call(api.LEASE_GRANT, pb.LeaseGrantRequest(TTL=_FENCE_S))
            await self._call(api.FENCE, self._messages.fences(doubted, lease.ID))
            self._in_doubt -= doubted

    async def _lost_lease(self, writes: Sequence[Write]) -> LeaseLost:
        """Return the lost lease: the only one, or the first of several that cannot be renewed."""
        leases = sorted({write.lease_id for write in writes if isinstance(write, Put) and write.lease_id})
        for lease_id in leases[:-1]:
            try:
                await self.keep_alive(lease_id)
            except LeaseLost as lost:
                return lost
        return LeaseLost(leases[-1])

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        """Grant a lease like `MetadataStore.grant_lease`.

        etcd rounds up to whole seconds, and to at least 1.5 times its election timeout.
        """
        check_ttl(ttl_ms)
        answer = await self._call(api.LEASE_GRANT, pb.LeaseGrantRequest(TTL=math.ceil(ttl_ms / 1000)))
        lease_id = LeaseId(answer.ID)
        self._leases.add(lease_id)
        return lease_id

    async def keep_alive(self, lease_id: LeaseId) -> int:
        answer = await self._call(api.LEASE_KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease_id))
        if answer.TTL <= 0:
            self._leases.discard(lease_id)
            raise LeaseLost(lease_id)
        return int(answer.TTL) * 1000

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        try:
            await self._call(api.LEASE_REVOKE, pb.LeaseRevokeRequest(ID=lease_id))
        except LeaseNotFound:
            raise LeaseLost(lease_id) from None
        finally:
            self._leases.discard(lease_id)

    @asynccontextmanager
    async def watch(
        self, range_: KeyRange, *, from_revision: Revision
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Watch like `MetadataStore.watch`. It waits while etcd does not answer. The caller's lease limits that time."""
        if not self._open:
            raise ClosedResource("the metadata store is closed", resource=type(self).__name__)
        check_from_revision(from_revision)
        watch = EtcdWatch(self.link, self._messages, range_, from_revision, self._note)
        self._watches.add(watch)
        self._tasks.start_soon(watch.run)
        try:
            yield watch
        finally:
            self._watches.discard(watch)
            watch.close()

    def statistics(self) -> StoreStatistics:
        """Return statistics like `MetadataStore.statistics`, of this client only."""
        return StoreStatistics(
            revision=self._revision,
            oldest_event_revision=Revision(self._compacted + 1) if self._compacted else None,
            transactions=self._transactions,
            conflicts=self._conflicts,
            commits=self._transactions,
            leases=len(self._leases),
            watchers=len(self._watches),
            waiting=self.link.waiting,
            failed=False,
        )

    # Beyond the protocol

    async def check_writable(self) -> None:
        """Check that etcd accepts writes, without writing. Reads also succeed while etcd is full. Raises like `transact`."""
        await self._call(api.FENCE, self._messages.write_that_never_happens())

    async def forget_history(self, up_to: Revision) -> None:
        """Compact etcd's history: changes at `up_to` and before can no longer be watched.

        No error if it was compacted before.
        """
        with suppress(AlreadyCompacted):
            await self._call(api.COMPACT, pb.CompactionRequest(revision=up_to, physical=True))
        self._compacted = max(self._compacted, up_to)
