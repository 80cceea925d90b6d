"""A broker's registration: held under a lease, renewed after a third of it, given up before the store can end it.

Each registration has an incarnation, counted in a key that outlives it, so that writes of an earlier life of the same
broker id are distinguished and fenced. Clocks never decide safety: the lease only bounds how long others wait. It is
counted from *sending* the last answered renewal, so the broker gives up before the store does.

A lone broker on the embedded store has no ttl: its directory lock is the lease, and the key stays when it dies.

A registration is held until it is lost, for good. Then the broker registers again, with a new lease and incarnation,
and must treat all its topics as gone, because they may have been reassigned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Self

import anyio
from pydanube_core.errors import ClusterError, Conflict, Fenced, Retryable
from pydanube_core.facts import BrokerAddress
from pydanube_storage.metadata import (
    Absent,
    BootClock,
    Clock,
    KeyValue,
    LeaseId,
    LeaseLost,
    MetadataStore,
    Revision,
    read_all,
)
from pydanube_storage.metadata.leaving import leave

from pydanube_broker import software
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.format_gate import METADATA_FORMAT
from pydanube_broker.cluster.ids import BrokerId, Incarnation
from pydanube_broker.cluster.journal_record import JournalRecord, OwnJournal, registered
from pydanube_broker.records import Change, change
from pydanube_broker.records.json_record import UNLESS_DEFAULT, JsonRecord
from pydanube_broker.records.quarantine import counted_at_most

log = logging.getLogger("pydanube.cluster")

_BOOT: Final = "boot"  # the reason of the first registration of a process
_RETRY_MS: Final = 1_000  # pause after the store did not answer, doubled up to 5 s
_RETRY_MAX_MS: Final = 5_000
_LEAVE_S: Final = 2.0  # maximum for deregistering: without it the lease expires


class BrokerState(StrEnum):
    STARTING = "starting"  # takes no topic from others yet
    ACTIVE = "active"
    # Its disk is full, or its journal failed: it keeps its topics, and is given no others
    READ_ONLY = "read_only"
    DRAINING = "draining"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(JsonRecord):
    """The bytes of a topic that its next owner has copied, and the last known total."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord(JsonRecord):
    """A registration as other brokers see it. Ids are decimal strings, as in every interface."""

    broker_id: str
    incarnation: int
    broker_url: str
    admin_url: str
    metrics_url: str | None = None  # never set, but older builds read it
    state: BrokerState
    reason: str
    registered_at_ms: int
    software: str = ""  # its version
    zone: Annotated[str, UNLESS_DEFAULT] = ""
    name: Annotated[str, UNLESS_DEFAULT] = ""  # its setting `server.name`, which older builds ignore
    # `owner_choice.rounded_load`, None until it has reported
    load: Annotated[Mapping[str, float] | None, UNLESS_DEFAULT] = None
    metadata_format: int = 1  # the highest that its build reads and writes (`format_gate`)
    copies: Annotated[bool, UNLESS_DEFAULT] = False  # topics move to it by copies, which older builds lack
    # It rebuilds topics from the chain of a lost owner's journal, which older builds do not
    inherits: Annotated[bool, UNLESS_DEFAULT] = False
    # Bytes copied since its start, and progress of current copies by topic id, by which the leader detects hanging moves
    copied_bytes: Annotated[int, UNLESS_DEFAULT] = 0
    copying: Annotated[Mapping[str, Progress] | None, UNLESS_DEFAULT] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationRecord(JsonRecord):
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerm:
    """A lease from its holder's view. Pure. `sent_ms`: when the last answered renewal was sent."""

    ttl_ms: int
    sent_ms: int

    @property
    def renew_at_ms(self) -> int:
        return self.sent_ms + self.ttl_ms // 3

    @property
    def deadline_ms(self) -> int:
        """The time from which on the store may have ended the lease."""
        return self.sent_ms + self.ttl_ms

    def pause_ms(self, failures: int) -> int:
        """Return the pause after so many renewals without an answer: 1 s doubling to 5 s, at most ttl / 6."""
        return min(_RETRY_MS << min(failures, 8), _RETRY_MAX_MS, max(1, self.ttl_ms // 6))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Registration:
    """One registration. `lost` is set once, when it is no longer valid."""

    broker_id: BrokerId
    incarnation: Incarnation
    lease_id: LeaseId | None
    revision: Revision
    lost: anyio.Event = field(default_factory=anyio.Event)

    @property
    def is_held(self) -> bool:
        return not self.lost.is_set()


class Membership:
    """`async with Membership(store, me, ttl_ms=…) as membership`: registered inside, deregistered after.

    Args:
        ttl_ms: duration of the lease, None on a store that only this process can open.
        wall_ms: milliseconds since 1970, shown as `registered_at_ms`.
        state: state of the first registration. Later ones have the state that was set last.
        journal: this broker's journal, for its record, None on a store that only this process can open.

    `registration` is the current one. When it is lost this object's task registers again as soon as the store answers.
    Users of the old registration wait for its `lost` and then take the new `registration`.
    """

    def __init__(
        self,
        store: MetadataStore,
        me: BrokerAddress,
        *,
        ttl_ms: int | None,
        wall_ms: Callable[[], int],
        clock: Clock | None = None,
        state: BrokerState = BrokerState.ACTIVE,
        journal: OwnJournal | None = None,
    ) -> None:
        self._state = state
        self._journal = journal
        self._load: Mapping[str, float] | None = None
        self._copied: tuple[int, Mapping[str, Progress] | None] = (0, None)
        self._renewed = anyio.Event()
        self._store = store
        self._me = me
        self._broker_id = BrokerId(int(me.broker_id))
        self._ttl_ms = ttl_ms
        self._wall_ms = wall_ms
        self._clock: Clock = clock or BootClock()
        self._stack = AsyncExitStack()
        self._registration: Registration | None = None
        self._term: LeaseTerm | None = None

    @property
    def registration(self) -> Registration:
        assert self._registration is not None, "use it inside its block"
        return self._registration

    @property
    def is_overdue(self) -> bool:
        """Whether the store may have ended the lease, by this broker's clock."""
        return self._term is not None and self._clock.now_ms() >= self._term.deadline_ms

    @property
    def state(self) -> BrokerState:
        """Return the state that was published last."""
        return self._state

    async def __aenter__(self) -> Self:
        await self._register(_BOOT)
        if self._ttl_ms is not None:
            group = await self._stack.enter_async_context(anyio.create_task_group())
            self._stack.callback(group.cancel_scope.cancel)
            group.start_soon(self._stay)
        return self

    async def __aexit__(self, *failure: Any) -> bool | None:
        try:
            return await leave(self._stack, *failure)
        finally:
            await self._leave()

    async def set_state(self, state: BrokerState, *, reason: str) -> None:
        """Publish another state. Raises `Conflict` if the registration is gone or belongs to another life."""
        await self._show(lambda record: replace(record, state=state, reason=reason))
        self._state = state

    async def report_load(self, load: Mapping[str, float]) -> None:
        """Publish the load of this broker, unless it is unchanged. Raises as `set_state`."""
        if load != self._load:
            await self._show(lambda record: replace(record, load=load))
            self._load = load

    async def report_copied(self, copied_bytes: int, copying: Mapping[str, Progress]) -> None:
        """Publish the copied bytes and the current copies of this broker, unless unchanged. Raises as `set_state`."""
        reported = copied_bytes, copying or None
        if reported != self._copied:
            await self._show(lambda record: replace(record, copied_bytes=reported[0], copying=reported[1]))
            self._copied = reported

    async def _show(self, shown: Callable[[MemberRecord], MemberRecord]) -> None:
        key, mine = keys.member_key(self._broker_id), self.registration

        async def decide(change: Change) -> None:
            item = await change.read(key)
            record = None if item is None else MemberRecord.from_json(item.value, key=key)
            if record is None or record.incarnation != mine.incarnation:
                raise Conflict(
                    f"broker {mine.broker_id} is no longer registered as incarnation {mine.incarnation}",
                    broker_id=str(mine.broker_id),
                    incarnation=mine.incarnation,
                )
            change.put(key, shown(record), lease_id=mine.lease_id)

        await change(self._store, decide)

    async def renewed_after(self, former: Registration) -> None:
        """Wait for the registration that replaces a lost one."""
        while self.registration is former:
            await self._renewed.wait()

    async def until_renewed(self) -> None:
        """Wait for the next registration of this process."""
        await self._renewed.wait()

    async def _register(self, reason: str) -> None:
        """Take a lease and the next incarnation. The newer life counts, so it overwrites the key of a former one."""
        sent_ms = self._clock.now_ms()
        lease_id = None if self._ttl_ms is None else await self._store.grant_lease(self._ttl_ms)
        broker_id = self._broker_id
        counter_key, member_key = keys.incarnation_key(broker_id), keys.member_key(broker_id)

        async def decide(change: Change) -> Incarnation:
            incarnation = _next_incarnation(await change.read(counter_key))
            change.require(Absent(keys.removed_key(broker_id)), was_removed(broker_id))
            change.put(counter_key, IncarnationRecord(incarnation=incarnation))
            change.put(member_key, self._record(incarnation, self._state, reason), lease_id=lease_id)
            if self._journal is not None:
                await self._put_journal(change, self._journal, is_start=reason == _BOOT)
            return incarnation

        outcome = await change(self._store, decide)
        assert outcome.revision is not None
        self._registration = Registration(
            broker_id=broker_id, incarnation=outcome.result, lease_id=lease_id, revision=outcome.revision
        )
        if self._ttl_ms is not None:
            self._term = LeaseTerm(ttl_ms=self._ttl_ms, sent_ms=sent_ms)
        renewed, self._renewed = self._renewed, anyio.Event()
        renewed.set()

    async def _put_journal(self, change: Change, journal: OwnJournal, *, is_start: bool) -> None:
        key = keys.journal_key(self._broker_id)
        item = await change.read(key)
        found = None if item is None else JournalRecord.from_json(item.value, key=key)
        record = registered(found, journal, is_start=is_start)
        if record != found:
            change.put(key, record)

    async def _stay(self) -> None:
        while True:
            async with anyio.create_task_group() as group:
                group.start_soon(self._end_at_deadline, group.cancel_scope)
                await self._renew_until_lost()
                group.cancel_scope.cancel()
            self.registration.lost.set()
            failures = 0
            while not self.registration.is_held:
                try:
                    await self._register("registration_expired")
                except Fenced as error:
                    log.error("not_registered", extra={"why": error.message})
                    return  # the broker was removed and never registers again: the watch of the removal stops it
                except Retryable:
                    assert self._term is not None
                    await self._clock.wait_until(self._clock.now_ms() + self._term.pause_ms(failures))
                    failures += 1

    async def _end_at_deadline(self, renewing: anyio.CancelScope) -> None:
        assert self._term is not None
        while self._clock.now_ms() < (deadline_ms := self._term.deadline_ms):
            await self._clock.wait_until(deadline_ms)
        renewing.cancel()

    async def _renew_until_lost(self) -> None:
        """Renew in time. Returns when the store reports that the lease is gone. Cancelled at its deadline."""
        lease_id = self.registration.lease_id
        assert lease_id is not None
        assert self._term is not None
        failures = 0
        wake_ms = self._term.renew_at_ms
        while True:
            await self._clock.wait_until(wake_ms)
            sent_ms = self._clock.now_ms()
            try:
                ttl_ms = await self._store.keep_alive(lease_id)
            except LeaseLost:
                return
            except Retryable:
                wake_ms = self._clock.now_ms() + self._term.pause_ms(failures)
                failures += 1
            else:
                self._term = LeaseTerm(ttl_ms=min(ttl_ms, self._term.ttl_ms), sent_ms=sent_ms)
                wake_ms = self._term.renew_at_ms
                failures = 0

    async def _leave(self) -> None:
        """Deregister, so that others need not wait for the lease. Deletes only the key of this life."""
        mine = self.registration
        was_held = mine.is_held
        mine.lost.set()
        if not was_held:
            return
        key = keys.member_key(mine.broker_id)
        with anyio.move_on_after(_LEAVE_S, shield=True):
            try:
                if mine.lease_id is not None:
                    await self._store.revoke_lease(mine.lease_id)
                    return

                async def decide(change: Change) -> None:
                    item = await change.read(key)
                    if item and MemberRecord.from_json(item.value, key=key).incarnation == mine.incarnation:
                        change.delete(key)

                await change(self._store, decide)
            except ClusterError as error:
                log.info("deregistration_failed", extra={"code": error.code})

    def _record(self, incarnation: Incarnation, state: BrokerState, reason: str) -> MemberRecord:
        return MemberRecord(
            broker_id=self._me.broker_id,
            incarnation=incarnation,
            broker_url=self._me.broker_url,
            admin_url=self._me.admin_url,
            state=state,
            reason=reason,
            registered_at_ms=self._wall_ms(),
            software=software.version(),
            zone=self._me.zone,
            name=self._me.name,
            load=self._load,
            metadata_format=METADATA_FORMAT,
            copies=self._ttl_ms is not None,
            inherits=self._ttl_ms is not None,
            copied_bytes=self._copied[0],
            copying=self._copied[1],
        )


_ONCE_MORE: Final = (
    "If it is started again, it writes messages that only its journal has to lost+found in the object store"
)


def was_removed(broker_id: BrokerId, tail: str = _ONCE_MORE) -> Fenced:
    """Return the error for a broker that was removed (`removal`). `tail`: a sentence on its remaining data."""
    return Fenced(
        f"broker {broker_id} was removed from the cluster, and other brokers own its topics now. {tail}. "
        "Give a new broker an empty --data-dir",
        broker_id=str(broker_id),
    )


def _next_incarnation(counter: KeyValue | None) -> Incarnation:
    if counter is None:
        return Incarnation(1)
    try:
        last = IncarnationRecord.from_json(counter.value, key=counter.key).incarnation
    except ClusterError as error:
        last = counted_at_most(counter, error)
    return Incarnation(last + 1)


async def check_nobody_registered(store: MetadataStore, url: str) -> None:
    """Raise `Conflict` if brokers are registered on the store: they run, or were killed a moment ago."""
    members, _ = await read_all(store, keys.MEMBERS)
    if members:
        names = ", ".join(str(keys.number_in_key(item.key)) for item in members)
        raise Conflict(
            f"brokers are registered on {url} ({names}): stop all of them. Wait for 10 s if one was killed, or if the "
            "restored etcd has leases of brokers. Nothing was changed",
            field="metadata.url",
            value=url,
        )
