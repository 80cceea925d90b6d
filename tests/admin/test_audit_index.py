"""The index of the audit: the same answers with it and without it, by however much quicker, and after any crash."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydanube_admin.engine.audit import audit_index
from pydanube_admin.engine.audit.audit_index import BLOCK, STRETCH, AuditIndex, AuditSearch, Stretch

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio

OPERATIONS = ("topics.create", "topics.describe", "subscriptions.seek", "schemas.register")
PEOPLE = ("ann", "bob", "ci")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_index, "PACE_S", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[Administered]:
    async with administered() as cluster:
        yield cluster


async def filled(cluster: Administered, count: int, *, seed: int = 0) -> None:
    """As many records of several kinds; one of them, `objects.collect` by `eve` on `rare`, far back."""
    draw = random.Random(seed)
    await cluster("topics.create", topic=f"orders{seed}")
    entry = dict((await cluster("audit.query", operation="topics.create", hashes=True))["items"][0])
    for name in ("seq", "prev_hash", "hash", "mac", "key_id"):
        entry.pop(name)
    audit = cluster.core.audit
    for number in range(count):
        rare = number == count // 7
        audit.note(
            {
                **entry,
                "call_id": f"c{number:024d}",
                "principal": "eve" if rare else draw.choice(PEOPLE),
                "operation": "objects.collect" if rare else draw.choice(OPERATIONS),
                "arguments": {"topic": "/default/rare" if rare else f"/default/t{draw.randrange(40)}"},
            }
        )
        if number % 5000 == 4999:
            await audit.settled()
    await audit.settled()
    audit.index.wrote(1 << 60)
    await audit.index.caught_up()


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
        while not seqs or page.get("next_page"):
            more = {"page": page["next_page"]} if page.get("next_page") else {}
            page = await cluster("audit.query", **question, **more)
            assert page["items"] or not page["next_page"], "never an empty page with a next"
            seqs += [item["seq"] for item in page["items"]]
            if not seqs:
                break
        found.append(seqs)
    return found


async def test_questions_have_the_same_answers_with_and_without_the_index(cluster: Administered) -> None:
    await filled(cluster, 6000)
    index = cluster.core.audit.index
    assert index.built == 6000 // STRETCH
    before = await answers(cluster)
    index.stretches.clear()
    assert await answers(cluster) == before
    assert [len(each) for each in before[:7]] == [1, 1, 1, 1, 1, 0, 1]


async def test_what_cannot_be_there_is_not_read(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(cluster, 6000)
    port, read = cluster.broker.port, []
    own = type(port).read_audit

    async def counted(self: Any, *, start: int, max_messages: int) -> Any:
        read.append(start)
        return await own(self, start=start, max_messages=max_messages)

    monkeypatch.setattr(type(port), "read_audit", counted)
    for question in ({"principal": "eve"}, {"filter": "objects.*"}, {"call_id": "c" + "0" * 24}):
        read.clear()
        assert len((await cluster("audit.query", **question))["items"]) == 1
        assert len(read) <= 6, question  # the newest, which is not full, and the one that has it


async def test_filters_are_kept_and_those_of_another_log_are_not_used(tmp_path: Path) -> None:
    async with administered(tmp_path / "one") as cluster:
        await filled(cluster, BLOCK * STRETCH + 300)
        port = cluster.broker.port
        kept = await port.read_state("audit/index/0000000000")
        assert kept is not None
        assert len(kept.value) < 200 * 1024
        before = await answers(cluster)
        # The same key with what is said of another log, a damaged one, and one cut off: built again each time.
        body = json.loads(kept.value)
        _, [(_, last)] = await port.read_audit(start=BLOCK * STRETCH - 1, max_messages=1)
        assert body["last_hash"] == json.loads(last)["hash"]
        for value in (
            json.dumps({**body, "last_hash": "another"}).encode(),
            b'{"version": 1',
            json.dumps({**body, "filters": body["filters"][1:]}).encode(),
            json.dumps({**body, "filters": [""] * BLOCK}).encode(),
            json.dumps({**body, "filters": 7}).encode(),
        ):
            await port.write_state({"audit/index/0000000000": value})
            again = AuditIndex(port)
            again.wrote(0)
            await again.caught_up()
            assert again.built >= BLOCK
            rebuilt = await port.read_state("audit/index/0000000000")
            assert rebuilt is not None
            assert json.loads(rebuilt.value) == body
    async with administered(tmp_path / "one") as cluster:
        built = 0

        async def count(self: AuditIndex, stretch: int) -> None:
            nonlocal built
            built += 1
            await own(self, stretch)

        own = AuditIndex.build
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AuditIndex, "build", count)
            cluster.core.audit.index.wrote(0)
            await cluster.core.audit.index.caught_up()
        assert built <= 4  # the block is loaded; what came behind it is built
        assert await answers(cluster) == before


def test_a_filter_never_says_no_wrongly_and_stays_small() -> None:
    draw = random.Random(4)
    records = [
        {
            "operation": f"x{draw.randrange(1 << 40)}" * 3,
            "principal": f"p{draw.randrange(1 << 40)}\ud800",
            "call_id": f"c{number}",
            "arguments": {"topic": f"a{number}", "to": f"b{number}", "arguments": {"topic": f"c{number}"}},
        }
        for number in range(STRETCH)
    ]
    stretch = Stretch.of(records)
    assert len(stretch.bits) <= 2048
    assert stretch.operations is None
    for record in records:
        for topic in ("topic", "to"):
            asked = AuditSearch(
                operation=str(record["operation"]),
                principal=str(record["principal"]),
                topic=f"/default/{record['arguments'][topic]}",
                call_id=str(record["call_id"]),
            )
            assert stretch.may_hold(asked)
    assert stretch.may_hold(AuditSearch(matches=lambda name: False))  # too many to name: nobody knows


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
