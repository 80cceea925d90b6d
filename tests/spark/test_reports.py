"""Reports over made-up telemetry whose truth is known: every behaviour has its status; bad input has a clear answer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pydanube_cli.report import print_lag
from pydanube_core.errors import CorruptObject, InvalidArgument, StoreUnavailable
from pydanube_core.telemetry import table_named
from pydanube_core.telemetry.files import HOUR_MS
from pydanube_core.units import format_time, parse_time_ms
from pydanube_spark.reports.balance.report import run_balance
from pydanube_spark.reports.balance.work import BalanceWork
from pydanube_spark.reports.lag.report import run_lag
from pydanube_spark.reports.run import ReportRequest, Span
from pydanube_storage.objects import StoreOptions
from pydanube_storage.objects.local import LocalStore
from pydanube_storage.telemetry.reading import read_samples
from pydanube_storage.telemetry.writing import encode

from tests.support.duckdb import duckdb_rows
from tests.support.telemetry_generator import Behaviour, Plan, behaviour_of, generate

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]

PLAN = Plan(start_ms=472_222 * HOUR_MS, hours=2, subscriptions=12)
#: made at the end of the second hour; a consumer that died, or met poison, did so an hour ago
TRUTH = {
    Behaviour.KEEPS_UP: {"CAUGHT_UP"},
    Behaviour.IDLE: {"CAUGHT_UP"},
    Behaviour.FALLS_BEHIND: {"FALLING_BEHIND"},  # for ever, however far behind it is
    Behaviour.DIES: {"STUCK"},
    Behaviour.POISONED: {"STUCK"},
    Behaviour.CATCHES_UP: {"CATCHING_UP", "CAUGHT_UP"},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made-up")
    generate(LocalStore(folder), PLAN)
    return folder


def request(store: Path, **more: Any) -> ReportRequest:
    said = {
        "since": format_time(PLAN.start_ms),
        "until": format_time(PLAN.start_ms + PLAN.hours * HOUR_MS),
        **more,
    }
    return ReportRequest(store=StoreOptions(url=str(store)), **said)


def test_each_behaviour_has_its_status_and_the_files_say_the_same(
    spark: Any, store: Path, tmp_path: Path
) -> None:
    steps: list[float] = []
    found = run_lag(request(store, out=tmp_path, master="local[2]"), lambda doing, share: steps.append(share))
    rows = {row["topic"]: row for row in found["rows"]}
    for number in range(PLAN.subscriptions):
        row = rows[f"/default/topic-{number}"]
        assert row["status"] in TRUTH[behaviour_of(number)], (behaviour_of(number), row)
        assert (row["type"], row["hour"]) == ("shared", None)
        assert row["lag_bytes"] == 400 * row["lag_messages"]
    assert steps == sorted(steps)
    assert steps[-1] == 1.0
    table = pq.read_table(tmp_path / "lag.parquet").to_pylist()
    assert len(table) == PLAN.subscriptions * (PLAN.hours + 1)
    written = json.loads((tmp_path / "lag.json").read_text())
    assert written["summary"] == json.loads(json.dumps(found["summary"]))
    assert (tmp_path / "lag.html").stat().st_size > 5000
    assert (tmp_path / "lag.png").read_bytes()[:4] == b"\x89PNG"
    assert figures_of(found["rows"]) == figures_by_duckdb(store)


FIGURES = ("lag_messages", "next_offset", "next_unacked", "in_flight", "consumers")


def figures_of(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """What can be counted in a report, by topic."""
    return {row["topic"]: [row[name] for name in FIGURES] for row in rows}


def figures_by_duckdb(store: Path) -> dict[str, list[int]]:
    """The same by SQL over the files: no code of ours is in between."""
    rows = duckdb_rows(
        f"""
        select topic, arg_max(greatest(0, unread_offsets - acked_above), taken_at) as lag,
               arg_max(next_offset, taken_at) as head, arg_max(next_offset - unread_offsets, taken_at) as cursor,
               arg_max(in_flight, taken_at) as in_flight, arg_max(members, taken_at) as members
        from read_parquet('{store}/*/telemetry/cursors/*/*.parquet') group by topic
        """
    )
    return {
        row["topic"]: [int(row[name]) for name in ("lag", "head", "cursor", "in_flight", "members")]
        for row in rows
    }


def test_spark_and_this_process_make_the_same_rows(spark: Any, store: Path) -> None:
    for run in (run_lag, run_balance):
        here, there = run(request(store)), run(request(store, master="local[2]"))
        assert (here["engine"], there["engine"]) == ("python", "spark")
        for name in ("rows", "summary", "as_of", "cluster"):
            assert here[name] == there[name], name


def test_a_balance_of_some_topics_has_those_only(store: Path) -> None:
    some, everything = (run_balance(request(store, topic=topic))["rows"] for topic in ("topic-1*", None))
    assert {row["topics"] for row in some} == {3}  # 1, 10 and 11
    assert {row["topics"] for row in everything} == {PLAN.subscriptions}


def test_a_stretch_also_has_the_two_samples_of_brokers_before_it(store: Path) -> None:
    span = Span(since_ms=PLAN.start_ms, until_ms=PLAN.start_ms + PLAN.hours * HOUR_MS)
    work = BalanceWork.plan(StoreOptions(url=str(store)), None, span)
    found = [
        each for batch in work.read(work.files) for each in batch.to_pylist() if each["kind"] == "brokers"
    ]
    before_ms = [each["bucket"] - row["taken_at"] for each in found for row in json.loads(each["rows"])]
    assert max(before_ms) == 2 * work.interval_ms


def test_a_report_is_compared_with_the_time_before(spark: Any, store: Path) -> None:
    middle = format_time(PLAN.start_ms + HOUR_MS)
    found = run_lag(request(store, since=middle, compare="previous"))["previous"]
    assert (found["since"], found["until"]) == (format_time(PLAN.start_ms), middle)
    assert found["summary"]["statuses"]["CAUGHT_UP"] >= 7
    worse = {each["topic"]: (each["before"], each["now"]) for each in found["changed"] if each["worse"]}
    assert worse == {  # both broke at that moment
        f"/default/topic-{number}": ("CAUGHT_UP", "STUCK")
        for number in range(PLAN.subscriptions)
        if behaviour_of(number) in (Behaviour.DIES, Behaviour.POISONED)
    }
    nothing = run_balance(request(store, compare="previous"))["previous"]
    assert "no telemetry of that time" in nothing["reason"]
    with pytest.raises(InvalidArgument, match="there is only previous"):
        request(store, compare="yesterday")


def test_pictures_begin_where_telemetry_does(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_ms = PLAN.start_ms + HOUR_MS  # the second hour, asked for as a day
    plan = replace(PLAN, start_ms=begin_ms, hours=1, partitioned=3)
    generate(LocalStore(tmp_path / "store"), plan)
    asked = request(tmp_path / "store", since="24h", out=tmp_path)
    found = run_lag(asked)
    assert abs(parse_time_ms(found["known_from"], field="known_from") - begin_ms) <= plan.interval_ms
    assert found["since"] == format_time(begin_ms - 23 * HOUR_MS)
    whole = [row for row in pq.read_table(tmp_path / "lag.parquet").to_pylist() if row["hour_ms"] is None]
    for row in whole:
        stretches = [stretch for stretch, *_ in json.loads(row["course"])]
        assert stretches[0] <= 6, "an hour in 48: a window of five minutes is known after three samples"
        assert stretches[-1] == 47
    text = (tmp_path / "lag.html").read_text()
    assert f"telemetry begins {found['known_from'][:10]}" in text
    parts = [row for row in whole if row["partition"] is not None]
    assert len({row["topic"] for row in parts}) == 1, "the name of the partitioned topic, as brokers say it"
    assert {row["log"] for row in parts} == {f"{row['topic']}-part-{row['partition']}" for row in parts}
    assert all(row["log"] == row["topic"] for row in whole if row["partition"] is None)
    groups = len(whole) - 2  # three partitions are one subscription
    assert f"<b>{groups}</b><span>subscriptions" in text
    balance = run_balance(asked)
    assert len(balance["rows"]) == 4, "an hour in quarters, not one row of a day"
    move = balance["summary"]["moves"][0]
    page = (tmp_path / "balance.html").read_text()
    assert f"danube topics move {move['topic']} --to-broker {move['target']}" in page
    print_lag(found)
    said = capsys.readouterr().out
    assert re.search(r"FALLING_BEHIND .* \+\d+\.\d/s ", said), said
    assert re.search(r"telemetry begins .*newest sample [\d,.]+ days old", said), said
    later = run_lag(request(store, since=format_time(begin_ms)))
    assert later["known_from"] == later["since"], "telemetry is older"
    for file in (tmp_path / "store").glob(
        "*/telemetry/brokers/*/*.parquet"
    ):  # as if its hour began before it
        first, rest = file.name.split("-", 1)
        file.rename(file.with_name(f"{int(first) - HOUR_MS // 2}-{rest}"))
    since = format_time(begin_ms - HOUR_MS // 4)
    young = run_lag(request(tmp_path / "store", since=since))
    assert abs(parse_time_ms(young["known_from"], field="known_from") - begin_ms) <= plan.interval_ms


@pytest.mark.long
def test_balance_finds_the_broker_with_the_hot_topics(spark: Any, store: Path, tmp_path: Path) -> None:
    found = run_balance(request(store, out=tmp_path))
    summary = found["summary"]
    assert summary["brokers"] == PLAN.brokers
    assert len(found["rows"]) == 4 * PLAN.hours  # three samples of load, of five minutes each, for a row
    assert summary["hot_topics"], summary
    assert summary["hot_keys"] is None
    assert summary["hot_keys_reason"] == "keys_are_not_sampled"
    assert (tmp_path / "balance.html").is_file()
    with pytest.raises(InvalidArgument, match="no topic 'topik-\\*' was sampled"):
        run_balance(request(store, topic="topik-*"))


@pytest.mark.parametrize(
    ("asked", "field", "said"),
    [
        ({"topic": "topik-*"}, "topic", "no subscription of 'topik-\\*' was sampled"),
        (
            {"since": "2020-01-01T00:00:00Z", "until": "2020-01-02T00:00:00Z"},
            "since",
            "it has telemetry of 2023",
        ),
        ({"since": "1h", "until": "someday"}, "until", ""),
        ({"cluster": "elsewhere"}, "cluster", "has no cluster 'elsewhere', it has made-up"),
    ],
)
def test_what_cannot_be_reported_says_why(
    spark: Any, store: Path, asked: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        run_lag(request(store, **asked))
    assert caught.value.details["field"] == field


def test_no_telemetry_and_no_store_are_told_apart(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "objects" / "c" / "topics").mkdir(parents=True)
    with pytest.raises(InvalidArgument, match="written no telemetry yet"):
        run_lag(request(tmp_path / "objects"))
    with pytest.raises(StoreUnavailable, match="there is no object store at"):
        run_balance(request(tmp_path / "nowhere"))


def test_a_damaged_file_is_named_and_what_was_deleted_is_no_gap(spark: Any, tmp_path: Path) -> None:
    plan = Plan(start_ms=PLAN.start_ms, hours=4, subscriptions=3, brokers=1)
    generate(LocalStore(tmp_path), plan)
    first, _, *after = sorted(tmp_path.glob("*/telemetry/cursors/*/*.parquet"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 0xFF
    first.write_bytes(data)
    table = table_named("cursors")
    for path in after:  # the subscription of topic-2 was deleted at the end of the second hour
        samples = read_samples(LocalStore(tmp_path), str(path.relative_to(tmp_path)), table)
        path.write_bytes(encode(table, samples.filter(pc.not_equal(samples["topic"], "/default/topic-2"))))
    for path in tmp_path.glob("*/telemetry/brokers/*/*.parquet"):
        path.write_bytes(b"")  # is not what this report is about
    whole = request(tmp_path, until=format_time(plan.start_ms + plan.hours * HOUR_MS))
    found = run_lag(whole)
    (damaged,) = found["summary"]["damaged_files"]
    assert first.name in damaged
    assert [row["topic"] for row in found["rows"] if row["gone"] is not None] == ["/default/topic-2"]
    assert {row["topic"] for row in found["rows"]} == {f"/default/topic-{n}" for n in range(3)}
    unknown = [row["minutes"]["UNKNOWN"] for row in found["rows"]]
    assert unknown == pytest.approx([60.0] * 3, abs=0.2), (
        "the hour of the damaged file, and no minute besides"
    )
    assert (found["summary"]["subscriptions"], found["summary"]["gone"]) == (2, 1)
    for path in tmp_path.glob("*/telemetry/cursors/*/*.parquet"):
        path.write_bytes(path.read_bytes()[:-30])  # half written, were that possible
    with pytest.raises(CorruptObject, match="no file of that time can be read"):
        run_lag(whole)


def test_a_file_that_retention_deletes_while_the_report_runs_is_named(spark: Any, tmp_path: Path) -> None:
    plan = Plan(start_ms=PLAN.start_ms, hours=2, subscriptions=3, brokers=1)
    generate(LocalStore(tmp_path), plan)
    first = min(tmp_path.glob("*/telemetry/cursors/*/*.parquet"))
    seen: list[str] = []

    def delete(doing: str, share: float) -> None:
        seen.append(doing)
        if doing == "reading telemetry":  # what there is to read has been listed
            first.unlink()

    found = run_lag(request(tmp_path, master="local[2]"), delete)
    assert "reading telemetry" in seen
    (named,) = found["summary"]["damaged_files"]
    assert first.name in named
    assert {row["topic"] for row in found["rows"]} == {f"/default/topic-{n}" for n in range(3)}
