"""Which start may continue a chain: that of its own folder, of a copy only when told to, and not blindly without a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydanube_broker.chain import ChainObjects, fence
from pydanube_broker.chain.folder import ChainFile
from pydanube_broker.tier.journal_chain import JournalChain
from pydanube_broker.tier.ownership import place_of
from pydanube_core.errors import StoreOwned, StoreUnavailable, StoreUnsuitable
from pydanube_storage.objects import LocalStore, StoreOptions

pytestmark = pytest.mark.anyio

CLUSTER = "cluster-1"


class Objects(ChainObjects):
    """A chain's store that may be away, or replace objects. `calls` counts its calls."""

    def __init__(self, folder: Path, *, away: bool = False, replaces: bool = False) -> None:
        super().__init__(LocalStore(folder))
        self.local = LocalStore(folder)
        self.away = away
        self.replaces = replaces
        self.calls = 0

    def _called(self) -> None:
        self.calls += 1
        if self.away:
            raise StoreUnavailable("the store is away")

    async def create(self, key: str, data: bytes) -> bool:
        self._called()
        return await super().create(key, data) or self.replaces

    async def names(self, folder: str) -> list[str]:
        self._called()
        return list(await super().names(folder))


def chain_of(tmp_path: Path, objects: Objects, *, needed: bool, place: str | None = None) -> JournalChain:
    """The chain of a data directory whose chain file has `place`, that of the directory by default."""
    data = tmp_path / "data"
    folder = data / "journal"
    folder.mkdir(parents=True, exist_ok=True)
    (data / "format.json").write_text("{}")
    ChainFile(
        cluster=CLUSTER, journal=7, needed=needed, place=place_of(data) if place is None else place
    ).write(folder)
    chain = JournalChain(folder, StoreOptions(url="s3://bucket"), linger_s=0)
    chain.store = objects  # type: ignore[assignment]
    return chain


def file_of(tmp_path: Path) -> ChainFile:
    found = ChainFile.read(tmp_path / "data" / "journal")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("marks", "newest"),
    [
        ([], 0),
        (["00000001.json"], 1),
        (["00000009.json", "00000010.json", "00000002.json"], 10),
        (["00000003.json", "backup-99.json", "README"], 3),
    ],
)
async def test_a_copied_folder_is_refused_with_the_incarnation_that_would_take_over(
    tmp_path: Path, marks: list[str], newest: int
) -> None:
    objects = Objects(tmp_path / "objects")
    for mark in marks:
        objects.local.put(f"{CLUSTER}/owner/{mark}", b"{}")
    objects.local.put("another/owner/00000077.json", b"{}")
    chain = chain_of(tmp_path, objects, needed=True, place="another folder")
    before = file_of(tmp_path)
    with pytest.raises(StoreOwned, match=rf"DANUBE_TIER__TAKE_OVER={newest}, once") as refused:
        await chain.reopen(copy=True, take_over=False)
    assert "s3://bucket" in refused.value.message
    assert refused.value.details["field"] == "tier.take_over"
    assert file_of(tmp_path) == before
    assert not (tmp_path / "objects" / CLUSTER / "journals").exists(), "the other folder is not fenced"


async def test_a_copied_folder_waits_for_a_store_that_is_away_to_name_the_incarnation(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, Objects(tmp_path, away=True), needed=True, place="another folder")
    with pytest.raises(StoreUnavailable):
        await chain.reopen(copy=True, take_over=False, is_disk_whole=True)


async def test_a_copied_folder_that_may_take_over_becomes_the_chains_own_for_later_starts(
    tmp_path: Path,
) -> None:
    objects = Objects(tmp_path / "objects")
    await fence(objects, CLUSTER, 7, 1, term=1)
    chain = chain_of(tmp_path, objects, needed=True, place="another folder")
    before = file_of(tmp_path)
    await chain.reopen(copy=True, take_over=True)
    assert chain.error is None
    assert file_of(tmp_path) == replace(before, place=place_of(tmp_path / "data"))
    again = JournalChain(tmp_path / "data" / "journal", StoreOptions(url="s3://bucket"), linger_s=0)
    again.store = objects  # type: ignore[assignment]
    await again.reopen(copy=True, take_over=False)
    assert again.error is None


async def test_a_chain_that_is_neither_needed_nor_wanted_is_left_alone(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects", away=True)
    await chain_of(tmp_path, objects, needed=False).reopen(copy=False, take_over=False)
    assert objects.calls == 0
    (tmp_path / "data" / "journal" / "chain.json").unlink()
    empty = JournalChain(tmp_path / "data" / "journal", StoreOptions(url="s3://bucket"), linger_s=0)
    empty.store = objects  # type: ignore[assignment]
    await empty.reopen(copy=True, take_over=False)
    assert objects.calls == 0
    with pytest.raises(StoreUnavailable):
        await chain_of(tmp_path, objects, needed=True).reopen(copy=False, take_over=False)


@pytest.mark.parametrize(
    ("needed", "is_disk_whole", "starts"),
    [(True, False, False), (True, True, True), (False, False, True), (False, True, True)],
)
async def test_a_start_without_the_store_is_refused_where_the_disk_may_lack_what_was_stored(
    tmp_path: Path, needed: bool, is_disk_whole: bool, starts: bool
) -> None:
    chain = chain_of(tmp_path, Objects(tmp_path, away=True), needed=needed)
    if not starts:
        with pytest.raises(StoreUnavailable):
            await chain.reopen(copy=True, take_over=False, is_disk_whole=is_disk_whole)
        return
    await chain.reopen(copy=True, take_over=False, is_disk_whole=is_disk_whole)
    assert isinstance(chain.error, StoreUnavailable)
    assert chain.is_late == needed  # stored topics show nothing new until the earlier start is fenced
    assert chain.late_since_ms > 0


async def test_no_topic_is_stored_in_a_store_that_replaces_objects_or_is_away(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects")
    chain = chain_of(tmp_path, objects, needed=False)
    await chain.check(CLUSTER)
    objects.replaces = True
    with pytest.raises(StoreUnsuitable) as refused:
        await chain.check(CLUSTER)
    assert refused.value.details["field"] == "tier.url"
    objects.away = True
    with pytest.raises(StoreUnavailable):
        await chain.check(CLUSTER)
