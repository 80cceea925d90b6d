"""Batches are written, tried again, cut, and refused records become dead letters or stop the connector."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube_connect import Place, Record, RetryLater
from pydanube_connect.testing import deliver
from pydanube_core.errors import PayloadInvalid, Unauthenticated, Unavailable

from tests.connect.own import Table, TableSink

pytestmark = pytest.mark.anyio
FILE = {"name": "a", "connector": "tests.connect.own:TableSink", "topic": "t"}
PLACE = Place("/default/t", None)


@pytest.fixture(autouse=True)
def table() -> Table:
    TableSink.table = Table()
    return TableSink.table


def terms(**delivery: Any) -> dict[str, Any]:
    return FILE | {"delivery": {"backoff_s": 0.001, **delivery}}


async def test_failures_are_tried_again_until_the_batch_is_written_once(table: Table) -> None:
    table.failures = [RetryLater(reason="busy"), ConnectionError("gone"), RetryLater(0.0)]
    outcome = await deliver(terms(), [1, 2, 3])
    assert table.rows == [1, 2, 3]
    assert outcome.statistics.retries == 3
    assert table.opened == 4, "each failure opens the sink anew"


async def test_the_budget_ends(table: Table) -> None:
    table.failures = [RetryLater(reason="busy")] * 9
    with pytest.raises(Unavailable, match="failed 4 times, the last time because: busy"):
        await deliver(terms(retries=3), [1])
    assert table.writes == 4


async def test_what_no_retry_mends_stops_at_once(table: Table) -> None:
    table.failures = [Unauthenticated("the password is wrong")] * 2
    with pytest.raises(Unauthenticated):
        await deliver(terms(), [1])
    assert table.writes == 1


async def test_a_lost_answer_is_not_written_twice(table: Table) -> None:
    table.lost_answers = [ConnectionError("cut after the commit")]
    outcome = await deliver(terms(), [1, 2, 3])
    assert table.rows == [1, 2, 3]
    assert outcome.statistics.repeated == 3


async def test_what_the_target_has_is_not_written_again(table: Table) -> None:
    table.positions[PLACE] = 2
    await deliver(terms(), [0, 1, 2, 3])
    assert table.rows == [2, 3]
    assert table.positions[PLACE] == 4


async def test_a_writer_that_was_overtaken_reads_the_position_again(table: Table) -> None:
    class Rival(TableSink):
        async def write(self, batch: Any) -> None:
            if table.positions.get(PLACE) is None:  # another process writes the first two meanwhile
                table.rows += [0, 1]
                table.positions[PLACE] = 2
            await super().write(batch)

    import tests.connect.own as own

    own.Rival = Rival  # type: ignore[attr-defined]
    await deliver(terms() | {"connector": "tests.connect.own:Rival"}, [0, 1, 2, 3])
    assert table.rows == [0, 1, 2, 3]


async def test_refused_records_are_dead_letters_and_the_others_written(table: Table) -> None:
    outcome = await deliver(terms(on_error="dead_letter"), [1, "bad", 2, "bad"])
    assert table.rows == [1, 2]
    assert [each.reason for each in outcome.refused] == ["it is bad"] * 2
    assert table.positions[PLACE] == 4, "the position passes refused records"
    assert (outcome.statistics.records, outcome.statistics.batches) == (2, 1)


async def test_a_record_that_the_target_does_not_name_is_found_by_halving(table: Table) -> None:
    values: list[Any] = list(range(50))
    values[13] = values[37] = "unknown"
    outcome = await deliver(terms(on_error="dead_letter"), values)
    assert table.rows == [n for n in range(50) if n not in (13, 37)], "in order, each once"
    assert [each.record.offset for each in outcome.refused] == [13, 37]
    assert table.positions[PLACE] == 50


async def test_a_refused_record_stops_the_connector_by_default(table: Table) -> None:
    with pytest.raises(PayloadInvalid, match=r"offset 1: it is bad.*dead_letter"):
        await deliver(terms(), [1, "bad"])
    assert table.rows == []


async def test_delayed_messages_are_refused_by_an_exactly_once_sink(table: Table) -> None:
    late = Record(1, attributes={"danube-delay-ms": "100"})
    outcome = await deliver(terms(on_error="dead_letter"), [late, 2])
    assert table.rows == [2]
    assert "delay_ms" in outcome.refused[0].reason


async def test_shapes_are_applied_in_their_order() -> None:
    shape = {
        "mask": ["card"], "key": "id", "drop": ["note"], "rename": {"card": "paid_by"},
        "function": "tests.connect.test_writing:twice",
    }  # fmt: skip
    outcome = await deliver(
        terms(on_error="dead_letter") | {"shape": shape},
        [{"id": 7, "card": "4111", "note": "x"}, {"no": "id"}, "text"],
    )
    assert [record.value for record in outcome.written] == [{"id": 7, "paid_by": "***"}] * 2
    assert outcome.written[0].key == "7"
    assert [each.reason for each in outcome.refused] == [
        "the record has no field 'id'",
        "[shape] works on objects, and the value is str",
    ]


def twice(records: list[Record]) -> list[Record]:
    return [record for record in records for _ in range(2)]
