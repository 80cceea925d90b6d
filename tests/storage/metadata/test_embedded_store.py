"""What only the SQLite adapter has: a file that outlives the process, a worker thread, a disk that fails."""

# ruff: noqa: ASYNC240  (small files, read while nothing else runs)

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube_core.errors import DataDirForeign, DataDirLocked, DiskFull, FormatTooNew, StoreUnavailable
from pydanube_storage.metadata import (
    Compacted,
    CorruptMetadata,
    Delete,
    EmbeddedStore,
    KeyRange,
    LeaseLost,
    Put,
    Revision,
    read_all,
)
from pydanube_storage.metadata.engine import Engine
from pydanube_storage.metadata.sqlite_rows import METADATA_FORMAT_VERSION

from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.anyio
EVERYTHING = KeyRange.prefix("/")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


def connection(store: EmbeddedStore, engine: Engine) -> sqlite3.Connection:
    """The store's own connection, for faults that have to happen inside it; use it in the store's thread."""
    found: sqlite3.Connection = engine._rows._connection  # type: ignore[attr-defined]
    return found


# What outlives the process


async def test_keys_and_revisions_go_on_after_opening_again(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        await store.transact([Put("/a", b"1")])
        await store.transact([Put("/b", b"2"), Delete("/a")])
        before = (await store.range(EVERYTHING)).items
    async with EmbeddedStore(path) as store:
        page = await store.range(EVERYTHING)
        assert (page.items, page.revision) == (before, 2)
        assert await store.transact([Put("/a", b"3")]) == 3


async def test_a_new_file_goes_on_above_the_revision_of_another_store(path: Path) -> None:
    async with EmbeddedStore(path, first_revision=500) as store:
        assert await store.transact([Put("/a", b"1")]) == 501
        with pytest.raises(Compacted):
            async with store.watch(EVERYTHING, from_revision=Revision(500)) as events:
                await anext(events)
    async with EmbeddedStore(path, first_revision=9) as store:
        assert store.statistics().revision == 501, "an older file has its own"


async def test_revision_of_a_deleted_key_is_not_used_again_after_opening(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        await store.transact([Put("/a", b"")])
        await store.transact([Delete("/a")])
    async with EmbeddedStore(path) as store:
        assert await store.transact([Put("/a", b"")]) == 3


async def test_watch_looks_back_beyond_the_restart(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        await store.transact([Put("/a", b"1")])
    async with EmbeddedStore(path) as store:
        await store.transact([Put("/a", b"2")])
        async with store.watch(EVERYTHING, from_revision=Revision(1)) as events:
            assert [(await anext(events)).value for _ in range(2)] == [b"1", b"2"]


async def test_forgotten_history_stays_forgotten_when_more_is_asked_for_later(path: Path) -> None:
    async with EmbeddedStore(path, history_revisions=4) as store:
        for _ in range(20):
            await store.transact([Put("/a", b"")])
    async with EmbeddedStore(path, history_revisions=1000) as store:
        oldest = store.statistics().oldest_event_revision
        assert oldest is not None
        assert 1 < oldest <= 17
        async with store.watch(EVERYTHING, from_revision=Revision(1)) as events:
            with pytest.raises(Compacted):
                await anext(events)


async def test_history_rows_are_bounded_on_disk(path: Path) -> None:
    async with EmbeddedStore(path, history_revisions=8) as store:
        for _ in range(100):
            await store.transact([Put("/a", b"")])
    with sqlite3.connect(path) as reader:
        (rows,) = reader.execute("SELECT count(*) FROM history").fetchone()
    reader.close()
    assert rows <= 8 + 8 // 4 + 1


async def test_lease_has_its_whole_time_after_opening_again_and_then_ends(path: Path) -> None:
    clock = ManualClock()
    async with EmbeddedStore(path, clock=clock) as store:
        lease = await store.grant_lease(1_000)
        await store.transact([Put("/leased", b"", lease_id=lease)])
        clock.advance(900)
    async with EmbeddedStore(path, clock=clock) as store:
        clock.advance(900)
        assert await store.get("/leased") is not None
        clock.advance(100)
        assert await store.get("/leased") is None
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)
        assert await store.grant_lease(1_000) > lease


def kill_while_transacting(path: Path, *, after_lines: int) -> dict[str, int]:
    """Start a child that transacts, SIGKILL it mid-way, return what it said was done: name → revision."""
    child = Path(__file__).with_name("transacting_child.py")
    with subprocess.Popen(
        [sys.executable, str(child), str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(after_lines)]
        process.kill()
        lines += process.stdout.readlines()
    assert process.returncode == -9
    done = [line.split() for line in lines if line.endswith("\n") and line.strip()]
    return {name: int(revision) for name, revision in done}


async def test_sigkill_loses_no_acknowledged_transaction_and_leaves_none_in_half(path: Path) -> None:
    for round_, after_lines in enumerate((40, 150, 400)):
        file = path.with_name(f"{round_}.sqlite")
        printed = await anyio.to_thread.run_sync(
            lambda file=file, n=after_lines: kill_while_transacting(file, after_lines=n)
        )
        assert len(printed) >= after_lines
        async with EmbeddedStore(file) as store:
            left, revision = await read_all(store, KeyRange.prefix("/left/"))
            right, _ = await read_all(store, KeyRange.prefix("/right/"))
            revisions = {item.key.removeprefix("/left/"): item.create_revision for item in left}
            assert printed.items() <= revisions.items()
            assert revisions == {item.key.removeprefix("/right/"): item.create_revision for item in right}
            assert sorted(revisions.values()) == list(range(1, revision + 1))
            assert await store.transact([Put("/next", b"")]) == revision + 1


# Files that are not ours, or damaged


async def test_second_opener_is_refused_and_the_first_goes_on(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        with pytest.raises(DataDirLocked):
            async with EmbeddedStore(path):
                pass
        await store.transact([Put("/a", b"")])
    async with EmbeddedStore(path) as store:
        assert await store.get("/a") is not None


async def test_foreign_sqlite_file_is_refused_untouched(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE kv (a)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(DataDirForeign):
        async with EmbeddedStore(path):
            pass
    assert path.read_bytes() == before


async def test_file_that_is_no_database_is_refused_untouched(path: Path) -> None:
    path.write_bytes(b"not a database " * 100)
    with pytest.raises(DataDirForeign):
        async with EmbeddedStore(path):
            pass
    assert path.read_bytes() == b"not a database " * 100


async def test_newer_format_is_refused(path: Path) -> None:
    async with EmbeddedStore(path):
        pass
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {METADATA_FORMAT_VERSION + 1}")
    other.close()
    with pytest.raises(FormatTooNew):
        async with EmbeddedStore(path):
            pass


async def test_missing_folder_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        async with EmbeddedStore(tmp_path / "absent" / "metadata.sqlite"):
            pass


async def test_damaged_page_is_a_typed_error(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        for i in range(50):
            await store.transact([Put(f"/{i:03d}/{j}", bytes(500)) for j in range(20)])
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(CorruptMetadata):
        async with EmbeddedStore(path) as store:
            await read_all(store, EVERYTHING)


async def test_commits_reach_the_disk_before_they_are_answered(path: Path) -> None:
    """SIGKILL keeps the page cache, so only the settings tell that a power cut loses nothing."""
    async with EmbeddedStore(path) as store:

        def setting(name: str) -> Any:
            return lambda engine: connection(store, engine).execute(f"PRAGMA {name}").fetchone()[0]

        assert await store.run_step(setting("journal_mode"), writes=False) == "wal"
        assert await store.run_step(setting("synchronous"), writes=False) == 2  # FULL


# A disk that refuses


async def test_full_disk_refuses_changes_nothing_and_clears_itself(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        revision = await store.transact([Put("/a", b"")])

        def pages(limit: int) -> Any:
            return lambda engine: (
                connection(store, engine).execute(f"PRAGMA max_page_count = {limit}").fetchone()
            )

        await store.run_step(pages(1), writes=False)  # SQLite takes the present size as the least
        with pytest.raises(DiskFull):
            await store.transact([Put("/b", bytes(200_000))])
        page = await store.range(EVERYTHING)
        assert ([item.key for item in page.items], page.revision) == (["/a"], revision)
        assert store.statistics().failed is False
        await store.run_step(pages(1_000_000), writes=False)
        assert await store.transact([Put("/b", bytes(200_000))]) == revision + 1


async def test_disk_error_stops_writing_until_opened_again(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        await store.transact([Put("/a", b"")])

        def fail(engine: Engine) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error

        with pytest.raises(StoreUnavailable) as caught:
            await store.run_step(fail, writes=True)
        assert caught.value.details["outcome"] == "unknown"
        assert caught.value.details["reason"] == "SQLITE_IOERR_FSYNC"
        with pytest.raises(StoreUnavailable, match="Start the broker again"):
            await store.transact([Put("/b", b"")])
        assert await store.get("/a") is not None
        assert store.statistics().failed is True
    async with EmbeddedStore(path) as store:
        await store.transact([Put("/b", b"")])


async def test_group_that_fails_takes_its_neighbours_back_whole(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        entered, release = threading.Event(), threading.Event()
        outcomes: list[str] = []

        def hold(_engine: Engine) -> None:
            entered.set()
            release.wait(30)

        def bug(_engine: Engine) -> None:
            raise ZeroDivisionError

        async def call(operation: Any, *, writes: bool) -> None:
            try:
                await store.run_step(operation, writes=writes)
                outcomes.append("done")
            except ZeroDivisionError:
                outcomes.append("bug")

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: call(hold, writes=False))
            await anyio.to_thread.run_sync(entered.wait)
            group.start_soon(lambda: call(lambda engine: engine.transact((), (Put("/a", b""),)), writes=True))
            group.start_soon(lambda: call(bug, writes=False))
            while store.statistics().waiting < 3:
                await anyio.lowlevel.checkpoint()
            release.set()
        assert outcomes == ["done", "bug", "bug"]
        assert await store.get("/a") is None
        assert await store.transact([Put("/b", b"")]) == 1


# The thread


async def test_waiting_transactions_share_commits(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        async with anyio.create_task_group() as group:
            for i in range(200):
                group.start_soon(store.transact, [Put(f"/{i}", b"")])
        statistics = store.statistics()
    assert statistics.transactions == 200
    assert statistics.commits <= 20


async def test_pending_hook_is_held_while_a_call_waits(path: Path) -> None:
    held = 0
    seen: list[int] = []

    @contextmanager
    def pending() -> Iterator[None]:
        nonlocal held
        held += 1
        try:
            yield
        finally:
            held -= 1

    async with EmbeddedStore(path, pending=pending) as store:
        assert held == 0
        await store.run_step(lambda _engine: seen.append(held), writes=False)
        assert (seen, held) == ([1], 0)


async def test_call_cancelled_before_its_turn_is_not_carried_out(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        entered, release = threading.Event(), threading.Event()

        def hold(_engine: Engine) -> None:
            entered.set()
            release.wait(30)

        async def held() -> None:
            await store.run_step(hold, writes=False)

        async with anyio.create_task_group() as group:
            group.start_soon(held)
            await anyio.to_thread.run_sync(entered.wait)
            scope = anyio.CancelScope()

            async def cancel() -> None:
                scope.cancel()

            with scope:
                group.start_soon(cancel)
                await store.transact([Put("/a", b"")])
            release.set()
        assert scope.cancelled_caught
        assert await store.get("/a") is None


async def test_thread_is_gone_after_the_block(path: Path) -> None:
    async with EmbeddedStore(path):
        assert any(thread.name == "metadata-store" for thread in threading.enumerate())
    assert not any(thread.name == "metadata-store" for thread in threading.enumerate())
