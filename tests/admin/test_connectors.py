"""Declared connectors: what is refused, and what is shown of connectors and reports of workers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydanube_core.connectors import REPORT_COUNTS_MS, REPORTS

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
)  # fmt: skip


def report(worker: str, **facts: Any) -> bytes:
    return json.dumps(
        {"worker": worker, "connectors": [{"connector": "c", "state": "running", **facts}]}
    ).encode()


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
