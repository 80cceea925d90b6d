"""Declared connectors: what is refused, and what is shown of connectors and reports of workers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydanube_admin.operations.connectors import MOST_TEXT_CHARS
from pydanube_core.connectors import LOGS, REPORT_COUNTS_MS, REPORTS

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio
SINK = 'connector = "postgres-sink"\ntopic = "orders"\n[settings]\ndsn = "{dsn}"\ntable = "t"\n'


@pytest.fixture
async def cluster() -> AsyncIterator[Administered]:
    async with administered() as found:
        yield found


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("connector = ", "no TOML"),
        ('topic = "orders"', "names no connector"),
        ('connector = "x"\ntopic = "a b"', "a b"),
        (SINK.format(dsn="postgresql://app:hidden@db/shop"), "settings.dsn holds a secret in clear"),
        ('connector = "x"\n[settings]\npassword = "hidden"', "settings.password holds a secret in clear"),
        ('connector = "x"\n[settings.headers]\nAuthorization = "Bearer hidden-as-it-is"', "secret in clear"),
        ('connector = "x"\n[settings]\nurls = ["https://a:hidden@b"]', "settings.urls holds a secret"),
    ],
)
async def test_a_definition_that_must_not_be_stored_is_a_sentence(
    cluster: Administered, definition: str, words: str
) -> None:
    error = await cluster.refused("connectors.create", connector="c", definition=definition)
    assert error.code in ("INVALID_ARGUMENT", "INVALID_NAME")
    assert words in error.message
    assert "hidden" not in str(error.to_dict())
    assert (await cluster("connectors.list"))["items"] == []


async def test_references_are_stored_as_they_are(cluster: Administered) -> None:
    text = SINK.format(dsn="postgresql://app:${env:PG_PASSWORD}@db:5432/shop")
    await cluster("connectors.create", connector="c", definition=text)
    assert (await cluster("connectors.describe", connector="c"))["definition"] == text


async def test_names_are_known_or_a_sentence(cluster: Administered) -> None:
    await cluster("connectors.create", connector="c", definition=SINK)
    again = await cluster.refused("connectors.create", connector="c", definition=SINK)
    assert (again.code, "connectors set c" in again.message) == ("ALREADY_EXISTS", True)
    for operation in ("describe", "errors", "offsets", "pause", "resume", "restart", "delete"):
        error = await cluster.refused(f"connectors.{operation}", connector="other")
        assert error.code == "CONNECTOR_NOT_FOUND"


async def test_only_what_changes_something_starts_it_again(cluster: Administered) -> None:
    generation = (await cluster("connectors.create", connector="c", definition=SINK))["generation"]
    assert (await cluster("connectors.resume", connector="c"))["generation"] == generation
    assert (await cluster("connectors.restart", connector="c"))["generation"] == generation + 1
    assert (await cluster("connectors.pause", connector="c"))["generation"] == generation + 2
    assert (await cluster("connectors.pause", connector="c"))["generation"] == generation + 2


#: any producer may write them
NO_REPORTS = (
    b"no report", b"[]", b'{"worker": "x", "connectors": {"connector": "c"}}', b'{"worker": "x", "connectors": [1, {}]}',
    b'{"worker": "x", "connectors": [{"connector": "c", "state": "running", "rate": "fast", "since_ms": 1e300}]}',
    b"[" * 200_000, b'{"worker": "x", "connectors": [{"connector": "c", "state": "running", "rate": NaN}]}',
    b'{"worker": "x", "connectors": [{"connector": "c", "state": "running", "lag_messages": 1%s}]}' % (b"0" * 4000),
)  # fmt: skip


def report(worker: str, **facts: Any) -> bytes:
    return json.dumps(
        {"worker": worker, "connectors": [{"connector": "c", "state": "running", **facts}]}
    ).encode()


async def test_a_forged_report_is_neither_shown_whole_nor_in_the_way(cluster: Administered) -> None:
    """`[` 200 000 times was INTERNAL for everybody: in lists, in diagnosis, in the log of each connector."""
    await cluster("connectors.create", connector="c", definition=SINK)
    for topic in (REPORTS, LOGS):
        await cluster("topics.create", topic=topic)
        await cluster.publish(topic, report("a", rate=1.5, last_error="e" * 1_000_000), *NO_REPORTS)
    (item,) = (await cluster("connectors.list"))["items"]
    assert (item["worker"], len(item["last_error"])) == ("a", MOST_TEXT_CHARS)
    assert (await cluster("connectors.logs", connector="c"))["items"] == []
    await cluster("diagnose.cluster")


async def test_the_newest_report_counts_and_none_that_is_old(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster("connectors.create", connector="c", definition=SINK)
    await cluster("topics.create", topic=REPORTS)
    await cluster.publish(
        REPORTS,
        report("a", rate=1.5),
        report("b", rate=2.5, kind="sink"),
        *NO_REPORTS,
    )
    (item,) = (await cluster("connectors.list"))["items"]
    assert (item["state"], item["worker"], item["rate"], item["type"]) == (
        "running",
        "b",
        2.5,
        "postgres-sink",
    )
    await cluster.publish(REPORTS, json.dumps({"worker": "b", "connectors": []}).encode())
    assert (await cluster("connectors.list"))["items"][0]["worker"] == "a", "b reports that it runs nothing"
    await cluster("connectors.pause", connector="c")
    assert (await cluster("connectors.list"))["items"][0]["state"] == "paused"
    monkeypatch.setattr("pydanube_admin.operations.connectors.REPORT_COUNTS_MS", -REPORT_COUNTS_MS)
    await cluster("connectors.resume", connector="c")
    (item,) = (await cluster("connectors.list"))["items"]
    assert (item["state"], item["worker"]) == ("stopped", None)
    assert "danube connect worker --group default" in item["worker_reason"]


def lines(connector: str, *said: tuple[str, str]) -> bytes:
    each = [{"time_ms": n, "level": level, "text": text} for n, (level, text) in enumerate(said)]
    return json.dumps({"connector": connector, "worker": "w", "lines": each}).encode()


async def test_the_last_log_lines_of_a_connector_are_shown(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster("connectors.create", connector="c", definition=SINK)
    assert (await cluster("connectors.logs", connector="c"))["items"] == []
    await cluster("topics.create", topic=LOGS)
    await cluster.publish(LOGS, *(lines("other", ("info", "not mine")) for _ in range(120)))
    await cluster.publish(
        LOGS, lines("c", ("info", "first"), ("error", "second")), b"no lines", lines("other")
    )
    await cluster.publish(
        LOGS, lines("c", ("warning", "third"), ("debug", "hidden")), b'{"connector":"c","lines":[1]}'
    )

    async def shown(**more: Any) -> list[str]:
        found = await cluster("connectors.logs", connector="c", **more)
        return [item["untrusted"]["text"] for item in found["items"]]

    assert await shown() == ["first", "second", "third"]
    assert await shown(level="warning") == ["second", "third"]
    assert await shown(lines=1) == ["third"]
    monkeypatch.setattr("pydanube_admin.operations.connector_offsets.LOGS_KEPT_S", -60)
    assert await shown() == [], "they are kept for an hour"


async def test_offsets_of_a_sink_are_set_by_a_plan_while_it_rests(cluster: Administered) -> None:
    await cluster("connectors.create", connector="c", definition=SINK)
    await cluster("topics.create", topic="orders")
    await cluster.publish("orders", *(b"%d" % n for n in range(10)))
    running = await cluster.refused("connectors.reset_offsets", connector="c", plan_only=True)
    assert (running.code, "Pause it" in running.message) == ("CONFLICT", True)
    await cluster("connectors.pause", connector="c")
    nothing = await cluster.refused("connectors.reset_offsets", connector="c", plan_only=True)
    assert "has not run yet" in nothing.message
    await cluster("subscriptions.create", topic="orders", subscription="connect-c", start="latest")
    wrong = {"connector": "c", "place": "/default/other", "position": "1"}
    assert (
        "It has /default/orders"
        in (await cluster.refused("connectors.set_offsets", **wrong, plan_only=True)).message
    )
    plan = await cluster("connectors.reset_offsets", connector="c", plan_only=True)
    assert plan["diff"] == [{"path": "connectors/c/offsets//default/orders", "before": "10", "after": 0}]
    assert "10 messages are written again" in str(plan)
    done = await cluster("connectors.reset_offsets", connector="c", plan_token=plan["plan_token"])
    assert done["items"] == [{"place": "/default/orders", "position": "0", "lag_messages": 10}]
    assert (await cluster("connectors.describe", connector="c"))["epoch"] == 1
    forward = {"connector": "c", "place": "/default/orders", "position": "4"}
    plan = await cluster("connectors.set_offsets", **forward, plan_only=True)
    assert plan["blast_radius"]["messages"] == 4, "they are passed over"
    await cluster("connectors.set_offsets", **forward, plan_token=plan["plan_token"])
    assert (await cluster("connectors.offsets", connector="c"))["items"][0]["position"] == "4"
    plan = await cluster("connectors.delete", connector="c", plan_only=True)
    await cluster("connectors.delete", connector="c", plan_token=plan["plan_token"])
    await cluster("connectors.create", connector="c", definition=SINK)
    assert (await cluster("connectors.describe", connector="c"))["epoch"] == 2, (
        "its target still has the positions"
    )


async def test_the_health_check_finds_what_is_wrong_with_connectors(cluster: Administered) -> None:
    await cluster("connectors.create", connector="c", definition=SINK)
    found = await cluster("diagnose.cluster", fail_on="critical")
    (finding,) = [each for each in found["findings"] if each["rule"].startswith("connector_")]
    assert (finding["rule"], finding["severity"], found["verdict"]) == (
        "connector_worker_gone",
        "critical",
        "failing",
    )
    assert found["passed"] is False
    assert "consumers.list" in [each["operation"] for each in finding["next"]]
    await cluster("topics.create", topic=REPORTS)
    await cluster.publish(REPORTS, report("w", refused_per_min=4, refused=9))
    found = await cluster("diagnose.cluster")
    assert found["counts"]["connector_refuses_records"] == 1
