"""Watch a running broker's registration on etcd: whether another directory took its place, and whether etcd answers.

Two keys show that the place is gone: `/removed/<broker>`, and `/cluster/brokers/<broker>` with another life
(`metadata_home`). Both are watched, and read after the process has stood still (`standstill`), because the requests in
its sockets may then be older than the watch's next event. An etcd whose revision has gone back was restored from an
older snapshot, and may assign this broker's topics to others.
"""

from __future__ import annotations

import itertools
import logging
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final

import anyio
from pydanube_core.errors import ClusterError, Fenced, MetadataUnavailable, Retryable
from pydanube_storage.metadata import (
    Absent,
    GuardFailed,
    KeyValue,
    MetadataStore,
    Put,
)
from pydanube_storage.metadata.clock import BootClock
from pydanube_storage.metadata.etcd import EtcdStore

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.identity import IDENTITY, Identity
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.membership import was_removed
from pydanube_broker.home.cluster_file import Home
from pydanube_broker.home.data_dir import DataDir
from pydanube_broker.home.metadata_home import Resident, broker_key, mark_as_older, resident_of, was_put_back
from pydanube_broker.records.followed import states_of
from pydanube_broker.status.health import Health, Standstill

log = logging.getLogger("pydanube.cluster")

HISTORY_S: Final = 3600.0  # of etcd's history kept, for watches that lose their connection
_AGAIN_S: Final = 2.0  # between two reads
_WRITABLE_EVERY: Final = 5  # reads per check: a refused write costs etcd a record of its log
NOTE_S: Final = 60.0


async def look_after(store: MetadataStore, data_dir: DataDir, health: Health) -> None:
    """Notice that the store takes no writes. On etcd also drop old history, and notice a replacement of this broker."""
    if not isinstance(store, EtcdStore):
        await _notice_failure(store, health)
        return
    health.standstill = Standstill(BootClock().now_ms, lambda: health.metadata_away is not None)
    async with anyio.create_task_group() as group:
        group.start_soon(forget_history, store)
        group.start_soon(_notice_replacement, store, data_dir, health)
        group.start_soon(notice_removal, store, BrokerId(data_dir.broker_id), health)
        group.start_soon(_notice_absence, store, data_dir, health)
        group.start_soon(_note_revision, store, data_dir)
        group.start_soon(_ask_after_standstills, store, data_dir, health, health.standstill)


async def _notice_replacement(store: EtcdStore, data_dir: DataDir, health: Health) -> None:
    """Watch the entry of this broker's id. Restore it if it was deleted and no other directory took it."""
    home = Home.read(data_dir.path)
    assert home is not None, "written when the store was opened"
    key = broker_key(data_dir.broker_id)
    async with aclosing(states_of(store, key)) as states:
        async for item in states:
            if (replaced := _replacement(item, home)) is not None:
                health.fence(replaced)
                return
            if item is None:
                await _restore_entry(store, key, resident_of(data_dir, home.life))


async def _restore_entry(store: EtcdStore, key: str, own: Resident) -> None:
    while True:
        try:
            await store.transact([Put(key, own.to_json())], guards=[Absent(key)])
        except GuardFailed:
            return  # another entry exists, and is the next event
        except Retryable:
            await anyio.sleep(_AGAIN_S)
        else:
            return


def _replacement(item: KeyValue | None, home: Home) -> Fenced | None:
    """Return the error if the entry names another directory under this broker's id, else None."""
    resident = None if item is None else Resident.of(item.value)
    if resident is None or resident.life == home.life:
        return None
    return Fenced(
        f"{resident.named} has taken the place of this broker on {home.metadata}: this one accepts nothing more "
        "and ends. Its data directory is unchanged and keeps the messages that only its journal has",
        broker_id=resident.broker_id,
        data_dir=resident.data_dir,
    )


async def _ask_after_standstills(
    store: EtcdStore, data_dir: DataDir, health: Health, standstill: Standstill
) -> None:
    """After a standstill, let this broker accept again when etcd confirms that it was neither removed nor replaced.

    A broker that ran without etcd before the standstill has lost no information by it, so one read without an answer is
    enough.
    """
    home = Home.read(data_dir.path)
    assert home is not None, "written when the store was opened"
    while True:
        await standstill.noticed.wait()
        number, was_without = standstill.number, standstill.was_without_metadata
        try:
            lost = await _lost_place(store, data_dir, home)
        except Retryable as error:
            if not was_without:
                await anyio.sleep(_AGAIN_S)
                continue
            log.warning("standstill_not_checked", extra={"why": error.message})
        else:
            if lost is not None:
                health.fence(lost)
                return
            log.info("standstill_over", extra={"standstill": number})
        standstill.settled(number)


async def _lost_place(store: EtcdStore, data_dir: DataDir, home: Home) -> Fenced | None:
    """Read from etcd once whether this broker was removed or replaced. Raises `Retryable`."""
    broker_id = BrokerId(data_dir.broker_id)
    if await store.get(keys.removed_key(broker_id)) is not None:
        return was_removed(broker_id)
    return _replacement(await store.get(broker_key(broker_id)), home)


async def notice_removal(store: EtcdStore, broker_id: BrokerId, health: Health) -> None:
    """Watch whether this broker is removed from the cluster."""
    async with aclosing(states_of(store, keys.removed_key(broker_id))) as states:
        async for item in states:
            if item is not None:
                health.fence(was_removed(broker_id))
                return


async def _notice_absence(store: EtcdStore, data_dir: DataDir, health: Health) -> None:
    """Check regularly that etcd answers, and that it is the same etcd, so that its absence shows before a change fails."""
    home = Home.read(data_dir.path)
    assert home is not None, "written when the store was opened"
    for question in itertools.count():
        seen = store.statistics().revision
        try:
            page = await store.range(keys.only(IDENTITY), limit=1)
            if health.metadata_away is not None or question % _WRITABLE_EVERY == 0:
                await store.check_writable()
        except Retryable as error:
            health.metadata_away = error
        else:
            health.metadata_away = None
            recovered = any(Identity.of(item.value).recovery != home.recovery for item in page.items)
            if page.revision < seen or recovered:
                health.fence(was_put_back(page.revision, seen))
                if not recovered:
                    with anyio.CancelScope(shield=True):  # the broker ends now
                        await mark_as_older(store, page.revision, seen)
                return
        await anyio.sleep(_AGAIN_S)


async def _notice_failure(store: MetadataStore, health: Health) -> None:
    """Notice that the embedded store has stopped writing, which lasts until the broker starts again."""
    while not store.statistics().failed:  # noqa: ASYNC110  (the store has no callback)
        await anyio.sleep(_AGAIN_S)
    health.metadata_away = MetadataUnavailable(
        "a disk error stopped writing to metadata.sqlite, and the log has it: mend the disk, then start the broker again"
    )


async def _note_revision(store: EtcdStore, data_dir: DataDir) -> None:
    """Write the highest revision to the directory every `NOTE_S`, so that an older etcd is recognised after a crash."""
    while True:
        await anyio.sleep(NOTE_S)
        home = Home.read(data_dir.path)
        seen = store.statistics().revision
        if home is not None and home.revision < seen:
            with suppress(OSError):  # a full disk: the last recorded revision counts
                await anyio.to_thread.run_sync(replace(home, revision=seen).write, data_dir.path)


async def forget_history(store: EtcdStore, *, every_s: float = HISTORY_S) -> None:
    """Every `every_s` drop the history before the last run, which would grow without end."""
    while True:
        seen = store.statistics().revision
        await anyio.sleep(every_s)
        try:
            await store.forget_history(seen)
        except ClusterError as error:
            log.warning("history_not_compacted", extra={"why": error.message})
