"""The leader's snapshots of the metadata: each whole one is what the metadata were at its revision, without secrets."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from pydanube_broker.home.snapshot_check import read_back
from pydanube_broker.settings.load import load_settings
from pydanube_broker.tier import metadata_snapshots
from pydanube_broker.tier.metadata_snapshots import MetadataSnapshots
from pydanube_broker.tier.tier import CLUSTER_KEY
from pydanube_broker.tier.work import TierWork
from pydanube_core.errors import CorruptObject, DataDirLocked, ObjectMissing
from pydanube_storage.metadata import Delete, EmbeddedStore, KeyRange, Put, read_all, snapshots
from pydanube_storage.metadata.snapshots import (
    MOST_BYTES,
    MOST_STORED,
    Snapshot,
    by_snapshot,
    compare,
    piece_key,
    read_newest,
)
from pydanube_storage.objects import LocalStore

from tests.support.waiting import until

pytestmark = pytest.mark.anyio
CLUSTER = "cluster-1"


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    async with EmbeddedStore(tmp_path / "metadata.sqlite") as store:
        yield store


@pytest.fixture
def objects(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "objects")


def writer(metadata: EmbeddedStore, objects: LocalStore, **more: Any) -> MetadataSnapshots:
    calls = TierWork(objects).calls()

    async def call(name: str, arguments: dict[str, Any], blob: bytes = b"") -> Any:
        return calls[name](arguments, blob)

    tier = SimpleNamespace(
        cluster=CLUSTER,
        missing=None,
        hold=SimpleNamespace(held=True, check=lambda: None),
        child=SimpleNamespace(call=call),
    )
    return MetadataSnapshots(metadata, cast(Any, tier), **{"leads": lambda: True, "every_s": 0.05, **more})


async def until_at(objects: LocalStore, holds: Callable[[Snapshot], bool]) -> Snapshot:
    """Wait for a whole snapshot of which something holds. The writer runs beside."""
    with anyio.fail_after(60):
        while True:
            try:
                found = read_newest(objects, CLUSTER)
            except ObjectMissing:
                found = None
            if found is not None and holds(found):
                return found
            await anyio.sleep(0.02)


async def check(metadata: EmbeddedStore, found: Snapshot) -> None:
    items, revision = await read_all(metadata, KeyRange.prefix("/"))
    compared = compare(found, items, revision)
    assert compared.agrees, compared


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_snapshots, "LOOK_S", 0.02)


async def fill(metadata: EmbeddedStore, count: int, first: int = 0) -> None:
    for start in range(first, first + count, 100):
        await metadata.transact([Put(f"/registry/{n:06d}", b"%d" % n) for n in range(start, start + 100)])


async def test_a_snapshot_follows_the_metadata_and_withholds_secrets(
    metadata: EmbeddedStore, objects: LocalStore, quick: None
) -> None:
    await fill(metadata, 2500)
    await metadata.transact([Put("/relay/secret", b"hidden"), Put("/admin/security/tokens/a", b"hash")])
    lease = await metadata.grant_lease(60_000)
    await metadata.transact([Put("/members/1", b"x", lease)])
    async with anyio.create_task_group() as group:
        group.start_soon(writer(metadata, objects).run)
        found = await until_at(objects, lambda each: len(each.keys) >= 2502)
        await check(metadata, found)
        assert found.withheld == ["/admin/security/tokens/a", "/relay/secret"]
        assert "/members/1" not in found.keys
        await metadata.transact(
            [Delete("/registry/000007"), Put("/registry/000008", b"changed"), Put("/z", b"z")]
        )
        changed = await until_at(objects, lambda each: "/z" in each.keys)
        await check(metadata, changed)
        assert changed.snapshot == found.snapshot, "what changed is written, and not everything"
        assert changed.keys["/registry/000008"].value == b"changed"
        assert "/registry/000007" not in changed.keys
        group.cancel_scope.cancel()
    stored = b"".join(path.read_bytes() for path in (objects.spool.parent).rglob("*.gz"))
    assert stored
    assert all(kept.value != b"hidden" for kept in changed.keys.values())


async def test_a_snapshot_that_is_begun_while_the_metadata_change_is_whole_only_once_it_is_of_one_revision(
    metadata: EmbeddedStore, objects: LocalStore, quick: None
) -> None:
    """Two keys change together all the time. Every whole state has them together."""
    await fill(metadata, 3000)
    seen = 0
    async with anyio.create_task_group() as group:

        async def change() -> None:
            n = 0
            while True:
                n += 1
                value = b"%d" % n
                await metadata.transact([Put("/a/first", value), Put("/z/last", value)])
                await anyio.lowlevel.checkpoint()

        group.start_soon(change)
        group.start_soon(writer(metadata, objects).run)
        revision = 0
        with anyio.fail_after(60):
            while seen < 5:
                found = await until_at(objects, lambda each, at=revision: each.revision > at)  # type: ignore[misc]
                revision, seen = found.revision, seen + 1
                assert found.keys["/a/first"].value == found.keys["/z/last"].value
                assert len(found.keys) == 3002
        group.cancel_scope.cancel()


async def test_a_piece_never_has_more_bytes_than_a_reader_takes(
    metadata: EmbeddedStore, objects: LocalStore, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 1 000 keys, or what changed in a minute, was one piece of any size."""
    monkeypatch.setattr(metadata_snapshots, "_MOST_PIECE_BYTES", 100_000, raising=False)

    async def put(kind: str) -> None:
        for n in range(0, 40, 4):
            await metadata.transact([Put(f"/{kind}/{m:03d}", os.urandom(15_000)) for m in range(n, n + 4)])

    await put("first")
    async with anyio.create_task_group() as group:
        group.start_soon(writer(metadata, objects, every_s=3600.0).run)
        await check(metadata, await until_at(objects, lambda each: len(each.keys) >= 40))
        await put("later")
        found = await until_at(objects, lambda each: "/later/030" in each.keys)
        assert found.pieces > 8, "changes of so many bytes are not kept until the hour is over"
        group.cancel_scope.cancel()
    sizes = [len(gzip.decompress(path.read_bytes())) for path in objects.spool.parent.rglob("*.gz")]
    assert max(sizes) < 150_000, "base64, and the lines' other fields"


async def test_another_leader_begins_a_new_snapshot_and_the_newest_three_are_kept(
    metadata: EmbeddedStore, objects: LocalStore, quick: None
) -> None:
    await fill(metadata, 100)
    names: list[str] = []
    for _ in range(5):
        async with anyio.create_task_group() as group:
            group.start_soon(writer(metadata, objects).run)
            found = await until_at(objects, lambda each: each.snapshot not in names)
            names.append(found.snapshot)
            await until(partial(kept, objects, names[-3:]))
            group.cancel_scope.cancel()
    assert names == sorted(names)


def kept(objects: LocalStore, names: list[str]) -> bool:
    return sorted(by_snapshot(fact.key for fact in objects.list(f"{CLUSTER}/metadata"))) == names


async def test_the_command_reads_a_snapshot_back_and_compares_it(
    objects: LocalStore, quick: None, tmp_path: Path
) -> None:
    settings = load_settings(None, {}, overrides={"data.dir": str(tmp_path)})
    async with EmbeddedStore(tmp_path / "metadata.sqlite") as metadata:
        await fill(metadata, 300)
        await metadata.transact([Put(CLUSTER_KEY, CLUSTER.encode())])
        async with anyio.create_task_group() as group:
            group.start_soon(writer(metadata, objects).run)
            await until_at(objects, lambda each: len(each.keys) == 301)
            group.cancel_scope.cancel()
        read = await read_back(settings, verify=False)
        assert (read.cluster, len(read.snapshot.keys), read.comparison) == (CLUSTER, 301, None)
        with pytest.raises(DataDirLocked):
            await read_back(settings, verify=True)
        await metadata.transact([Put("/registry/000001", b"since"), Delete("/registry/000002")])
    compared = (await read_back(settings, verify=True)).comparison
    assert compared is not None
    assert (compared.agrees, compared.same, compared.changed_since) == (True, 299, 1)
    assert compared.gone == ["/registry/000002"]
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as rows, rows:
        rows.execute("UPDATE kv SET value = ? WHERE key = '/registry/000003'", (b"other",))
    compared = (await read_back(settings, verify=True)).comparison
    assert compared is not None
    assert (compared.agrees, compared.wrong) == (False, ["/registry/000003"])


async def test_a_damaged_or_missing_piece_is_named(
    metadata: EmbeddedStore, objects: LocalStore, quick: None, tmp_path: Path
) -> None:
    await fill(metadata, 1500)
    async with anyio.create_task_group() as group:
        group.start_soon(writer(metadata, objects).run)
        await until_at(objects, lambda each: len(each.keys) == 1500)
        group.cancel_scope.cancel()
    first, second = sorted((tmp_path / "objects").rglob("*.json.gz"))
    whole = second.read_bytes()
    for at in (12, len(whole) // 2, len(whole) - 3):
        second.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptObject):
            read_newest(objects, CLUSTER)
    second.write_bytes(whole)
    first.unlink()
    with pytest.raises(ObjectMissing, match=first.name):
        read_newest(objects, CLUSTER)


async def test_files_of_others_in_the_folder_end_no_snapshot(
    metadata: EmbeddedStore, objects: LocalStore, tmp_path: Path, quick: None
) -> None:
    """A folder may be on a share whose server or whose users put their own files there."""
    folder = tmp_path / "objects" / CLUSTER / "metadata"
    (folder / ".snapshots").mkdir(parents=True)
    (folder / ".snapshots" / "x").touch()
    (folder / "notes.txt").touch()
    (folder / "99999999999999999999-aaaaaaaa").mkdir()
    (folder / "99999999999999999999-aaaaaaaa" / "00000000.json.gz").touch()
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    await metadata.transact([Put("/a", b"1")])
    async with anyio.create_task_group() as group:
        group.start_soon(writer(metadata, objects).run)
        found = await until_at(objects, lambda each: "/a" in each.keys)
        (folder / found.snapshot / ".00000000.json.gz.swp").touch()
        await metadata.transact([Put("/b", b"2")])
        await until_at(objects, lambda each: "/b" in each.keys)
        group.cancel_scope.cancel()


def hostile(head: dict[str, Any], *lines: Any) -> bytes:
    """Return a piece whose sum is right."""
    text = "".join(
        f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in (head, *lines)
    ).encode()
    end = {"lines": 1 + len(lines), "sha256": hashlib.sha256(text).hexdigest()}
    return gzip.compress(text + json.dumps(end).encode())


NAME = f"{7:020d}-0a1b2c3d"
HEAD: dict[str, Any] = {
    "cluster": CLUSTER, "snapshot": NAME, "piece": 0, "revision": 7, "whole": True, "written_ms": 1, "format": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        hostile(HEAD, "[" * 100_000),
        hostile(HEAD, 5),
        hostile(HEAD, "[]"),
        hostile(HEAD, '{"/a": 1}'),
        hostile(HEAD, ["/a", 1]),
        hostile(HEAD, ["/a", 1, 1, "!"]),
        hostile(HEAD, ["/a", "1", 1, "YQ=="]),
        hostile(HEAD, [{}, 1, 1, "YQ=="]),
        hostile(HEAD | {"piece": "x"}),
        hostile(HEAD | {"revision": "7"}),
        hostile(HEAD | {"written_ms": 10**30}),
        hostile(HEAD | {"whole": 1}),
        hostile(HEAD | {"format": "1"}),
        hostile(HEAD)[:-1],
        hostile(HEAD) + b"more",
        gzip.compress(bytes(MOST_BYTES // 1024)),
    ],
)
def test_a_piece_that_no_broker_wrote_is_corrupt(
    data: bytes, objects: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MOST_BYTES", MOST_BYTES // 2048)
    objects.put(piece_key(CLUSTER, NAME, 0), data)
    with pytest.raises(CorruptObject):
        read_newest(objects, CLUSTER)


def test_a_piece_that_is_too_large_or_no_file_is_not_read(objects: LocalStore, tmp_path: Path) -> None:
    path = tmp_path / "objects" / piece_key(CLUSTER, NAME, 0)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(MOST_STORED + 1)
    with pytest.raises(CorruptObject, match="no piece has more"):
        read_newest(objects, CLUSTER)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptObject, match="no regular file"):
        objects.read(piece_key(CLUSTER, NAME, 0), 0, 1)
    with pytest.raises(ObjectMissing):
        read_newest(objects, CLUSTER)
