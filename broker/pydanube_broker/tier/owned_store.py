"""The broker's ownership of its store: taken at the start, watched, and reported when it is lost.

A local store is read directly, a remote one through the tier's process. A start waits for a remote store for a
bounded time. If it is away, the broker starts anyway, writes nothing there, and tries again. The rules are in
`ownership`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pydanube_core.errors import (
    ClusterError,
    ClusterMismatch,
    MetadataUnavailable,
    StoreOwned,
    StoreUnavailable,
    TierNotShared,
)
from pydanube_storage.metadata import MetadataStore
from pydanube_storage.objects import (
    LocalStore,
    OwnerMark,
    StoreOptions,
    make_mark,
    newest_mark,
    store_identity,
)

from pydanube_broker.cluster.claim import Claim
from pydanube_broker.tier.child import ChildDied, TierChild
from pydanube_broker.tier.metadata_witness import SCOPE, MetadataWitness
from pydanube_broker.tier.ownership import (
    Known,
    StoreOwnership,
    judge,
    mark_of,
    note_name,
    place_of,
    read_known,
    refusal,
    store_name,
    write_known,
)
from pydanube_broker.topics.topic import CLOCK, now_ms
from pydanube_broker.wall_clock import WitnessKind

log = logging.getLogger("pydanube.tier")

LIFE_DIGITS: Final = 8
_START_S: Final = 20.0  # a start waits this long for a remote store
_AGAIN_S: Final = 5.0
CHECK_S: Final = 10.0
NAMING_S: Final = 30.0  # longer than a store may take to answer the broker that names it
_NAMING_LOOK_S: Final = 0.1


class OwnedStore:
    """Whether this start of the broker may write to the store (`held`), and if not, why (`reason`). Single user: the loop."""

    def __init__(
        self,
        options: StoreOptions,
        data_dir: Path,
        metadata: MetadataStore,
        child: TierChild,
        *,
        broker_id: str,
        shared: bool,
        take_over: int | None,
        monotonic: Callable[[], float],
    ) -> None:
        self.life = secrets.token_hex(LIFE_DIGITS // 2)
        self.held = False
        self.reason: ClusterError | None = None
        self.failures = 0  # failed attempts to take the store
        self.continuous = False  # whether the store is as the last start of this directory left it
        self.clock_ahead_s: float | None = None  # of the store's, when it was taken. None: unknown
        self.url = options.url
        self._options = options
        self._data_dir = data_dir
        self._metadata = metadata
        self._child = child
        self._broker_id = broker_id
        self._scope = broker_id if shared else ""  # see `read_known`
        self._take_over = take_over
        self._monotonic = monotonic
        self._mark: OwnerMark | None = None
        self._cluster = ""
        self._objects_listed = False
        self._again_s = 0.0
        self._adopt: Callable[[], Awaitable[None]]
        self._witness = MetadataWitness(
            metadata,
            options.url,
            newest=partial(self._newest, SCOPE),
            make=partial(self.make, scope=SCOPE),
            me=(broker_id, str(data_dir)),
            monotonic=monotonic,
        )
        parts = urlsplit(options.url)
        self._scheme = parts.scheme if "://" in options.url else "file"
        self.local = (  # a store of files on this machine
            Path(unquote(parts.path) if "://" in options.url else options.url).absolute()
            if self._scheme == "file"
            else None
        )

    @property
    def inside(self) -> bool:
        """Whether the store is in the data directory, and is copied with it."""
        return self.local is not None and self.local.is_relative_to(self._data_dir)

    async def take(
        self, cluster: str, *, objects_listed: bool, adopt: Callable[[], Awaitable[None]]
    ) -> StoreOwnership | None:
        """Take the store at the start. Returns None if a remote store is away: it is tried again later.

        Args:
            adopt: adds newer objects to the catalog. Runs before the store is taken, so that a crash repeats it.

        Raises:
            StoreOwned: another start or directory owns it.
            TierNotShared: the cluster's other brokers use another store.
            ClusterMismatch: the store's newest mark was not made from these metadata.
            Also the errors of `adopt`.
        """
        self._adopt = adopt
        self._cluster, self._objects_listed = cluster, objects_listed
        if self._scheme == "memory":  # gone with its process, and not shared
            self.held = self.continuous = True
            return StoreOwnership.CLAIM
        try:
            async with asyncio.timeout(_START_S):
                mark = await self._newest(self._scope)
        except (StoreUnavailable, ChildDied, TimeoutError) as error:
            self._away(error)
            return None
        try:
            return await self.take_mark(mark, at_start=True)
        except StoreUnavailable as error:
            if mark is not None:
                raise  # there may be objects to adopt before the first offset is assigned
            self._away(error)  # it has no mark of this broker and cannot be written to: as if it were away
            return None

    async def ask_again(self) -> None:
        """Take a store that was away, or check that it is still this start's. Raises only when cancelled."""
        if self._scheme == "memory" or self._monotonic() < self._again_s:
            return
        self._again_s = self._monotonic() + (CHECK_S if self.held else _AGAIN_S)
        try:
            if self._mark is None:
                await self.take_mark(await self._newest(self._scope), at_start=False)
                return
            now = await self._newest(self._scope)
            if self._scope:
                await self._witness.look()
        except (StoreOwned, ClusterMismatch) as error:
            self._lose(error)
        except ClusterError as error:
            if self._mark is None:
                self._away(error)
        else:
            if now is None:
                self._lose(self._empty())
            elif now != self._mark:
                self._lose(refusal(StoreOwnership.NEWER, now, self._options.url))
            else:
                self.held, self.reason = True, None

    @property
    def code(self) -> str:
        """The code of the reason, for `/status`."""
        match self.reason:
            case StoreOwned():
                return "TIER_STORE_OWNED"
            case ClusterMismatch() | MetadataUnavailable():
                return self.reason.code
            case StoreUnavailable() if self.reason.details.get("cause") == "empty":
                return "TIER_STORE_EMPTY"
            case _:
                return "TIER_STORE_UNAVAILABLE"

    def check(self) -> None:
        """Raise an error if this start may not write to the store, or delete there."""
        if not self.held:
            raise self.reason or StoreUnavailable(
                "the owner mark of the object store was not read yet", retry_after_ms=1000
            )

    def _away(self, error: BaseException) -> None:
        self.held = False
        self.failures += 1
        self.reason = (
            error
            if isinstance(error, ClusterError)
            else StoreUnavailable(
                f"could not read the owner mark of the object store {self._options.url} in {_START_S:g} s. Retrying",
                store=self._options.url,
            )
        )

    def _lose(self, error: ClusterError) -> None:
        if self.held:
            log.error("tier_store_lost", extra={"error": error.message})
        self.held, self.reason = False, error

    def _empty(self) -> ClusterError:
        return StoreUnavailable(
            f"the object store {self._options.url} is empty, or another one: it has no mark of this cluster, and the catalog "
            "lists objects in it. Nothing is written to it: mount it, or correct tier.url. If the objects are gone for "
            "good, start with DANUBE_TIER__TAKE_OVER=0, once",
            store=self._options.url,
            cause="empty",
        )

    async def take_mark(self, mark: OwnerMark | None, *, at_start: bool) -> StoreOwnership:
        known = await read_known(self._metadata, self._scope)
        place = place_of(self._data_dir)
        verdict = judge(
            mark,
            known,
            place=place,
            inside=self.inside,
            objects_listed=self._objects_listed,
            take_over=self._take_over,
        )
        if verdict is StoreOwnership.EMPTY:
            self._lose(self._empty())
            return verdict
        if verdict is StoreOwnership.ADOPT and not at_start:
            verdict = StoreOwnership.NEWER  # newer objects can be adopted only before offsets are assigned
        if verdict in (StoreOwnership.OTHER, StoreOwnership.NEWER):
            assert mark is not None
            raise refusal(verdict, mark, self._options.url)
        if self._scope:
            await self._check_shared()
            await self._witness.look()
        if verdict is StoreOwnership.ADOPT:
            await self._adopt()
        following = 1 + max(
            0 if mark is None else mark.incarnation,
            0 if known is None else max(known.incarnation, known.next_incarnation),
        )
        claim: Claim[tuple[int, str]] = Claim(held=None) if known is None else known.claim
        if mark is not None and known is not None and known.took(mark):
            claim = Claim(held=(mark.incarnation, mark.life))
        wanted = mark_of(
            following,
            self.life,
            place=place,
            broker_id=self._broker_id,
            data_dir=str(self._data_dir),
        )

        async def note(claim: Claim[tuple[int, str]]) -> None:
            await write_known(self._metadata, self._scope, Known.claiming(claim))

        async def leave() -> None:
            now = await self.make(wanted, scope=self._scope)
            if now != wanted:
                raise refusal(StoreOwnership.OTHER, now, self._options.url)

        await claim.take((following, self.life), note=note, leave=leave)
        self._mark, self.held, self.reason = wanted, True, None
        self.continuous = verdict is StoreOwnership.CLAIM
        return verdict

    async def _check_shared(self) -> None:
        """Raise `TierNotShared` if this is not the store of the cluster's other brokers."""
        known = await self._name_of_store()
        found = await self._identity("")
        if found != known:
            holds = f"is another one ({found})" if found else "holds nothing of it"
            raise TierNotShared(
                f"brokers of one cluster share one object store ({known}), and {self._options.url} {holds}: mount the shared "
                "folder there, or correct DANUBE_TIER__URL. No object was written there",
                field="tier.url",
                value=self._options.url,
            )

    async def _name_of_store(self) -> str:
        """Return the name of the cluster's store. One broker writes it to the store, and the others wait for that.

        Not every store refuses the second of two concurrent writes, and both brokers would take their own name for the
        cluster's.
        """
        proposed, began_s = secrets.token_hex(8), self._monotonic()
        while True:
            name = await store_name(self._metadata, self._broker_id, proposed)
            if name.giver is None:
                return name.store_id
            if name.giver == self._broker_id:
                found = await self._identity(name.store_id)
                await note_name(self._metadata, name, found, None)
            elif self._monotonic() - began_s > NAMING_S:  # the broker that was to write the name is gone
                await note_name(self._metadata, name, name.store_id, self._broker_id)
                began_s = self._monotonic()
            else:
                await asyncio.sleep(_NAMING_LOOK_S)

    async def _identity(self, proposed: str) -> str:
        if self.local is not None:
            if not proposed and not self.local.is_dir():
                return ""
            return await asyncio.to_thread(store_identity, LocalStore(self.local), self._cluster, proposed)
        said, _ = await self._child.call("store_identity", {"cluster": self._cluster, "proposed": proposed})
        return str(said["store_id"])

    async def _newest(self, scope: str) -> OwnerMark | None:
        if self.local is not None:
            return await asyncio.to_thread(self._newest_local, scope)
        said, _ = await self._child.call("owner_newest", {"cluster": self._cluster, "scope": scope})
        return _mark(said["mark"])

    def _newest_local(self, scope: str) -> OwnerMark | None:
        assert self.local is not None
        return newest_mark(LocalStore(self.local), self._cluster, scope) if self.local.is_dir() else None

    async def make(self, mark: OwnerMark, *, scope: str) -> OwnerMark:
        if self.local is not None:
            return await asyncio.to_thread(make_mark, LocalStore(self.local), self._cluster, mark, scope)
        said, _ = await self._child.call(
            "owner_make", {"cluster": self._cluster, "scope": scope, "mark": asdict(mark)}
        )
        self.clock_ahead_s = said["ahead_s"]
        if self.clock_ahead_s is not None:
            store_ms = now_ms() - int(self.clock_ahead_s * 1000)
            CLOCK.witness("the object store", store_ms, kind=WitnessKind.STORE)
        now = _mark(said["mark"])
        assert now is not None
        return now


def _mark(said: dict[str, Any] | None) -> OwnerMark | None:
    return None if said is None else OwnerMark(**said)
