"""Send the transactions that end moves and take-overs, for the new owner. Topics that are safe together share one.

A transaction is sent as soon as a topic is due. Topics that become due during it wait for the next one, so that a
lone topic does not wait and many topics cost few transactions. If a guard of a shared transaction fails, each of its
topics is sent alone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.abc import TaskGroup
from pydanube_core.errors import ClusterError, Internal, Unavailable
from pydanube_core.names import TopicName
from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.catalog.catalog import Committed
from pydanube_storage.metadata import Guard, GuardFailed, MetadataStore, Revision, Write

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.epochs import EpochCounter, epoch_counter
from pydanube_broker.cluster.ids import BrokerId, Incarnation, TopicId
from pydanube_broker.cluster.membership import MemberRecord
from pydanube_broker.moves.move import Change, MoveStep, Preconditions, transaction, with_epoch

log = logging.getLogger("pydanube.cluster")

# Topics of one transaction, by step. A transaction has at most 100 guards and writes: an `arrive` has six, an `open` two.
SHARED: Final = {MoveStep.ARRIVE: 10, MoveStep.OPEN: 40}
# Concurrent transactions.
_CONCURRENT: Final = 4

#: returns the folder of a topic's objects
FolderOf = Callable[[TopicId, TopicName], str]
#: returns the start offset of a topic's copy. Raises `Unavailable` if there is no copy
StartOf = Callable[[TopicId], int]


@dataclass(slots=True, eq=False)
class _End:
    """A move that is to end. `outcome` is the settled change with its revision, or the error."""

    change: Change
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: tuple[Change, Revision] | ClusterError | None = None


class MoveEnds:
    """See the module. `run` carries out the work. Single user: the loop."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectCatalog,
        *,
        me: BrokerId,
        incarnation: Callable[[], Incarnation],
        folder_of: FolderOf,
        start_of: StartOf,
    ) -> None:
        self._store = store
        self._objects = objects
        self._me = me
        self._incarnation = incarnation
        self._folder_of = folder_of
        self._start_of = start_of
        self._due: dict[MoveStep, deque[_End]] = {step: deque() for step in SHARED}
        self._sending = 0

    async def send(self, change: Change, group: TaskGroup) -> tuple[Change, Revision]:
        """Carry out an `arrive` or `open`. Return it with its epoch, and its revision. A cancelled call may be carried out.

        Args:
            group: runs the transaction, which outlives this call.

        Raises:
            GuardFailed: nothing was changed. ClusterError: the outcome is unknown.
        """
        end = _End(change)
        self._due[change.step].append(end)
        if self._sending < _CONCURRENT:
            self._sending += 1
            group.start_soon(self._send_due)
        await end.done.wait()
        assert end.outcome is not None
        if isinstance(end.outcome, ClusterError):
            raise end.outcome
        return end.outcome

    async def _send_due(self) -> None:
        try:
            while step := next((each for each, due in self._due.items() if due), None):
                due = self._due[step]
                batch = [due.popleft() for _ in range(min(SHARED[step], len(due)))]
                try:
                    await self._send_together(batch)
                except Exception:  # the group is the mover's, which has other topics, too
                    log.exception("move_ends_failed")
                finally:
                    for end in batch:
                        end.outcome = end.outcome or Internal(
                            "the move has not ended: the broker stops, or its log has the defect"
                        )
                        end.done.set()
        finally:
            self._sending -= 1

    async def _send_together(self, batch: Sequence[_End]) -> None:
        starts: dict[_End, int] = {}
        for end in batch:
            try:
                is_copy = end.change.step is MoveStep.ARRIVE
                starts[end] = self._start_of(end.change.after.topic_id) if is_copy else 0
            except ClusterError as error:
                end.outcome = error
        batch = list(starts)
        if not batch:
            return
        try:
            await self._transact(starts)
        except GuardFailed as error:
            if len(batch) == 1:
                batch[0].outcome = error
                return
            for end in batch:
                await self._send_together([end])
        except ClusterError as error:
            for end in batch:
                end.outcome = error

    async def _transact(self, starts: Mapping[_End, int]) -> None:
        arriving = {end: start for end, start in starts.items() if end.change.step is MoveStep.ARRIVE}
        preconditions = dict.fromkeys(starts, Preconditions()) | (
            await self._read_preconditions(arriving) if arriving else {}
        )
        settled = {end: with_epoch(end.change, preconditions[end]) for end in starts}
        writes: list[Write] = []
        guards: list[Guard] = []
        for end, change in settled.items():
            some_writes, some_guards = transaction(change, preconditions[end])
            writes += some_writes
            guards += [guard for guard in some_guards if guard not in guards]
        revision = await self._store.transact(writes, guards=guards)
        for end, change in settled.items():
            end.outcome = change, revision

    async def _read_preconditions(self, starts: Mapping[_End, int]) -> dict[_End, Preconditions]:
        """Read all preconditions concurrently. Raises the first error."""
        members: list[Revision] = []
        heads: dict[_End, Committed | None] = {}
        counters: dict[_End, EpochCounter] = {}
        failures: list[ClusterError] = []

        async def member() -> None:
            members.append(await self._member())

        async def head(end: _End) -> None:
            heads[end] = await self._objects.head(end.change.after.topic_id)

        async def counter(end: _End) -> None:
            counters[end] = await epoch_counter(self._store, end.change.after.topic)

        async def read(what: Callable[..., Awaitable[None]], *of: _End) -> None:
            try:
                await what(*of)
            except ClusterError as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(read, member)
            for end in starts:
                group.start_soon(read, head, end)
                group.start_soon(read, counter, end)
        if failures:
            raise failures[0]
        return {
            end: Preconditions(
                head=heads[end],
                folder=self._folder_of(end.change.after.topic_id, end.change.after.topic),
                start_offset=start,
                member=members[0],
                counter=counters[end],
            )
            for end, start in starts.items()
        }

    async def _member(self) -> Revision:
        """Return the revision of this broker's registration. Raises `Unavailable` if it is not registered."""
        key = keys.member_key(self._me)
        member = await self._store.get(key)
        if member is None or MemberRecord.from_json(member.value, key=key).incarnation != self._incarnation():
            raise Unavailable(f"broker {self._me} is not registered at present", broker_id=str(self._me))
        return member.mod_revision
