"""Check, before anything changes, that a data directory and its metadata store belong together.

A directory belongs to the embedded store beside its journal, or to one prefix on etcd for good. Topics, epochs and
cursors are two halves of one state, as described in `topics.agreement` for the files. On etcd both sides record it:

| side | place | content |
|---|---|---|
| the prefix | `/cluster/identity` | a random id, made with the first broker, that of the last recovery (`cluster_recovery`), and the broker it was released to (`release`) |
| the prefix | `/cluster/brokers/<id>` | a broker that uses it: its directory, and the life of it |
| the directory | `cluster.json` | that id, the highest revision seen, its present life and the one it was about to begin |

A life is a random number of one start, by which the directory claims the prefix (`cluster.claim`). A broker whose
record has another life or another place is a copy of the directory, or a different directory. It is refused, because
both would own the same topics.

The checks of a running broker are in `metadata_watch`.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import anyio
from pydanube_core.errors import ClusterMismatch, CorruptJournal, InvalidArgument, Retryable, TierNotShared
from pydanube_core.known_fields import known_fields
from pydanube_storage.metadata import (
    Absent,
    EmbeddedStore,
    GuardFailed,
    KeyRange,
    KeyValue,
    MetadataStore,
    ModRevision,
    Put,
)
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions, EtcdStore

from pydanube_broker.cluster.claim import Claim
from pydanube_broker.cluster.id_blocks import NewestIds, given_out
from pydanube_broker.cluster.identity import IDENTITY, Identity
from pydanube_broker.home.cluster_file import (
    CLUSTER_FILE,
    SQLITE,
    Home,
    check_embedded,
    check_not_between,
    mismatch,
)
from pydanube_broker.home.data_dir import DataDir
from pydanube_broker.settings.sections import EMBEDDED, Settings
from pydanube_broker.tier.ownership import place_of
from pydanube_broker.topics.agreement import check_ids, check_metadata_there

log = logging.getLogger("pydanube.cluster")

# Until the end of an adoption: the directory being moved there (`adoption`).
ADOPTING: Final = "/cluster/adopting"
RECOVERING: Final = "/cluster/recovering"  # brokers whose directories a restored etcd still needs
OLDER: Final = "/cluster/older"  # until recovery: a broker has seen a later revision than this etcd's
_WAIT_S: Final = 2.0  # between two attempts of a start that waits for etcd
_SETTLE_TRIES: Final = 5  # the identity changes once for a format, a release or a recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovering:
    """The value of `/cluster/recovering`. `waiting`: brokers whose directories are still to be recovered."""

    recovery: str
    waiting: tuple[str, ...]

    @classmethod
    def of(cls, value: bytes) -> Recovering:
        found = json.loads(value)
        return cls(recovery=found["recovery"], waiting=tuple(found["waiting"]))

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A broker of the prefix: the value of `/cluster/brokers/<id>`. Path and host are not those of a copy."""

    broker_id: str
    life: str
    place: str
    host: str
    data_dir: str

    @classmethod
    def of(cls, value: bytes) -> Resident:
        return cls(**known_fields(cls, json.loads(value)))

    @property
    def named(self) -> str:
        return f"broker {self.broker_id} (data directory {self.data_dir} on {self.host})"

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def broker_key(broker_id: int) -> str:
    """Return the key that names the directory running under a broker's id."""
    return f"/cluster/brokers/{broker_id}"


def check_settings(settings: Settings) -> None:
    """Check the settings that a broker on etcd needs. Nothing is opened. The embedded store needs none.

    Raises:
        InvalidArgument: the URL is malformed, a pair of settings is incomplete, or data is in memory.
        TierNotShared: the cold tier would be in the data directory.
    """
    if settings.metadata.url == EMBEDDED:
        return
    options_of(settings)
    if settings.data.dir is None:
        raise InvalidArgument(
            "--memory and --metadata exclude each other: etcd would list topics that ended with the process",
            field="metadata.url",
            value=settings.metadata.url,
        )
    url = settings.tier.url
    private = url is None or url.startswith("memory:")
    if url is not None and ("://" not in url or url.startswith("file://")):
        folder = Path(url.removeprefix("file://")).expanduser().absolute()
        private = folder.is_relative_to(settings.data.dir.expanduser().absolute())
    if private:
        raise TierNotShared(
            f"brokers on etcd share one object store, and tier.url is {url or 'not set'}: set DANUBE_TIER__URL to a folder "
            "outside the data directory that all of them see, or to s3://bucket/prefix",
            field="tier.url",
            value=url,
        )


def options_of(settings: Settings) -> EtcdOptions:
    """Return the options for opening etcd by these settings. Raises `InvalidArgument`."""
    metadata = settings.metadata
    return EtcdOptions(
        address=EtcdAddress.parse(metadata.url, prefix=metadata.prefix),
        user=metadata.user,
        password=metadata.password,
        ca=metadata.ca,
        cert=metadata.cert,
        key=metadata.key,
    )


@asynccontextmanager
async def opened_metadata(
    settings: Settings,
    data_dir: DataDir,
    newest: NewestIds,
    pending: Callable[[], AbstractContextManager[None]],
    make_room: Callable[[], bool],
) -> AsyncIterator[MetadataStore]:
    """Open the metadata of this data directory, embedded or on etcd.

    Args:
        newest: the highest ids in the journal.
        pending, make_room: as in `EmbeddedStore`.

    Raises:
        ClusterMismatch: directory and metadata are of different clusters, or of different times. Nothing was changed.
        CorruptMetadata: the same of the embedded store.
        MetadataUnavailable and the errors of `EtcdStore`: of a directory that is new to etcd. Any other waits for etcd.
    """
    folder = data_dir.path
    home = Home.read(folder)
    if settings.metadata.url == EMBEDDED:
        check_embedded(home, folder)
        file = folder / SQLITE
        check_metadata_there(file, journal_is_empty=not newest)
        async with EmbeddedStore(file, pending=pending, make_room=make_room) as embedded:
            check_ids(file, newest, await given_out(embedded))
            yield embedded
        return
    check_not_between(home, folder)
    if (folder / SQLITE).exists():
        raise mismatch(
            f"{folder} is a lone broker's: its topics are in {SQLITE} and not on etcd. Start it without "
            f"--metadata, or move it there: danube cluster adopt {folder} --metadata {settings.metadata.url}",
            folder,
        )
    async with AsyncExitStack() as stack:
        store = await _open_etcd(options_of(settings), stack, wait=home is not None)
        home = await _settled(store, data_dir, home, str(options_of(settings).address), newest)
        try:
            yield store
        finally:
            with suppress(OSError):  # a full disk: the next start uses the revision recorded before
                replace(home, revision=max(home.revision, store.statistics().revision)).write(folder)


async def look_at_metadata(settings: Settings, folder: Path) -> None:
    """Compare a data directory with the etcd in the settings. Nothing is changed.

    Raises:
        ClusterMismatch: they are of different clusters.
        MetadataUnavailable and the errors of `EtcdStore`.
    """
    home = Home.read(folder)
    options = options_of(settings)
    async with EtcdStore(options) as store:
        identity = await store.get(IDENTITY)
        if home is not None:
            found = None if identity is None else Identity.of(identity.value)
            check_home(home, found, await given_out(store), NewestIds(), str(options.address), folder)


async def _open_etcd(options: EtcdOptions, stack: AsyncExitStack, *, wait: bool) -> EtcdStore:
    """Connect to etcd. With `wait`, retry without end, and log the reason periodically."""
    while True:
        try:
            return await stack.enter_async_context(EtcdStore(options))
        except Retryable as error:
            if not wait:
                raise
            log.warning("metadata_waiting", extra={"why": error.message})
            await anyio.sleep(_WAIT_S)


async def _settled(
    store: EtcdStore, data_dir: DataDir, home: Home | None, url: str, newest: NewestIds
) -> Home:
    """Settle. Retry if a record has changed since it was read, as the identity of a new cluster by its leader."""
    for left in reversed(range(_SETTLE_TRIES)):
        try:
            return await _settle(store, data_dir, home, url, newest)
        except GuardFailed:
            if not left:
                raise
            home = Home.read(data_dir.path)
    raise AssertionError("the last try returns or raises")


async def _settle(
    store: EtcdStore, data_dir: DataDir, home: Home | None, url: str, newest: NewestIds
) -> Home:
    """Check that directory and prefix belong together, then register this start of the directory under its broker id."""
    folder, revision = data_dir.path, store.statistics().revision
    identity = await store.get(IDENTITY)
    await check_not_older(store, url, folder)
    if home is None and newest:
        raise CorruptJournal(
            f"{folder} holds messages, and neither {CLUSTER_FILE} nor {SQLITE} is there to name their topics. Nothing was "
            "changed. Restore the whole directory from a backup, or choose another --data-dir",
            value=str(folder),
        )
    if home is not None:
        known_as = None if identity is None else Identity.of(identity.value)
        check_identity(home, known_as, url, folder)
        seen, gave_out = _seen(home, newest), await given_out(store)
        if seen.is_beyond(gave_out) and known_as is not None and known_as.recovery == home.recovery:
            await mark_as_older(store, *seen.against(gave_out))
        check_home(home, known_as, gave_out, newest, url, folder)
    if identity is None:
        identity = await _found(store, url, folder)
    found = Identity.of(identity.value)
    _check_not_released(found, url, folder)
    known = home or Home(cluster_id=found.cluster_id, metadata=url, recovery=found.recovery)
    key = broker_key(data_dir.broker_id)
    resident = await store.get(key)
    own = resident_of(data_dir, secrets.token_hex(8))
    if resident is not None:
        check_resident(Resident.of(resident.value), own, known, url)
    known = replace(known, metadata=url, revision=max(known.revision, revision))
    guard = Absent(key) if resident is None else ModRevision(key, resident.mod_revision)
    unchanged = ModRevision(IDENTITY, identity.mod_revision)  # not released in between

    async def note(claim: Claim[str]) -> None:
        known.claiming(claim).write(folder)

    async def leave() -> None:
        await store.transact(
            [Put(key, own.to_json())], guards=[guard, unchanged, Absent(RECOVERING), Absent(OLDER)]
        )

    await known.claim.take(own.life, note=note, leave=leave)
    return known.claiming(Claim(held=own.life))


async def mark_as_older(store: MetadataStore, revision: int, seen: int) -> None:
    """Let no broker start on an etcd restored from an older snapshot, even if its revision passes the earlier ones."""
    # Another broker may have done it. If etcd is away, the next start checks it again
    with suppress(GuardFailed, Retryable):
        value = json.dumps({"revision": revision, "seen": seen}).encode()
        await store.transact([Put(OLDER, value)], guards=[Absent(OLDER)])


async def check_not_older(store: MetadataStore, url: str, folder: Path) -> None:
    """Raise `ClusterMismatch` for an etcd restored from an older snapshot whose recovery has not begun or not ended."""
    older = await store.get(OLDER)
    waiting = await store.get(RECOVERING)
    if waiting is not None:
        raise mismatch(
            f"{url} was restored from an older snapshot, and is recovered now: no broker starts before danube cluster recover "
            f"was called for the data directories of {', '.join(Recovering.of(waiting.value).waiting) or 'all brokers'}",
            folder,
        )
    if older is not None:
        raise was_put_back(**json.loads(older.value))


def resident_of(data_dir: DataDir, life: str) -> Resident:
    """Return the entry for one start of a directory's broker."""
    return Resident(
        broker_id=str(data_dir.broker_id),
        life=life,
        place=place_of(data_dir.path),
        host=socket.gethostname(),
        data_dir=str(data_dir.path),
    )


def check_home(
    home: Home, found: Identity | None, gave_out: NewestIds, newest: NewestIds, url: str, folder: Path
) -> None:
    """Check that a directory which has been on etcd finds the same etcd and prefix there. Pure."""
    check_identity(home, found, url, folder)
    seen = _seen(home, newest)
    if seen.is_beyond(gave_out):
        raise was_put_back(*seen.against(gave_out))
    if found is not None and home.recovery != found.recovery:
        raise mismatch(
            f"{url} was restored from an older snapshot and recovered without {folder}, whose later changes it lacks. "
            f"Nothing was changed. Recover it, then start it: danube cluster recover {folder} --metadata {url}",
            folder,
        )


def _seen(home: Home, newest: NewestIds) -> NewestIds:
    """Return the highest ids and revision that a directory has."""
    return replace(newest, revision=max(home.revision, newest.revision))


def check_identity(home: Home, found: Identity | None, url: str, folder: Path) -> None:
    """Raise `ClusterMismatch` if the prefix is not the cluster that the directory belongs to. Pure."""
    if found is None:
        raise mismatch(
            f"{url} holds no cluster, and {folder} belongs to one ({home.cluster_id}, last on {home.metadata}): the "
            "address or the prefix is another, or etcd was emptied. Nothing was changed. Correct --metadata, or restore "
            "etcd from its newest snapshot",
            folder,
        )
    if found.cluster_id != home.cluster_id:
        raise mismatch(
            f"{url} is cluster {found.cluster_id}, and {folder} belongs to {home.cluster_id} (last on {home.metadata}). Nothing "
            "was changed. Correct --metadata or --data-dir",
            folder,
        )
    _check_not_released(found, url, folder)


def _check_not_released(found: Identity, url: str, folder: Path) -> None:
    if found.released:
        raise mismatch(
            f"{url} was released: broker {found.released} goes on alone, with all topics. Nothing was changed. Where that command was "
            "interrupted, call danube cluster release for the directory of that broker again. For a new cluster choose a prefix that "
            "is empty",
            folder,
        )


def was_put_back(revision: int, seen: int) -> ClusterMismatch:
    """Return the error for an etcd that is older than the data directory has seen."""
    return ClusterMismatch(
        f"etcd was at revision {revision} after a broker had seen {seen}: it was restored from an older snapshot, and ids "
        "would be given twice. Restore etcd from a snapshot that is no older. Where there is none, let the cluster go on "
        "with this one: stop all brokers, then danube cluster recover DATA_DIR --metadata URL for the directory of each",
        field="metadata.url",
        revision=revision,
        seen=seen,
    )


def check_resident(resident: Resident, own: Resident, home: Home, url: str) -> None:
    """Check that this directory may run under a broker id that has run on the prefix before. Pure.

    Raises `ClusterMismatch`: the id belongs to a directory of which this one is a copy.
    """
    same = resident.broker_id == own.broker_id and resident.place == own.place and resident.life in home.claim
    if same:
        return
    raise ClusterMismatch(
        f"{resident.named} is on {url}, and this data directory is a copy of that one, or was restored or moved. Nothing was "
        "changed. Give a new broker an empty --data-dir. If that directory is gone for good and this one is to go on in its "
        f"place: etcdctl del {_prefix_of(url)}{broker_key(int(resident.broker_id))}",
        field="metadata.url",
        value=url,
        broker_id=resident.broker_id,
    )


def _prefix_of(url: str) -> str:
    """Return the prefix in a URL of etcd as `EtcdAddress` writes it, for messages."""
    return "/" + url.partition("://")[2].partition("/")[2]


async def _found(store: EtcdStore, url: str, folder: Path) -> KeyValue:
    """Make an empty prefix a cluster, unless another broker does so concurrently. Return its identity."""
    page = await store.range(KeyRange.prefix("/"), limit=1)
    if not page.items:
        identity = Identity(cluster_id=secrets.token_hex(8))
        with suppress(GuardFailed):
            await store.transact(
                [Put(IDENTITY, identity.to_json())], guards=[Absent(IDENTITY), Absent(ADOPTING)]
            )
    found = await store.get(IDENTITY)
    if found is None and await store.get(ADOPTING) is not None:
        raise mismatch(
            f"a lone broker is being moved to {url}: start again when danube cluster adopt is done there",
            folder,
        )
    if found is None:
        raise mismatch(
            f"{url} holds keys of something else ({page.items[0].key}): choose a prefix that is empty", folder
        )
    return found
