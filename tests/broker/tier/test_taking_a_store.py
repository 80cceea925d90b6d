"""How a start takes its store: the note and the mark it leaves, in which order, and what it does not take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydanube_broker.tier.child import TierChild
from pydanube_broker.tier.owned_store import CHECK_S, OwnedStore
from pydanube_broker.tier.ownership import Known, StoreOwnership, mark_of, place_of, read_known, write_known
from pydanube_core.errors import StoreOwned, StoreUnavailable
from pydanube_storage.objects import LocalStore, OwnerMark, StoreOptions, make_mark, newest_mark

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio

CLUSTER = "c"


class Place:
    """A data directory, its metadata, and a store beside it."""

    def __init__(self, folder: Path, metadata: MemoryStore) -> None:
        self.data, self.objects, self.metadata = folder / "data", folder / "objects", metadata
        self.data.mkdir()
        self.objects.mkdir()
        (self.data / "format.json").write_text("{}")
        self.adopted: list[OwnerMark | None] = []
        self.now_s = 0.0

    def hold(self, *, take_over: int | None = None) -> OwnedStore:
        return OwnedStore(
            StoreOptions(url=str(self.objects)),
            self.data,
            self.metadata,
            cast(TierChild, None),
            broker_id="7",
            shared=False,
            take_over=take_over,
            monotonic=lambda: self.now_s,
        )

    async def take(self, hold: OwnedStore) -> StoreOwnership | None:
        return await hold.take(CLUSTER, objects_listed=False, adopt=self._adopt)

    async def _adopt(self) -> None:
        self.adopted.append(self.mark())

    def mark(self) -> OwnerMark | None:
        return newest_mark(LocalStore(self.objects), CLUSTER, "")

    def leave(self, incarnation: int, life: str) -> OwnerMark:
        """Mark the store as another start has."""
        place = place_of(self.data)
        mark = mark_of(incarnation, life, place=place, broker_id="8", data_dir="/other")
        return make_mark(LocalStore(self.objects), CLUSTER, mark, "")


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with MemoryStore() as metadata:
        yield Place(tmp_path, metadata)


async def test_each_start_takes_the_store_one_incarnation_above_the_mark_and_the_note(place: Place) -> None:
    for incarnation in (1, 2):
        hold = place.hold()
        assert await place.take(hold) is StoreOwnership.CLAIM
        assert (hold.held, hold.continuous, hold.reason) == (True, True, None)
        mark = place.mark()
        assert mark is not None
        assert (mark.incarnation, mark.life, mark.broker_id) == (incarnation, hold.life, "7")
        assert await read_known(place.metadata, "") == Known(incarnation=incarnation, life=hold.life)
    await write_known(place.metadata, "", Known(incarnation=5, life="e", next_incarnation=9, next_life="f"))
    await place.take(place.hold())
    mark = place.mark()
    assert mark is not None
    assert mark.incarnation == 10, "above a number that was begun, whose mark may still arrive"


async def test_objects_of_a_newer_mark_are_adopted_before_the_store_is_marked_and_only_at_a_start(
    place: Place,
) -> None:
    newer = place.leave(6, "newer")
    later = place.hold(take_over=6)
    later._adopt, later._cluster = place._adopt, CLUSTER
    with pytest.raises(StoreOwned):
        await later.take_mark(newer, at_start=False)
    assert (place.adopted, place.mark(), later.held) == ([], newer, False)
    hold = place.hold(take_over=6)
    assert await place.take(hold) is StoreOwnership.ADOPT
    assert place.adopted == [newer], "a crash during the adoption repeats it"
    assert (hold.held, hold.continuous) == (True, False)


async def test_the_store_of_another_is_not_taken(place: Place) -> None:
    other = place.leave(6, "other")
    hold = place.hold()
    with pytest.raises(StoreOwned):
        await place.take(hold)
    assert (hold.held, place.mark(), place.adopted) == (False, other, [])
    assert await read_known(place.metadata, "") is None


async def test_a_start_that_another_was_quicker_than_does_not_hold_the_store(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, make = place.hold(), OwnedStore.make

    async def second(self: OwnedStore, mark: OwnerMark, *, scope: str) -> OwnerMark:
        place.leave(mark.incarnation, "quicker")
        return await make(self, mark, scope=scope)

    monkeypatch.setattr(OwnedStore, "make", second)
    with pytest.raises(StoreOwned):
        await place.take(hold)
    assert not hold.held
    mark = place.mark()
    assert mark is not None
    assert mark.life == "quicker"


async def test_a_start_after_a_crash_between_mark_and_note_notes_the_mark_before_it_leaves_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.leave(6, "f")
    await write_known(place.metadata, "", Known(incarnation=5, life="e", next_incarnation=6, next_life="f"))
    noted: list[Known | None] = []
    make = OwnedStore.make

    async def seen(self: OwnedStore, mark: OwnerMark, *, scope: str) -> OwnerMark:
        noted.append(await read_known(place.metadata, ""))
        return await make(self, mark, scope=scope)

    monkeypatch.setattr(OwnedStore, "make", seen)
    hold: Any = place.hold()
    assert await place.take(hold) is StoreOwnership.CLAIM
    assert noted == [Known(incarnation=6, life="f", next_incarnation=7, next_life=hold.life)]


async def test_a_store_that_was_emptied_is_not_written_to(place: Place) -> None:
    await write_known(place.metadata, "", Known(incarnation=5, life="e"))
    hold = place.hold()
    assert await hold.take(CLUSTER, objects_listed=True, adopt=place._adopt) is StoreOwnership.EMPTY
    assert (hold.held, hold.code, place.mark()) == (False, "TIER_STORE_EMPTY", None)


async def test_a_store_that_another_start_takes_is_lost_at_the_next_look_and_logged_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    hold = place.hold()
    await place.take(hold)
    ours = place.mark()
    for _ in range(3):
        place.now_s += CHECK_S
        await hold.ask_again()
        assert hold.held
    assert place.mark() == ours, "looking takes nothing"
    other = place.leave(2, "other")
    await hold.ask_again()
    assert hold.held, "looked at too early"
    for _ in range(3):
        place.now_s += CHECK_S
        await hold.ask_again()
        assert (hold.held, hold.code) == (False, "TIER_STORE_OWNED")
        with pytest.raises(StoreOwned):
            hold.check()
    assert place.mark() == other
    assert [record.message for record in caplog.records] == ["tier_store_lost"]


async def test_a_store_whose_mark_vanishes_is_written_to_again_only_with_the_mark(place: Place) -> None:
    hold = place.hold()
    await place.take(hold)
    hidden = place.objects.rename(place.objects.with_name("hidden"))
    place.now_s += CHECK_S
    await hold.ask_again()
    assert (hold.held, hold.code) == (False, "TIER_STORE_EMPTY")
    with pytest.raises(StoreUnavailable, match="has no mark of this cluster"):
        hold.check()
    hidden.rename(place.objects)
    place.now_s += CHECK_S
    await hold.ask_again()
    assert hold.held
    hold.check()
