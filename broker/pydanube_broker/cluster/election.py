"""A task leased to one member at a time, by the store's guards alone. The cluster's leadership is such a task.

A candidate writes the task's key if it is absent: the store accepts one of several. The key is bound to the
candidate's registration, and is deleted with it. Its create revision is the fencing token: each write of a leader is
guarded by `Leadership.guard`, which fails for a replaced leader, however late it notices. Only a member in state
`LEADING` may act. Each task has its own key (`Election(…, key=…)`).

On a store without leases (a lone broker's) a dead leader's key stays. Only the process that holds the directory lock
can read it, so a key of another life belongs to a dead process, and is deleted under guard first.
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
    BootClock,
    Clock,
    Delete,
    GuardFailed,
    KeyRange,
    KeyValue,
    LeaseLost,
    MetadataStore,
    ModRevision,
    Revision,
)
from pydanube_storage.metadata.leaving import leave

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import BrokerId, FencingToken, Incarnation
from pydanube_broker.cluster.membership import Registration
from pydanube_broker.records import Change, JsonRecord, Records, Table, change

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
    """The leader according to one record of the store, with the token that guards its writes."""

    broker_id: BrokerId
    incarnation: Incarnation
    token: FencingToken
    key: str = keys.LEADER

    @property
    def guard(self) -> ModRevision:
        """The guard that holds while this leadership lasts: the key is written once, so its revision never changes."""
        return ModRevision(self.key, Revision(self.token))


class Move(StrEnum):
    """The next step of a candidate."""

    CAMPAIGN = "campaign"  # there is no leader
    LEAD = "lead"  # this broker leads
    FOLLOW = "follow"  # another member leads
    CLEAR = "clear"  # the key of a dead process is in the way


def decide(found: LeaderRecord | None, own: Registration) -> Move:
    """Return the next move, by the leader's key and this broker's registration. Pure."""
    if found is None:
        return Move.CAMPAIGN
    if found.broker_id != str(own.broker_id):
        return Move.CLEAR if own.lease_id is None else Move.FOLLOW
    if found.incarnation == own.incarnation:
        return Move.LEAD
    # Our registration has replaced any former life of ours, regardless of its lease. A later life has replaced us.
    return Move.CLEAR if found.incarnation < own.incarnation else Move.FOLLOW


class Election:
    """A registration's candidature: `async with Election(store, registration) as election`.

    Inside, a task campaigns whenever the key changes. On leaving it steps down. `state` and `leader` are the last seen
    ones. Both end with the registration.
    """

    def __init__(
        self,
        store: MetadataStore,
        registration: Registration,
        *,
        clock: Clock | None = None,
        key: str = keys.LEADER,
    ) -> None:
        self._store = store
        self._key = key
        self._news = anyio.Event()
        self._gave_up: Revision | None = None  # of the lead that was given up, until its key is deleted
        self._table = Table(KeyRange.only(key), lambda item: item)  # `campaign` parses
        self._records = Records(store, [self._table], changed=lambda keys: self._news.set())
        self._own = registration
        self._clock: Clock = clock or BootClock()
        self._state = ElectionState.NO_LEADER
        self._leader: Leadership | None = None
        self._changed = anyio.Event()
        self._stack = AsyncExitStack()

    @property
    def state(self) -> ElectionState:
        return self._state if self._own.is_held else ElectionState.NO_LEADER

    @property
    def leader(self) -> Leadership | None:
        """The leader that was last seen."""
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
        """Take the lead if the task has no leader, else note the leader. Retries conflicts, but never waits."""
        while True:
            try:
                found = await change(self._store, self._step)
            except GuardFailed:
                continue  # another candidate was faster: read the key again
            if found.revision is None:
                return self.state

    async def _step(self, change: Change) -> None:
        """Decide on the next move. It is the last one if it writes nothing."""
        item = await change.read(self._key)
        try:
            found = None if item is None else LeaderRecord.from_json(item.value, key=item.key)
            move = decide(found, self._own)
        except ClusterError:
            if self._own.lease_id is not None:
                raise  # another member may lead
            found, move = None, Move.CLEAR  # a lone broker's store: the member that the key named is dead
        match move:
            case Move.LEAD | Move.FOLLOW:
                assert item is not None
                self._see(item, found, leading=move is Move.LEAD)
            case Move.CLEAR:
                change.delete(self._key)
            case Move.CAMPAIGN:
                self._set(ElectionState.NO_LEADER, None)
                # The registration raised the incarnation counter: its key at that revision excludes a later life
                own = self._own
                change.require(
                    ModRevision(keys.incarnation_key(own.broker_id), own.revision),
                    Conflict(
                        f"broker {own.broker_id} has registered again since: this process may not lead",
                        broker_id=str(own.broker_id),
                        incarnation=own.incarnation,
                    ),
                )
                record = LeaderRecord(broker_id=str(own.broker_id), incarnation=own.incarnation)
                change.put(self._key, record, lease_id=own.lease_id)
            case _:
                assert_never(move)

    async def step_down(self) -> None:
        """Give up the lead, if this broker has it. Another candidate may lead when this returns."""
        leader, self._leader = self._leader, None
        was_leading = self._state is ElectionState.LEADING
        self._set(ElectionState.NO_LEADER, None)
        if was_leading and leader is not None:
            self._gave_up = Revision(leader.token)
            try:
                await self._store.transact([Delete(self._key)], guards=[leader.guard])
            except GuardFailed:
                return  # the key was deleted already

    async def __aenter__(self) -> Self:
        await self._records.load()
        self._stack.push_async_callback(self._records.aclose)
        await self.campaign()
        group = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(group.cancel_scope.cancel)
        group.start_soon(self._records.follow)
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

    async def _follow(self) -> None:
        """Campaign again at each change of the key, until the registration is lost."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            if self._leaves_it_to_others():
                continue
            try:
                await self.campaign()
            except (LeaseLost, Conflict):
                return  # the registration is lost or replaced, which `Membership` handles
            except Retryable as error:
                log.warning("election_waits", extra={"code": error.code})
                self._news.set()
                await self._clock.wait_until(self._clock.now_ms() + _RETRY_MS)

    def _leaves_it_to_others(self) -> bool:
        """Return whether the change is of the key that this candidate is deleting, or has deleted."""
        gave_up, revision = self._gave_up, self._table.revision(self._key)
        if revision != gave_up:
            self._gave_up = None
        return gave_up is not None and revision in (gave_up, None)

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
            key=self._key,
        )
        self._set(ElectionState.LEADING if leading else ElectionState.FOLLOWING, leader)

    def _set(self, state: ElectionState, leader: Leadership | None) -> None:
        if (state, leader) == (self._state, self._leader):
            return
        self._state, self._leader = state, leader
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
