"""Let a cluster continue with an etcd that was restored from an older snapshot: `danube cluster recover`.

The changes after the snapshot are in the data directories and in the object store. etcd needs them before a broker
starts. The command is called once for each data directory, in any order, while no broker runs. A repeated call, also
after a kill, continues, or finds everything done:

1. `/cluster/recovering` names the brokers whose directories are still to be recovered: all that the snapshot or the
   store has. No broker starts while the key exists.
2. Topics that the directory's journal has in a later epoch than etcd were assigned to this broker after the snapshot.
   They are assigned to it again. The catalog takes in objects that are newer than it. Messages in the journal of topics
   that are not in etcd are written to `lost+found` in the store, because their names are lost.
   The broker's next start rebuilds the terms of its audit's keys (`recovery_note`).
3. etcd's revision is raised above all revisions in the directory and the store, because ids come from it. This
   directory is done.
4. The last directory ends the recovery: epochs and incarnations are raised above all values possible since the
   snapshot, the newest mark of the store is recorded in etcd (`tier.metadata_witness`), and the cluster's identity
   names this recovery.

A broker does not start if its directory does not name the recovery too, because the directory was left out. If it is
recovered later, it keeps the topics that wait for it, and its messages of other topics go to `lost+found`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
from pydanube_core.audit_recovery import AuditRecovery
from pydanube_core.errors import ClusterMismatch, InvalidArgument
from pydanube_core.names import TopicName
from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.metadata import (
    Absent,
    Delete,
    GuardFailed,
    KeyValue,
    ModRevision,
    Put,
    Revision,
    read_all,
)
from pydanube_storage.metadata.etcd import EtcdStore
from pydanube_storage.objects import ObjectName, OwnerMark, open_store, topic_folder

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.bulk_writes import Say, parts, raise_revision
from pydanube_broker.cluster.epochs import EpochRecord, counter_in
from pydanube_broker.cluster.id_blocks import NewestIds, skip
from pydanube_broker.cluster.identity import IDENTITY, Identity
from pydanube_broker.cluster.ids import BrokerId, Epoch, TopicId
from pydanube_broker.cluster.membership import IncarnationRecord, check_nobody_registered
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.home.adoption import checked_folder
from pydanube_broker.home.cluster_file import Home
from pydanube_broker.home.data_dir import DataDir
from pydanube_broker.home.metadata_home import (
    OLDER,
    RECOVERING,
    Recovering,
    Resident,
    broker_key,
    check_identity,
    check_resident,
    options_of,
    resident_of,
)
from pydanube_broker.home.recovery_note import write_note
from pydanube_broker.journal import Disk, HelperPreparer, Journal, JournalOptions
from pydanube_broker.journal.helper import InlineSyncer
from pydanube_broker.records import Change, change
from pydanube_broker.settings.sections import Settings
from pydanube_broker.tier.adopting import adopt
from pydanube_broker.tier.child import TierChild
from pydanube_broker.tier.lost_and_found import Left, LostAndFound
from pydanube_broker.tier.metadata_witness import SCOPE, note, read_noted
from pydanube_broker.tier.options import store_options
from pydanube_broker.tier.ownership import Known, read_known, write_known
from pydanube_broker.tier.tier import CLUSTER_KEY
from pydanube_broker.topics.agreement import ids_in
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.cluster")

_JUMP: Final = 1000  # assumed maximum of epochs or lives since a snapshot. `cluster.ids` has room for 2^23
_MARGIN: Final = 5000  # revisions of the last minute, which no directory had recorded yet
_ID_BYTES: Final = 8
_DIRECTORIES: Final = 1000  # maximum recovered concurrently
_ID_MARGIN: Final = 1_000_000  # ids assigned since a snapshot, by brokers whose directories are gone
_RAISED: Final = "/cluster/revision"  # written repeatedly, so that etcd's revision rises


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The result of `cluster recover` for one directory. `waiting`: brokers still to be recovered. Empty: all are done."""

    broker_id: str
    topics: int
    objects: int
    lost_and_found: str | None
    waiting: tuple[str, ...]


async def recover(
    settings: Settings, *, without: Iterable[str] = (), by: str = "", say: Say = lambda line: None
) -> Recovered:
    """Write the newer state of a data directory to a restored etcd. A repeated call continues, or finds nothing to do.
    Args:
        settings: `data.dir` of a stopped broker, `metadata` and `tier` of the cluster.
        without: brokers whose directories are gone for good. The cluster continues without them.
        by: the principal of the call, for the audit.
        say: gets a line at each step, before it begins.

    Raises:
        InvalidArgument, TierNotShared, MissingExtra: of the settings.
        DataDirLocked: the broker runs.
        ClusterMismatch: the directory is of no cluster, or of another.
        Conflict: brokers are registered, or etcd is no older.
        StoreUnavailable, MetadataUnavailable, CorruptJournal, DiskFull.
    """
    folder = checked_folder(settings)
    async with AsyncExitStack() as stack:
        data_dir = stack.enter_context(DataDir(folder))
        home = Home.read(folder)
        if home is None:
            raise ClusterMismatch(
                f"{folder} has never been on etcd, so a restored etcd lacks nothing of it",
                field="data.dir",
                data_dir=str(folder),
            )
        hub, newest = stack.enter_context(journal_of(settings, folder))
        etcd = await stack.enter_async_context(EtcdStore(options_of(settings)))
        child = TierChild(store_options(settings, folder, spool=str(data_dir.broker_id)))
        stack.push_async_callback(child.close)
        one = _OneDirectory(settings, data_dir, home, hub, etcd, child, say)
        return await one.run(newest, tuple(without), by)


@contextmanager
def journal_of(settings: Settings, folder: Path) -> Iterator[tuple[Hub, NewestIds]]:
    """Read a stopped broker's journal, without changing it: the states of its topics, and the highest ids in it."""
    hub = Hub()
    hub.journal = Journal(
        folder / "journal",
        JournalOptions(
            segment_bytes=settings.journal.segment_bytes,
            tail_cache_bytes=settings.journal.tail_cache_bytes,
        ),
        hub,
        disk=Disk(),
        syncer=InlineSyncer(Disk()),
        preparer=HelperPreparer(),
    )
    found = hub.journal.recover(hub.begins)
    try:
        yield hub, NewestIds.among(ids_in(hub.states.values(), (header.topic_id for header, _ in found.tail)))
    finally:
        hub.journal.abandon()


class _OneDirectory:
    """One attempt with one data directory."""

    def __init__(
        self,
        settings: Settings,
        data_dir: DataDir,
        home: Home,
        hub: Hub,
        etcd: EtcdStore,
        child: TierChild,
        say: Say,
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._folder = data_dir.path
        self._me = BrokerId(int(data_dir.broker_id))
        self._home = home
        self._hub = hub
        self._etcd = etcd
        self._child = child
        self._say = say
        self._url = str(options_of(settings).address)
        self._cluster = ""

    async def run(self, newest: NewestIds, without: tuple[str, ...], by: str) -> Recovered:
        identity = await self._identity()
        await self._check_without(without)
        resident = await self._resident()
        mark = await self._newest_mark(SCOPE)
        seen = max(self._home.revision, newest.revision, 0 if mark is None else mark.incarnation)
        pending = await self._pending()
        if pending is None and await self._is_behind(seen, mark):
            pending = await self._begin()
        recovery = identity.recovery if pending is None else pending.recovery
        if self._home.recovery == recovery:
            if pending is None:
                self._say(f"{self._url} is no older than {self._folder}: there is nothing to recover")
            topics, objects, kept = 0, 0, None
        else:
            self._say("the journal is read")
            await self._hub.journal.begin()  # its last records were acknowledged, too
            self._hub.fold_replayed()
            topics = await self._claim_topics(late=pending is None)
            objects = await self._take_in_objects()
            kept = await self._keep_the_rest(late=pending is None)
            await self._know_own_life(resident)
            await raise_revision(self._etcd, Revision(seen + _MARGIN), Put(_RAISED, b""), self._say)
            await self._etcd.transact([Delete(_RAISED)])
            await skip(self._etcd, newest, _ID_MARGIN)
            revision = self._etcd.statistics().revision
            write_note(self._folder, AuditRecovery(recovery=recovery, by=by, time_ms=now_ms()))
            replace(self._home, metadata=self._url, revision=revision, recovery=recovery).write(self._folder)
        waiting: tuple[str, ...] = ()
        if pending is not None:
            waiting = await self._turn_is_over(without)
            if not waiting:
                await self._end(identity, recovery)
        return Recovered(
            broker_id=str(self._me), topics=topics, objects=objects, lost_and_found=kept, waiting=waiting
        )

    # -- whether there is anything to do ---------------------------------------------------------------------

    async def _identity(self) -> Identity:
        item = await self._etcd.get(IDENTITY)
        identity = None if item is None else Identity.of(item.value)
        check_identity(self._home, identity, self._url, self._folder)
        assert identity is not None
        name = await self._etcd.get(CLUSTER_KEY)
        if name is None:
            raise ClusterMismatch(
                f"{self._url} was restored from a snapshot that is older than the first start of any broker, so it holds no "
                "cluster. Restore a newer snapshot",
                field="metadata.url",
                value=self._url,
            )
        self._cluster = name.value.decode()
        return identity

    async def _check_without(self, without: tuple[str, ...]) -> None:
        known = await self._brokers() - {str(self._me)} if without else set()
        for each in without:
            if each not in known:
                others = ", ".join(sorted(known)) or "there are none"
                raise InvalidArgument(
                    f"{each!r} is no other broker of {self._url}: name one of the others ({others})",
                    field="without",
                    value=each,
                )

    async def _brokers(self) -> set[str]:
        """Return all brokers that were not removed. The store's marks name those that joined after the snapshot."""
        residents, _ = await read_all(self._etcd, keys.RESIDENTS)
        removed, _ = await read_all(self._etcd, keys.REMOVED)
        marked = await anyio.to_thread.run_sync(self._marked)
        known = {str(keys.number_in_key(item.key)) for item in residents} | {str(self._me)}
        known |= {each for each in marked if each.isdigit()}
        return known - {str(keys.number_in_key(item.key)) for item in removed}

    def _marked(self) -> Sequence[str]:
        """Return the brokers that have a folder of marks in the store. Blocking."""
        store = open_store(store_options(self._settings, self._folder, spool=str(self._me)))
        try:
            return store.folders(f"{self._cluster}/owner")
        finally:
            store.close()

    async def _pending(self) -> Recovering | None:
        item = await self._etcd.get(RECOVERING)
        return None if item is None else Recovering.of(item.value)

    async def _is_behind(self, seen: int, mark: OwnerMark | None) -> bool:
        noted, older = await read_noted(self._etcd), await self._etcd.get(OLDER)
        return older is not None or noted.read_at < seen or (mark is not None and not noted.knows(mark))

    async def _begin(self) -> Recovering | None:
        """Let no broker start until all directories were recovered."""
        await check_nobody_registered(self._etcd, self._url)
        waiting = tuple(sorted(await self._brokers()))
        self._say(f"no broker starts on {self._url} until this is done for {', '.join(waiting)}")
        begun = Recovering(recovery=secrets.token_hex(_ID_BYTES), waiting=waiting)
        with suppress(GuardFailed):  # another directory began it first
            await self._etcd.transact([Put(RECOVERING, begun.to_json())], guards=[Absent(RECOVERING)])
        return await self._pending()

    # -- the state of the directory ---------------------------------------------------------------------------

    async def _claim_topics(self, *, late: bool) -> int:
        """Assign to this broker the topics that came here after the snapshot, unless it is `late`. Return how many.

        Topics that are the broker's already get the epoch of its journal.
        """
        came = 0
        for state in list(self._hub.states.values()):
            if state.opened and state.epoch:
                came += await self._claim(state, late=late)
        self._say(f"{came} topics had come to this broker")
        return came

    async def _claim(self, state: LogState, *, late: bool) -> bool:
        key = keys.assignment_key(TopicId(state.topic_id))

        async def decide(change: Change) -> bool:
            item = await change.read(key)
            if item is None:
                return False
            place = Assignment.of(key, item.value)
            if state.epoch <= place.epoch or (late and place.broker_id != self._me):
                return False
            claimed = replace(
                place,
                broker_id=self._me,
                epoch=Epoch(state.epoch),
                stage=Stage.SERVING,
                move=None,
                sealed_at_ms=None,
            )
            epoch_key = keys.epoch_key(place.topic)
            found = {
                each: item for each in (epoch_key, keys.EPOCH_FLOOR) if (item := await change.read(each))
            }
            counted = counter_in(found, place.topic).epoch
            change.put(key, claimed)
            change.put(epoch_key, EpochRecord(epoch=max(counted, state.epoch)))
            return place.broker_id != self._me

        # Another directory may have it in an epoch of its own.
        return (await change(self._etcd, decide, attempts=_DIRECTORIES)).result

    async def _take_in_objects(self) -> int:
        """Add the store's objects of this broker's topics to the catalog. Return how many were missing there."""
        catalog, count = ObjectCatalog(self._etcd, wall_ms=now_ms), 0
        items, _ = await read_all(self._etcd, keys.ASSIGNMENTS)
        for item in items:
            place = Assignment.of(item.key, item.value)
            if place.broker_id != self._me or place.stage is not Stage.SERVING:
                continue
            folder = topic_folder(self._cluster, place.topic.namespace, place.topic.name, place.topic_id)
            if await catalog.head(place.topic_id) is None:
                said, _ = await self._child.call("list", {"folder": folder})
                names = [ObjectName.parse(each["key"].rpartition("/")[2]) for each in said["objects"]]
                starts = [each.start for each in names if each is not None]
                if not starts:
                    continue
                await catalog.claim(
                    place.topic_id, epoch=place.epoch, folder=folder, start_offset=min(starts)
                )
            count += await adopt(place.topic_id, str(place.topic), place.epoch, catalog, self._child)
        self._say(f"{count} objects were newer than etcd")
        return count

    async def _keep_the_rest(self, *, late: bool) -> str | None:
        """Write messages that belong to no topic to `lost+found`. Return its address, or None if there are none."""

        async def left(state: LogState) -> Left | None:
            if not state.opened:
                return None
            item = await self._etcd.get(keys.assignment_key(TopicId(state.topic_id)))
            if item is None:
                return Left(topic=TopicName("unknown", f"topic-{state.topic_id}"), start=state.needed_offset)
            place = Assignment.of(item.key, item.value)
            if late and place.broker_id != self._me:
                return Left(topic=place.topic, start=state.needed_offset)
            return None

        rest = LostAndFound(self._settings, self._me, self._hub, self._cluster, self._child)
        count, where = await rest.write(left)
        if not count:
            return None
        self._say(f"{count} objects of topics that etcd does not have are in {where}")
        return where

    async def _resident(self) -> Resident:
        """Return the entry of this directory's last start.

        Raises `ClusterMismatch`: it is a copy of the directory in etcd.
        """
        own = resident_of(self._data_dir, self._home.life)
        item = await self._etcd.get(broker_key(self._me))
        if item is not None:
            known = Resident.of(item.value)
            check_resident(known, own, replace(self._home, life=known.life), self._url)
        return own

    async def _know_own_life(self, resident: Resident) -> None:
        """Write this directory's last start to etcd, and its mark in the store, so that its next start follows them."""
        await self._etcd.transact([Put(broker_key(self._me), resident.to_json())])
        scope = str(self._me)
        mark, known = await self._newest_mark(scope), await read_known(self._etcd, scope)
        if mark is not None and (known is None or not known.took(mark)):
            await write_known(self._etcd, scope, Known(incarnation=mark.incarnation, life=mark.life))

    async def _newest_mark(self, scope: str) -> OwnerMark | None:
        said, _ = await self._child.call("owner_newest", {"cluster": self._cluster, "scope": scope})
        return None if said["mark"] is None else OwnerMark(**said["mark"])

    # -- the end ---------------------------------------------------------------------------------------------

    async def _turn_is_over(self, without: tuple[str, ...]) -> tuple[str, ...]:
        """Remove this broker, and those without a directory, from the list of brokers to recover. Return the rest."""

        async def decide(change: Change) -> tuple[str, ...]:
            item = await change.read(RECOVERING)
            if item is None:
                return ()
            pending = Recovering.of(item.value)
            left = tuple(each for each in pending.waiting if each not in without and each != str(self._me))
            change.put(RECOVERING, replace(pending, waiting=left).to_json())
            return left

        return (await change(self._etcd, decide, attempts=_DIRECTORIES)).result

    async def _end(self, identity: Identity, recovery: str) -> None:
        """Raise epochs and incarnations above all values used after the snapshot, then let brokers start."""
        self._say("epochs and incarnations are raised")
        for tree in (keys.EPOCHS, keys.INCARNATIONS):
            items, _ = await read_all(self._etcd, tree)
            for part in parts([Put(item.key, _raised(item)) for item in items]):
                await self._etcd.transact(part)
        mark, noted = await self._newest_mark(SCOPE), await read_noted(self._etcd)
        if mark is not None and not noted.knows(mark):
            await note(self._etcd, noted, mark.incarnation, mark.life)
        following = replace(identity, recovery=recovery)
        pending = await self._etcd.get(RECOVERING)
        if pending is not None:
            with suppress(GuardFailed):  # the same command ended it for another directory
                await self._etcd.transact(
                    [Put(IDENTITY, following.to_json()), Delete(RECOVERING), Delete(OLDER)],
                    guards=[ModRevision(RECOVERING, pending.mod_revision)],
                )
        log.info("cluster_recovered", extra={"recovery": recovery})


def _raised(item: KeyValue) -> bytes:
    """Return a counter of epochs or incarnations, raised above any value possible since the snapshot."""
    if item.key in keys.EPOCHS:
        counted = EpochRecord.from_json(item.value, key=item.key).epoch
        return EpochRecord(epoch=counted + _JUMP).to_json()
    lives = IncarnationRecord.from_json(item.value, key=item.key).incarnation
    return IncarnationRecord(incarnation=lives + _JUMP).to_json()
