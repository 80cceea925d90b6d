"""Hand-over fragments are collected by the store's times: a broker's clock, however wrong, deletes none that is young."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pydanube_broker.tier.fragments import FragmentWork
from pydanube_storage.objects import ObjectFact
from pydanube_storage.objects.local import LocalStore
from pydanube_storage.objects.store_time import store_now_ms

HOUR_MS = 3_600_000
FOLDER = "c/fragments"


def store_with(tmp_path: Path, **ages_ms: int) -> LocalStore:
    """A store with fragments of these ages."""
    store = LocalStore(tmp_path / "objects", spool="s")
    for name, age_ms in ages_ms.items():
        store.put(f"{FOLDER}/{name}.fragment", b"x")
        path = next((tmp_path / "objects").rglob(f"{name}.fragment"))
        then_s = time.time() - age_ms / 1000
        os.utime(path, (then_s, then_s))
    return store


def names(store: LocalStore) -> set[str]:
    return {fact.key.rpartition("/")[2] for fact in store.list(FOLDER)}


@pytest.mark.parametrize("ahead_ms", [-25 * HOUR_MS, -2 * HOUR_MS, 0, 2 * HOUR_MS, 25 * HOUR_MS])
def test_a_wrong_clock_deletes_no_young_fragment_and_keeps_no_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    """A leader an hour ahead took the fragments of a move under way for old: acknowledged messages were lost."""
    store = store_with(tmp_path, young=1000, old=2 * HOUR_MS)
    wrong = time.time_ns() + ahead_ms * 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: wrong)
    monkeypatch.setattr(time, "time", lambda: wrong / 1e9)
    said, _ = FragmentWork(store).collect({"prefix": FOLDER, "age_ms": HOUR_MS}, b"")
    assert (said["deleted"], names(store)) == (1, {"young.fragment"})


def test_a_store_whose_listings_have_no_times_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_with(tmp_path, young=1000, old=2 * HOUR_MS)
    listed = store.list

    def without_times(prefix: str) -> list[ObjectFact]:
        return [ObjectFact(key=fact.key, bytes=fact.bytes, modified_ms=None) for fact in listed(prefix)]

    monkeypatch.setattr(LocalStore, "list", lambda self, prefix: without_times(prefix))
    said, _ = FragmentWork(store).collect({"prefix": FOLDER, "age_ms": HOUR_MS}, b"")
    assert said["deleted"] == 0
    assert names(store) == {"young.fragment", "old.fragment"}


def test_the_time_of_a_store_leaves_nothing_behind(tmp_path: Path) -> None:
    store = store_with(tmp_path)
    before = time.time() * 1000
    now = store_now_ms(store, "c/time")
    assert now is not None
    assert before - 2000 <= now <= time.time() * 1000 + 2000
    assert list(store.list("c")) == []
