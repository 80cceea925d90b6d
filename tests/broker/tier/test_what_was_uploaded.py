"""An object counts only if it is in the store as it was written: the journal is trimmed on the strength of that."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
from pydanube_core.batch import broker_part, encode_batch
from pydanube_core.errors import CorruptObject

pytest.importorskip("pyarrow")

from pydanube_broker.tier.work import TierWork
from pydanube_storage.objects import LocalStore

KEY = f"f/{0:020}-{50:020}-1-0-0a.parquet"


class Careless(LocalStore):
    """A store that keeps another byte than it was given, at a place of its choice. It says nothing of it."""

    harmed_at: int | None = None

    def put(self, key: str, source: Path | bytes) -> None:
        content = bytearray(source.read_bytes() if isinstance(source, Path) else source)
        if self.harmed_at is not None:
            content[self.harmed_at] ^= 1
        super().put(key, bytes(content))


def journal(path: Path) -> tuple[str, bytes, int]:
    """A segment with one batch of 50 messages: its path, the places, and how many."""
    payloads = [bytes([number]) * 200 for number in range(50)]
    batch = broker_part(base_offset=0, last_offset=49, epoch=1, append_time_ms=1_767_225_600_000)
    batch += encode_batch(payloads)
    path.write_bytes(batch)
    return str(path), array("Q", [len(batch)]).tobytes(), 1


def flush(work: TierWork, segment: tuple[str, bytes, int]) -> dict[str, Any]:
    path, places, count = segment
    meta = {"cluster": "c", "topic": "/default/t", "topic_id": 7, "start": 0, "end": 50}
    return work.flush({"key": KEY, "meta": meta, "segments": [[path, count]]}, places)[0]


def test_an_object_with_another_byte_than_was_written_is_refused_wherever_the_byte_is(tmp_path: Path) -> None:
    segment = journal(tmp_path / "segment")
    store = Careless(tmp_path / "objects")
    work = TierWork(store)
    facts = flush(work, segment)
    assert facts["messages"] == 50
    store.delete(KEY)
    for place in (4, facts["bytes"] // 4, facts["bytes"] - facts["footer_bytes"] - 20, facts["bytes"] - 20):
        store.harmed_at = place  # what lies before the footer shows in the hash alone
        with pytest.raises(CorruptObject):
            flush(work, segment)
        store.delete(KEY)
    store.harmed_at = None
    assert flush(work, segment) == facts


def test_a_merged_object_with_another_byte_than_was_written_is_refused(tmp_path: Path) -> None:
    store = Careless(tmp_path / "objects")
    work = TierWork(store)
    facts = flush(work, journal(tmp_path / "segment"))
    source = {"key": KEY, **{name: facts[name] for name in ("bytes", "footer_bytes", "footer_crc")}}
    asked = {
        "key": KEY.replace("-1-0-", "-1-1-"),
        "meta": {"cluster": "c", "topic": "/default/t", "topic_id": 7, "start": 0, "end": 50},
        "sources": [source],
    }
    store.harmed_at = facts["bytes"] // 4
    with pytest.raises(CorruptObject):
        work.merge(asked, b"")
