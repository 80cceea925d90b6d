"""One leader at a time, by the store's guards alone.

A candidate writes the leader's key if it is absent: of two at the same instant the store lets one through. The key
hangs on the candidate's registration, so it goes when that does. Its create revision is the fencing token: whatever
a leader writes is guarded by `Leadership.guard`, which a leader that was replaced cannot pass any more, however late
it notices. Only `LEADING` may act; `NO_LEADER` may not.

On a store without leases (a lone broker's) a dead leader's key stays. There only the process that holds the
directory lock can look at it, so a key of another life is of a dead one, and is deleted under guard first.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self, assert_never

import anyio
from pydanube_core.errors import ClusterError, Conflict, Retryable
from pydanube_storage.metadata import (
    Absent,
    BootClock,
    Clock,
    Compacted,
    Delete,
    GuardFailed,
    KeyValue,
    LeaseLost,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
)
from pydanube_storage.metadata.leaving import leave

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import BrokerId, FencingToken, Incarnation
from pydanube_broker.cluster.membership import Registration
from pydanube_broker.records.json_record import JsonRecord

log = logging.getLogger("pydanube.cluster")
_RESIGN_S: Final = 2.0
_RETRY_MS: Final = 1_000


class ElectionState(StrEnum):
    NO_LEADER = "no_leader"
    LEADING = "leading"
    FOLLOWING = "following"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRecord(JsonRecord):
    broker_id: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The leader as one record of the store: who leads, and the token that guards its writes."""

    broker_id: BrokerId
    incarnation: Incarnation
    token: FencingToken

    @property
    def guard(self) -> ModRevision:
        """Holds while this leadership lasts: the key is written once, so its revisions are one."""
        return ModRevision(keys.LEADER, Revision(self.token))


class Move(StrEnum):
    """The next step of a candidate."""

    CAMPAIGN = "campaign"  # nobody leads
    LEAD = "lead"  # we do
    FOLLOW = "follow"  # somebody else does
    CLEAR = "clear"  # a key of the dead is in the way


def decide(found: LeaderRecord | None, own: Registration) -> Move:
    """Pure: from the leader's key and the own registration to the next move."""
    if found is None:
        return Move.CAMPAIGN
    if found.broker_id != str(own.broker_id):
        return Move.CLEAR if own.lease_id is None else Move.FOLLOW
    if found.incarnation == own.incarnation:
        return Move.LEAD
    # A former life of ours was replaced when we registered, whatever its lease says; a later one has replaced us.
    return Move.CLEAR if found.incarnation < own.incarnation else Move.FOLLOW


class Election:
    """A registration's candidature: `async with Election(store, registration) as election`.

    Inside, a task campaigns whenever nobody leads, and watches the key otherwise. On leaving it steps down.
    `state` and `leader` are what was last seen; both end with the registration.
    """

    def __init__(
        self, store: MetadataStore, registration: Registration, *, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._own = registration
        self._clock: Clock = clock or BootClock()
        self._state = ElectionState.NO_LEADER
        self._leader: Leadership | None = None
        self._seen_at = Revision(0)
        self._changed = anyio.Event()
        self._stack = AsyncExitStack()

    @property
    def state(self) -> ElectionState:
        return self._state if self._own.is_held else ElectionState.NO_LEADER

    @property
    def leader(self) -> Leadership | None:
        """Who leads, as last seen."""
        return self._leader

    @property
    def leadership(self) -> Leadership:
        """Return this broker's leadership. Raises `Conflict` unless it is LEADING."""
        if self.state is not ElectionState.LEADING or self._leader is None:
            raise Conflict(f"broker {self._own.broker_id} does not lead", state=str(self.state))
        return self._leader

    async def wait_until(self, *states: ElectionState) -> ElectionState:
        """Wait for one of the states."""
        while self.state not in states:
            await self._changed.wait()
        return self.state

    async def campaign(self) -> ElectionState:
        """Take the lead if nobody has it, else note who does. One attempt or more; never waits for others."""
        while True:
            page = await self._store.range(keys.only(keys.LEADER))
            item = page.items[0] if page.items else None
            self._seen_at = page.revision
            try:
                found = None if item is None else LeaderRecord.from_json(item.value, key=item.key)
                move = decide(found, self._own)
            except ClusterError:
                if self._own.lease_id is not None:
                    raise  # somebody may lead
                found, move = None, Move.CLEAR  # a lone broker's: whoever it named is dead
            try:
                match move:
                    case Move.LEAD | Move.FOLLOW:
                        assert item is not None
                        self._see(item, found, leading=move is Move.LEAD)
                        return self.state
                    case Move.CLEAR:
                        assert item is not None
                        guard = ModRevision(keys.LEADER, item.mod_revision)
                        await self._store.transact([Delete(keys.LEADER)], guards=[guard])
                    case Move.CAMPAIGN:
                        self._set(ElectionState.NO_LEADER, None)
                        await self._write()
                    case _:
                        assert_never(move)
            except GuardFailed:
                continue  # somebody was faster: look again (a replaced registration is a `Conflict` of its own)

    async def step_down(self) -> None:
        """Give up the lead, if this broker has it. Another may lead by the time this returns."""
        leader, self._leader = self._leader, None
        was_leading = self._state is ElectionState.LEADING
        self._set(ElectionState.NO_LEADER, None)
        if was_leading and leader is not None:
            try:
                await self._store.transact([Delete(keys.LEADER)], guards=[leader.guard])
            except GuardFailed:
                return  # it was gone already

    async def __aenter__(self) -> Self:
        await self.campaign()
        group = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(group.cancel_scope.cancel)
        group.start_soon(self._follow)
        group.start_soon(self._end_with_registration, group.cancel_scope)
        return self

    async def __aexit__(self, *failure: Any) -> bool | None:
        try:
            return await leave(self._stack, *failure)
        finally:
            with anyio.move_on_after(_RESIGN_S, shield=True):
                try:
                    await self.step_down()
                except ClusterError as error:
                    log.info("step_down_failed", extra={"code": error.code})

    async def _write(self) -> None:
        record = LeaderRecord(broker_id=str(self._own.broker_id), incarnation=self._own.incarnation)
        put = Put(keys.LEADER, record.to_json(), lease_id=self._own.lease_id)
        # The registration counted its incarnation: that key at that revision is the proof that no later life came.
        proof = ModRevision(keys.incarnation_key(self._own.broker_id), self._own.revision)
        try:
            await self._store.transact([put], guards=[proof, Absent(keys.LEADER)])
        except GuardFailed as error:
            if error.guard == proof:
                raise Conflict(
                    f"another life of broker {self._own.broker_id} has registered: this one may not lead",
                    broker_id=str(self._own.broker_id),
                    incarnation=self._own.incarnation,
                ) from error
            raise

    async def _follow(self) -> None:
        """Campaign again whenever the leader changes, until the registration is lost."""
        while True:
            try:
                await self._wait_for_change()
                await self.campaign()
            except (LeaseLost, Conflict):
                return  # the registration is gone or replaced; `Membership` deals with that
            except Compacted:
                self._seen_at = Revision(0)  # we looked away too long: look again, now
            except Retryable as error:
                log.warning("election_waits", extra={"code": error.code})
                await self._clock.wait_until(self._clock.now_ms() + _RETRY_MS)

    async def _wait_for_change(self) -> None:
        if not self._seen_at:
            return
        start = Revision(self._seen_at + 1)
        async with self._store.watch(keys.only(keys.LEADER), from_revision=start) as events:
            await anext(events)

    async def _end_with_registration(self, candidature: anyio.CancelScope) -> None:
        await self._own.lost.wait()
        self._set(ElectionState.NO_LEADER, None)
        candidature.cancel()

    def _see(self, item: KeyValue, found: LeaderRecord | None, *, leading: bool) -> None:
        assert found is not None
        leader = Leadership(
            broker_id=BrokerId(int(found.broker_id)),
            incarnation=Incarnation(found.incarnation),
            token=FencingToken(item.create_revision),
        )
        self._set(ElectionState.LEADING if leading else ElectionState.FOLLOWING, leader)

    def _set(self, state: ElectionState, leader: Leadership | None) -> None:
        if (state, leader) == (self._state, self._leader):
            return
        self._state, self._leader = state, leader
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
