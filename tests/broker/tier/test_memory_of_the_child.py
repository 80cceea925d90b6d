"""The tier's process returns memory that it does not use: its heap is what its caches are allowed, and no more."""

from __future__ import annotations

import asyncio
import random
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.tier.child import TierChild
from pydanube_core.batch import broker_part, encode_batch
from pydanube_storage.objects import StoreOptions, open_store

from tests.support.waiting import until

pytest.importorskip("pyarrow")

from pydanube_broker.tier import work
from pydanube_broker.tier.work import DECODED_BYTES, IDLE_S, RowGroups
from pydanube_storage.parquet.decode import DecodedBatch

pytestmark = pytest.mark.usefixtures("cold_helpers")
TOPICS, ROUNDS = 6, 4
MESSAGES, BYTES = 40, 64 << 10  # of a batch of 2.5 MiB
BATCHES = 4


def _group(*sizes: int) -> Sequence[DecodedBatch]:
    return cast(Sequence[DecodedBatch], [SimpleNamespace(data=bytes(size)) for size in sizes])


def test_row_groups_are_bounded_in_bytes_and_those_of_a_deleted_object_go() -> None:
    kept = RowGroups(100)
    kept.add("a", 0, _group(30, 30), 0.0)
    kept.add("b", 0, _group(40), 1.0)
    assert kept.find("a", 0, 2.0) is not None
    kept.add("c", 0, _group(10), 3.0)  # b was used least recently
    assert [kept.find(key, 0, 4.0) is not None for key in "abc"] == [True, False, True]
    assert kept.used_bytes == 70
    kept.add("c", 0, _group(20), 5.0)
    assert kept.used_bytes == 80
    kept.forget("a")
    assert kept.used_bytes == 20
    kept.add("large", 1, _group(500), 6.0)
    assert kept.used_bytes == 500, "the newest stays, so that its reader gets on"


def test_row_groups_that_nobody_reads_any_more_go() -> None:
    kept = RowGroups(100)
    kept.add("a", 0, _group(10), 0.0)
    kept.add("b", 0, _group(20), 0.0)
    assert kept.find("a", 0, 30.0) is not None
    kept.release(IDLE_S + 1)
    assert kept.used_bytes == 10, "a was used since"
    kept.release(30.0 + IDLE_S + 1)
    assert kept.used_bytes == 0


def _segment(path: Path) -> tuple[str, bytes, int]:
    """A journal segment with batches that zstd cannot compress: its path, the places, and how many."""
    draw, data, places = random.Random(1), bytearray(), array("Q")
    for number in range(BATCHES):
        base = number * MESSAGES
        batch = broker_part(
            base_offset=base, last_offset=base + MESSAGES - 1, epoch=1, append_time_ms=1_767_225_600_000
        )
        batch += encode_batch([draw.randbytes(BYTES) for _ in range(MESSAGES)])
        places.append(len(data) << 32 | len(batch))
        data += batch
    path.write_bytes(data)
    return str(path), places.tobytes(), len(places)


@pytest.mark.anyio
async def test_row_groups_go_without_a_further_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that only read kept them: they went at a flush."""
    path, places, count = _segment(tmp_path / "segment")
    end = BATCHES * MESSAGES
    monkeypatch.setattr(work, "IDLE_S", 2.0)
    tier = work.TierWork(open_store(StoreOptions(url=str(tmp_path / "objects"))))
    key = f"t/{0:020}-{end:020}-1-0-0101.parquet"
    meta = {"cluster": "c", "topic": "/default/t", "topic_id": 1, "start": 0, "end": end}
    facts, _ = tier.flush({"key": key, "meta": meta, "segments": [[path, count]]}, places)
    tier.read(facts | {"key": key, "offset": 0, "max_bytes": 1, "epoch": 1}, b"")
    assert tier.row_groups.used_bytes > 0
    await until(lambda: not tier.row_groups.used_bytes)


def _anonymous_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


@pytest.mark.skipif(sys.platform != "linux", reason="a process shows its memory on Linux")
def test_memory_of_the_process_does_not_grow_with_what_went_through_it(tmp_path: Path) -> None:
    """Row groups of 10 MB by writers and readers at once. Arenas of eight threads kept what all of them had freed."""
    path, places, count = _segment(tmp_path / "segment")
    end = BATCHES * MESSAGES

    async def pass_through(child: TierChild, topic: int, turn: int) -> None:
        key = f"t{topic}/{0:020}-{end:020}-1-0-{turn:02x}{topic:02x}.parquet"
        meta = {"cluster": "c", "topic": f"/default/t{topic}", "topic_id": topic, "start": 0, "end": end}
        asked = {"key": key, "meta": meta, "segments": [[path, count]], "urgent": topic % 2 == 0}
        facts, _ = await child.call("flush", asked, places)
        place: dict[str, Any] = {
            "key": key,
            **{name: facts[name] for name in ("bytes", "footer_bytes", "footer_crc")},
        }
        offset = 0
        while offset < end:
            said, blob = await child.call(
                "read", place | {"offset": offset, "max_bytes": 2 << 20, "epoch": 1}
            )
            assert len(blob) > BYTES
            offset = said["end"]

    async def grown_bytes() -> int:
        child = TierChild(StoreOptions(url=str(tmp_path / "objects")))
        try:
            await child.call("list", {"folder": "t0"})
            assert child.pid is not None
            before = _anonymous_bytes(child.pid)
            for turn in range(ROUNDS):
                await asyncio.gather(*(pass_through(child, topic, turn) for topic in range(TOPICS)))
            return _anonymous_bytes(child.pid) - before
        finally:
            await child.close()

    passed = TOPICS * ROUNDS * BATCHES * MESSAGES * BYTES
    assert passed > 200 << 20
    assert asyncio.run(grown_bytes()) < DECODED_BYTES + (40 << 20), (
        "of the cache, and pieces below the bounds"
    )
