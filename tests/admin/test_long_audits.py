"""Queries of a long audit: the same answers by pages of any length, and quick ones by the time of a call."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydanube_admin.engine.audit.audit_log import drop_index
from pydanube_admin.operations import audit

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio

OPERATIONS = ("topics.create", "topics.describe", "subscriptions.seek", "schemas.register")
PEOPLE = ("ann", "bob", "ci")


@pytest.fixture
async def cluster() -> AsyncIterator[Administered]:
    async with administered() as cluster:
        yield cluster


async def filled(cluster: Administered, count: int, *, seed: int = 0) -> None:
    """As many records of several kinds; one of them, `objects.collect` by `eve` on `rare`, far back."""
    draw = random.Random(seed)
    await cluster("topics.create", topic=f"orders{seed}")
    entry = dict((await cluster("audit.query", operation="topics.create"))["items"][0])
    for name in ("seq", "prev_hash", "hash", "mac", "key_id"):
        entry.pop(name)
    log = cluster.core.audit
    for number in range(count):
        rare = number == count // 7
        log.note(
            {
                **entry,
                "call_id": f"c{number:024d}",
                "principal": "eve" if rare else draw.choice(PEOPLE),
                "operation": "objects.collect" if rare else draw.choice(OPERATIONS),
                "arguments": {"topic": "/default/rare" if rare else f"/default/t{draw.randrange(40)}"},
            }
        )
        if number % 5000 == 4999:
            await log.settled()
    await log.settled()


QUESTIONS: list[dict[str, Any]] = [
    {"principal": "eve"},
    {"topic": "rare"},
    {"operation": "objects.collect"},
    {"filter": "objects.*"},
    {"filter": "obj*", "principal": "eve", "topic": "rare"},
    {"principal": "ann", "operation": "objects.collect"},  # each is there, together they are not
    {"call_id": "c" + "0" * 24},
    {"call_id": "c" + "9" * 24},
    {"topic": "t7", "principal": "bob", "operation": "topics.describe", "limit": 1000},
    {"filter": "*.seek", "topic": "t3", "limit": 1000},
    {"limit": 1000, "since": "1h", "principal": "ci", "topic": "t1"},
    {"topic": "nowhere"},
]


async def answers(cluster: Administered) -> list[list[int]]:
    found = []
    for question in QUESTIONS:
        seqs: list[int] = []
        page: dict[str, Any] = {}
        while not page or page["next_page"]:
            more = {"page": page["next_page"]} if page else {}
            page = await cluster("audit.query", **question, **more)
            seqs += [item["seq"] for item in page["items"]]
        found.append(seqs)
    return found


async def test_questions_have_the_same_answers_however_long_a_page_looks(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(cluster, 6000)
    before = await answers(cluster)
    assert [len(each) for each in before[:7]] == [1, 1, 1, 1, 1, 0, 1]
    monkeypatch.setattr(audit, "MAX_LOOKED_AT", 512)
    assert await answers(cluster) == before


async def test_a_page_that_found_nothing_says_that_older_records_are_left(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_LOOKED_AT", 256)
    await filled(cluster, 2000)
    page = await cluster("audit.query", principal="eve")
    assert (page["items"], page["next_page"] is not None) == ([], True)
    assert "next_page looks at older ones" in page["items_reason"]


async def test_a_call_is_found_by_the_time_in_its_id_without_reading_what_is_newer(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "SKEW_MS", 0)
    made = await cluster("topics.create", topic="first")
    await filled(cluster, 6000)
    port, read = cluster.broker.port, 0
    own = type(port).read_audit

    async def counted(self: Any, *, start: int, max_messages: int) -> Any:
        nonlocal read
        read += 1
        return await own(self, start=start, max_messages=max_messages)

    monkeypatch.setattr(type(port), "read_audit", counted)
    found = (await cluster("audit.query", call_id=made["call_id"]))["items"]
    assert [each["phase"] for each in found] == ["outcome", "call"]
    assert read <= 20
    for unknown in ("nothing", "c" + "f" * 24, "c" + "z" * 24):
        assert (await cluster("audit.query", call_id=unknown))["items"] == []


async def test_the_index_of_earlier_versions_is_deleted(cluster: Administered) -> None:
    port = cluster.broker.port
    await port.write_state({f"audit/index/{block:010d}": b"x" for block in range(40)} | {"audit/other": b"y"})
    await drop_index(port)
    assert await port.list_state("audit/index/") == []
    assert await port.read_state("audit/other") is not None


async def test_records_that_are_none_stop_nothing(cluster: Administered) -> None:
    await filled(cluster, 600)
    port = cluster.broker.port
    end, _ = await port.open_audit()
    await port.append_audit(
        [
            b"{",
            b"[]",
            b'{"operation": 1}',
            b'{"operation": [], "principal": {}, "call_id": 0, "arguments": {"topic": 3}}',
        ],
        at=end,
    )
    cluster.core.audit._head = None
    await filled(cluster, 600, seed=1)
    assert len((await cluster("audit.query", principal="eve"))["items"]) == 2
