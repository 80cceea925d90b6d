"""What every object store does; the tier trims the journal on this word."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydanube_core.errors import InvalidArgument, ObjectMissing
from pydanube_storage.objects import ObjectStore, OwnerMark, make_mark, newest_mark


def test_what_was_put_is_read_by_another_client(
    store: ObjectStore, open_again: Callable[[], ObjectStore]
) -> None:
    store.put("a/b/one.parquet", b"0123456789")
    other = open_again()
    assert other.size("a/b/one.parquet") == 10
    assert other.read("a/b/one.parquet", 0, 10) == b"0123456789"
    assert other.read("a/b/one.parquet", 3, 7) == b"3456"
    assert other.read("a/b/one.parquet", 5, 5) == b""


def test_a_spooled_file_of_many_parts_arrives_whole(store: ObjectStore) -> None:
    content = bytes(range(256)) * (9 << 12)  # 9 MiB
    spooled = store.spool / "object.tmp"
    spooled.write_bytes(content)
    store.put("big", spooled)
    assert store.size("big") == len(content)
    assert store.read("big", 0, len(content)) == content
    assert not spooled.exists()


def test_a_listing_shows_the_folder_at_once_and_no_neighbour(store: ObjectStore) -> None:
    for key in ("t/orders/2", "t/orders/1", "t/orders-eu/1", "t/orders/deep/3", "other"):
        store.put(key, key.encode())
    (store.spool / "half.tmp").write_bytes(b"half")
    assert [fact.key for fact in store.list("t/orders")] == ["t/orders/1", "t/orders/2", "t/orders/deep/3"]
    assert [fact.bytes for fact in store.list("t/orders")] == [10, 10, 15]
    assert [fact.key for fact in store.list("nowhere")] == []
    assert len(list(store.list(""))) == 5


def test_a_deleted_object_is_gone_and_deleting_again_is_no_error(store: ObjectStore) -> None:
    store.put("t/one", b"x")
    store.delete("t/one")
    store.delete("t/one")
    store.delete("t/never")
    assert list(store.list("t")) == []
    with pytest.raises(ObjectMissing):
        store.size("t/one")


def test_a_missing_object_is_named_with_its_store(store: ObjectStore) -> None:
    for call in (lambda: store.read("t/one", 0, 1), lambda: store.size("t/one")):
        with pytest.raises(ObjectMissing) as caught:
            call()
        assert caught.value.details["key"] == "t/one"
        assert caught.value.details["store"] == store.url


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\\b"])
def test_a_key_cannot_leave_the_store(store: ObjectStore, key: str) -> None:
    with pytest.raises(InvalidArgument):
        store.put(key, b"x")


def test_folders_are_those_right_below(store: ObjectStore) -> None:
    for key in ("b/topics/one", "a/telemetry/date=2026-01-01/x", "top.parquet"):
        store.put(key, b"x")
    assert list(store.folders("")) == ["a", "b"]
    assert list(store.folders("a/telemetry")) == ["date=2026-01-01"]
    assert list(store.folders("nowhere")) == []


def test_what_is_made_only_where_nothing_is_stays_as_it_was(store: ObjectStore) -> None:
    store.put_new("c/owner/1.json", b"first")
    store.put_new("c/owner/1.json", b"second")
    assert store.read("c/owner/1.json", 0, 5) == b"first"


@pytest.mark.parametrize(
    "options", ["local", "memory"], indirect=True
)  # the S3 server here has no conditions
def test_an_object_is_created_only_where_there_is_none(
    store: ObjectStore, open_again: Callable[[], ObjectStore]
) -> None:
    check_that_an_object_is_created_once(store, open_again)


def check_that_an_object_is_created_once(store: ObjectStore, open_again: Callable[[], ObjectStore]) -> None:
    assert store.create("c/journals/1/1", b"first")
    assert not open_again().create("c/journals/1/1", b"second")
    assert store.read("c/journals/1/1", 0, 5) == b"first"
    store.delete("c/journals/1/1")
    assert store.create("c/journals/1/1", b"third")


def test_of_two_who_want_to_own_a_store_both_see_the_same_one(store: ObjectStore) -> None:
    def mark(incarnation: int, life: str) -> OwnerMark:
        return OwnerMark(
            incarnation=incarnation, life=life, place="1", broker_id="7", host="h", data_dir="/d", pid=1,
            since="2026-01-31T12:00:00+00:00",
        )  # fmt: skip

    assert newest_mark(store, "c") is None
    assert make_mark(store, "c", mark(1, "a")) == mark(1, "a")
    assert make_mark(store, "c", mark(1, "b")) == mark(1, "a")
    assert newest_mark(store, "c") == mark(1, "a")
    for incarnation in range(2, 15):
        assert make_mark(store, "c", mark(incarnation, "a")).incarnation == incarnation
    assert make_mark(store, "c", mark(3, "late")) == mark(14, "a")
    assert newest_mark(store, "other") is None
    assert len(list(store.list("c/owner"))) <= 9  # a few are kept for people
