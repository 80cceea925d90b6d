"""What telemetry costs in the object store, and in which order it lies there: no JVM in here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydanube_core.telemetry import table_named
from pydanube_core.telemetry.files import HOUR_MS
from pydanube_core.telemetry.tables import rounded_age_ms
from pydanube_storage.objects.local import LocalStore
from pydanube_storage.telemetry.reading import read_samples
from pydanube_storage.telemetry.writing import arrow_schema, encode

from tests.support import telemetry_generator as generator
from tests.support.telemetry_generator import Behaviour, Plan, generate

SUBSCRIPTIONS = 100
PLAN = Plan(start_ms=472_222 * HOUR_MS, hours=1, subscriptions=SUBSCRIPTIONS, brokers=1, hot_topics=0)


@pytest.mark.parametrize("behaviour", [Behaviour.KEEPS_UP, Behaviour.FALLS_BEHIND])
def test_a_day_of_a_thousand_busy_subscriptions_is_sixty_megabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour
) -> None:
    monkeypatch.setattr(generator, "behaviour_of", lambda number: behaviour)
    generate(LocalStore(tmp_path), PLAN)
    sizes: Counter[str] = Counter()
    for path in tmp_path.rglob("*.parquet"):
        sizes[path.parts[-3]] += path.stat().st_size
    assert set(sizes) == {"cursors", "heads", "consumers", "topics", "brokers"}
    broker = sizes.pop("brokers")  # of one broker, however many subscriptions it has
    assert 24 * (sum(sizes.values()) * 1000 / SUBSCRIPTIONS + broker) < 60e6, sizes


def test_rows_of_a_subject_lie_together_newest_first_and_subjects_by_level(tmp_path: Path) -> None:
    table = table_named("cursors")

    def row(topic_id: int, subscription_id: int, taken_at: int, head: int) -> dict[str, Any]:
        known = {"topic_id": topic_id, "subscription_id": subscription_id, "next_offset": head}
        filler = {
            c.name: 0 if pa.types.is_integer(arrow_schema(table).field(c.name).type) else "x"
            for c in table.columns
        }
        return {**filler, **known, "taken_at": taken_at}

    rows = [row(t, s, at, 1000 // t + at) for at in (2, 1, 3) for t in (1, 2) for s in (5, 4)]
    data = encode(table, pa.Table.from_pylist(rows, schema=arrow_schema(table)))
    store = LocalStore(tmp_path)
    store.put("f", data)
    found = read_samples(store, "f", table)
    assert found.schema.names == list(table.names)
    columns = [
        found.column(name).cast(pa.int64()).to_pylist()
        for name in ("topic_id", "subscription_id", "taken_at")
    ]
    assert list(zip(*columns, strict=True)) == [
        (t, s, at) for t in (2, 1) for s in (4, 5) for at in (3, 2, 1)
    ], "topic 2 has the lower offsets"
    assert pq.ParquetFile(pa.BufferReader(data)).schema_arrow.names == list(table.names)


def test_ages_are_told_to_a_tenth_of_a_second_and_old_ones_to_a_second() -> None:
    assert [rounded_age_ms(age) for age in (0, 99, 100, 99_999, 100_000, 100_999, 101_000)] == [
        *(0, 0, 100, 99_900),
        *(100_000, 100_000, 101_000),
    ]
