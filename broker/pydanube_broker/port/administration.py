"""The admin core's storage in this broker: values in the metadata store, and the audit topic."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

import anyio
from pydanube_core.audit_begin import BEGIN_KEY, AuditBegin
from pydanube_core.audit_key import AuditKey
from pydanube_core.audit_recovery import AuditRecovery
from pydanube_core.errors import (
    ClusterError,
    Conflict,
    DiskFull,
    Draining,
    JournalReadOnly,
    StoreUnavailable,
    Unavailable,
)
from pydanube_core.facts import DataChangesTaken, StateItem
from pydanube_core.names import TopicName
from pydanube_core.positions import Position, PositionKind
from pydanube_storage.audit_file import AuditFile

from pydanube_broker.home.audit_key_file import load_audit_key
from pydanube_broker.home.recovery_note import delete_note, read_note
from pydanube_broker.outcome import outcome_of
from pydanube_broker.parts import BrokerParts
from pydanube_broker.port.exports import export_path
from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_broker.security.locks import Locks
from pydanube_broker.serving.topic_access import Action
from pydanube_broker.tenants.quotas import Quotas
from pydanube_broker.topics.stored_messages import append_durably, payloads_between
from pydanube_broker.topics.topic import CLOCK, Topic, earliest_ms

log = logging.getLogger("pydanube.broker")
T = TypeVar("T")


_READ_BYTES: Final = 4 * 1024 * 1024
_AUDIT_ROOM_BYTES: Final = 64 * 1024  # of the journal, for a group of records
_AUDIT: Final = "audit/"  # keys of the audit's head and its terms
_AT_ONCE: Final = 500  # records of an export that are read and written together
_AUDIT_LOOK_S: Final = 60.0  # between two searches for records older than the audit's retention
_AUDIT_STORED_S: Final = 1.0  # that a call waits for the object store: longer than a piece of the chain takes
_PROBE: Final = "probe"  # a key written to test whether writes work


class AdministrationPart:
    """The administration's part of `BrokerPort`."""

    _broker: BrokerParts
    _key: AuditKey | None = None
    _loading_key: anyio.Lock
    _audit: Topic | None = None  # set when it is first needed
    _audit_looked_at = -_AUDIT_LOOK_S
    _is_audit_stored = True

    @property
    def life(self) -> str:
        return self._broker.life

    def clock_apart_ms(self) -> tuple[int, int]:
        return CLOCK.apart_ms()

    # -- changes by data calls ------------------------------------------------------------------------------

    def watch_data_changes(self, wake: Callable[[], None]) -> None:
        self._broker.data_changes.watch(wake)

    def take_data_changes(self) -> DataChangesTaken:
        return self._broker.data_changes.take()

    # -- state -----------------------------------------------------------------------------------------------

    async def read_state(self, key: str) -> StateItem | None:
        return await self._broker.admin_state.read(self._kept_as(key))

    async def list_state(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, descending: bool = False
    ) -> Sequence[StateItem]:
        return await self._broker.admin_state.list(prefix, after=after, limit=limit, descending=descending)

    async def is_over(self, life: str) -> bool:
        return await self._broker.admin_state.is_over(life)

    async def write_state(
        self, changes: Mapping[str, bytes | None], *, expected: Mapping[str, int | None] | None = None
    ) -> int:
        with self._noted("METADATA_UNWRITABLE"):
            return await self._broker.admin_state.write(
                {self._kept_as(key): value for key, value in changes.items()},
                {self._kept_as(key): revision for key, revision in (expected or {}).items()},
            )

    def _kept_as(self, key: str) -> str:
        """Return the stored key of a value. Each of several brokers has an audit of its own, with head and keys."""
        if key.startswith(_AUDIT) and self._broker.registry.ownership.several:
            return f"{_AUDIT}{self._broker.data_dir.broker_id}/{key.removeprefix(_AUDIT)}"
        return key

    @property
    def locks(self) -> Locks | None:
        return self._broker.locks

    @property
    def quotas(self) -> Quotas:
        return self._broker.registry.quotas

    # -- audit -----------------------------------------------------------------------------------------------

    async def audit_key(self) -> AuditKey:
        async with self._loading_key:  # concurrent callers get the same new one
            if self._key is None:
                broker = self._broker
                self._key = await self._in_thread(
                    load_audit_key, broker.data_dir, broker.settings.admin.audit_key
                )
            return self._key

    async def audit_recovery(self) -> AuditRecovery | None:
        return await self._in_thread(read_note, self._broker.data_dir.path)

    async def audit_recovered(self) -> None:
        await self._in_thread(delete_note, self._broker.data_dir.path)

    async def open_audit(self) -> tuple[int, bytes | None]:
        topic = self._audit = await self._broker.registry.audit_topic()
        end = topic.state.next_offset
        if topic.commit < end:
            await outcome_of(lambda done: topic.when_committed(end, done))
        if topic.commit == topic.start_offset:
            return topic.commit, None
        last = await self._read(topic, topic.commit - 1, 1)
        return topic.commit, last[0][1] if last else None

    async def append_audit(self, payloads: Sequence[bytes], *, at: int) -> None:
        with self._noted("AUDIT_UNWRITABLE"):
            topic = await self._broker.registry.audit_topic()
            if topic.state.next_offset != at:
                raise Conflict(f"{topic.name} goes on at {topic.state.next_offset} and not at {at}")
            await append_durably(topic, payloads, producer="audit", system=True)
        await self._store_audit()

    async def _store_audit(self) -> None:
        """If topics are stored in the object store, wait at most 1 s until it has the audit records, too."""
        chain, is_stored = self._broker.chain, False
        if not chain.is_needed:
            return
        found = chain.statistics()
        if found is not None and found.last_error is None:
            with suppress(ClusterError), anyio.move_on_after(_AUDIT_STORED_S):
                await chain.until_all_stored()
                is_stored = True
        if is_stored != self._is_audit_stored:
            self._is_audit_stored = is_stored
            if is_stored:
                log.info("audit_stored_again")
            else:
                log.warning(
                    "audit_only_on_disk", extra={"why": "the object store does not have the records in time"}
                )

    async def read_audit(self, *, start: int, max_messages: int) -> tuple[int, Sequence[tuple[int, bytes]]]:
        topic = await self._broker.registry.audit_topic()
        return topic.start_offset, await self._read(topic, max(start, topic.start_offset), max_messages)

    async def keep_audit_begin(self) -> None:
        """Move the begin of the audit to where its retention permits, and only then let older records be deleted.

        The limit `retention_offset` of the topic is the begin. Retention of the journal and of the cold tier read it,
        so they delete nothing else.
        """
        topic = self._audit
        if topic is None or topic.commit <= topic.start_offset:
            return
        wanted = min(await self._audit_wanted(topic), topic.commit - 1)  # one record stays
        if wanted <= topic.gate.limits.retention_offset:
            return
        key, stored = await self.audit_key(), await self.read_state(BEGIN_KEY)
        begin = AuditBegin() if stored is None else AuditBegin.from_json(stored.value, key)
        if begin is None:
            return  # it was altered, and audit.verify reports that
        if wanted > begin.seq:
            [(_, record)] = await self._read(topic, wanted, 1)
            begin = AuditBegin(wanted, str(json.loads(record)["prev_hash"]))
            revision = None if stored is None else stored.revision
            await self.write_state({BEGIN_KEY: begin.to_json(key)}, expected={BEGIN_KEY: revision})
        topic.gate.set_limits(replace(topic.gate.limits, retention_offset=begin.seq))

    async def _audit_wanted(self, topic: Topic) -> int:
        """Return the offset below which the settings permit the deletion of audit records."""
        wanted = self._broker.retention.wanted.get(topic.topic_id, 0)
        kept_s, now = self._broker.settings.admin.audit_retention, anyio.current_time()
        if kept_s is not None and now >= self._audit_looked_at + _AUDIT_LOOK_S:
            self._audit_looked_at = now
            place = Position(PositionKind.TIME, earliest_ms() - int(kept_s * 1000))
            await topic.prepare(place)
            wanted = max(wanted, topic.resolve(place))
        return wanted

    async def export_audit(
        self, *, start: int | None, most: int, file: str | None, any_folder: bool, into: str | None
    ) -> Mapping[str, Any]:
        """Copy records to a file of this machine, or into a topic, in order: {path, records, next_seq, end_seq}.

        Args:
            start: the first record's number. None: the first one missing in the file, or the oldest.
        """
        path = None if file is None else export_path(self._broker.data_dir.path, file, any_folder=any_folder)
        target = None
        if into is not None:
            target = self._broker.access.topic(COLD_CALL, Action.PRODUCE, TopicName.parse(into, field="into"))
        topic = await self._broker.registry.audit_topic()
        with ExitStack() as opened:
            kept: AuditFile | None = None
            if path is not None:
                kept = opened.enter_context(await self._in_thread(AuditFile, path))
                start = kept.next_after(start)
            at, done = max(start or 0, topic.start_offset), 0
            while done < most and (found := await self._read(topic, at, min(_AT_ONCE, most - done))):
                payloads = [payload for _, payload in found]
                if kept is not None:
                    await self._in_thread(kept.append, payloads)
                if target is not None:
                    await append_durably(target, payloads, producer="administration", checked=True)
                at, done = found[-1][0] + 1, done + len(found)
        return {
            "path": None if path is None else str(path),
            "records": done,
            "next_seq": at,
            "end_seq": topic.commit,
        }

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        with self._broker.engine.worker_threads.pending():
            return await anyio.to_thread.run_sync(work, *arguments)

    @contextmanager
    def _noted(self, code: str) -> Iterator[None]:
        """Record whether a write succeeded. `/readyz` shows the failed kinds of writes until they succeed."""
        refused = self._broker.health.changes_refused
        try:
            yield
        except (DiskFull, JournalReadOnly, StoreUnavailable, Unavailable) as error:
            if not isinstance(error, Draining):
                refused[code] = error
            raise
        refused.pop(code, None)

    async def look_whether_changes_are_possible_again(self) -> None:
        """After a refusal, test whether changes are possible again, so that `/readyz` is right without a change."""
        refused = self._broker.health.changes_refused
        if not refused:
            return
        with suppress(ClusterError):
            await self.write_state({_PROBE: b"{}"})
            self._broker.journal.check_room(_AUDIT_ROOM_BYTES)
            refused.pop("AUDIT_UNWRITABLE", None)

    async def _read(self, topic: Topic, start: int, max_messages: int) -> list[tuple[int, bytes]]:
        return await payloads_between(
            topic,
            start=start,
            end=topic.commit,
            max_messages=max_messages,
            max_bytes=_READ_BYTES,
            worker_threads=self._broker.engine.worker_threads,
        )
