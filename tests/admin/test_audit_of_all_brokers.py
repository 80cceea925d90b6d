"""Each broker has an audit of its own; a question about the audit is answered from all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydanube.wire.ops_channel import OpsChannel
from pydanube_broker.broker import Broker
from pydanube_core.ops_call import call_request

from tests.admin.test_any_broker_administers import administered, ask
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, id_of, several_brokers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]
TOPICS = [f"/default/t{n}" for n in range(6)]


@pytest.fixture
async def cluster(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[SeveralBrokers]:
    """Three brokers, each of which took calls: `topics.create` leaves two records."""
    async with several_brokers(etcd, tmp_path, administered) as cluster:
        for n, topic in enumerate(TOPICS):
            await ask(cluster.brokers[1 + n % 3], "topics.create", topic=topic)
        yield cluster


async def pages(broker: Broker, **arguments: Any) -> list[dict[str, Any]]:
    """Return the records of all pages."""
    found: list[dict[str, Any]] = []
    page: dict[str, str] = {}
    while True:
        answer = await ask(broker, "audit.query", **arguments, **page)
        assert len(answer["items"]) <= arguments["limit"]
        found += answer["items"]
        if answer["next_page"] is None:
            return found
        page = {"page": answer["next_page"]}


async def test_a_query_at_any_broker_has_the_records_of_all(cluster: SeveralBrokers) -> None:
    ids = sorted(map(id_of, cluster.brokers.values()))
    for broker in cluster.brokers.values():
        whole = await ask(broker, "audit.query", operation="topics.create")
        assert "not_seen" not in whole
        records = whole["items"]
        assert len(records) == len(TOPICS)
        assert {each["broker_id"] for each in records} == {*ids}
        assert [each["time"] for each in records] == sorted((each["time"] for each in records), reverse=True)
        for topic in TOPICS:
            about = await ask(broker, "audit.query", topic=topic, operation="topics.create")
            assert {each["arguments"]["topic"] for each in about["items"]} == {topic}
        for limit in (1, 5):
            assert await pages(broker, operation="topics.create", limit=limit) == records
    of_chain: dict[str, list[int]] = defaultdict(list)
    for each in await pages(cluster.brokers[1], limit=7, hashes=True):
        of_chain[each["broker_id"]].append(each["seq"])
    for seqs in of_chain.values():
        assert seqs == list(range(seqs[0], -1, -1)), "within a chain by sequence, from the last to the first"


async def test_a_read_over_all_brokers_is_one_record(cluster: SeveralBrokers) -> None:
    """Each broker that answered a part of it recorded a call of its own."""
    first = cluster.brokers[1]
    for operation in ("audit.verify", "audit.query"):
        await ask(first, operation)
    for operation in ("audit.query", "audit.verify"):
        found = (await ask(cluster.brokers[2], "audit.query", operation=operation, effect="read"))["items"]
        assert [each["broker_id"] for each in found] == [id_of(first)]


async def test_a_client_cannot_call_its_read_a_part_of_another(cluster: SeveralBrokers) -> None:
    """Forwarded with what only a broker may set, it had no record at either broker."""
    topic, first = TOPICS[0], cluster.brokers[1]
    if cluster.owner(topic) is first:
        first = cluster.brokers[2]
    request = call_request("messages.peek", {"topic": topic}, principal="mallory", face="cli")
    request.within.operation = "topics.list"
    channel = OpsChannel(first.admin_url)
    try:
        await channel.call(request, timeout_s=10.0)
    finally:
        await channel.aclose()
    found = (await ask(first, "audit.query", operation="messages.peek", effect="read"))["items"]
    assert [(each["principal"], each["broker_id"]) for each in found] == [
        ("mallory", id_of(cluster.owner(topic)))
    ]


async def test_chains_are_verified_each_for_itself_and_one_that_is_missing_is_named(
    cluster: SeveralBrokers,
) -> None:
    first, second, third = cluster.brokers.values()
    ids = sorted(map(id_of, cluster.brokers.values()))
    verified = await ask(second, "audit.verify")
    assert [each["broker_id"] for each in verified["chains"]] == ids
    assert verified["intact"]
    assert verified["records"] == sum(each["records"] for each in verified["chains"])
    tasks = (await ask(first, "tasks.list", filter="audit.verify"))["items"]
    assert [each["state"] for each in tasks] == ["done"], "one for all brokers"
    exported = await ask(first, "audit.export", broker_id=id_of(second), to="audit.jsonl")
    assert exported["broker_id"] == id_of(second)
    assert exported["other_brokers"] == sorted(set(ids) - {id_of(second)})
    gone = id_of(third)
    page = (await ask(first, "audit.query", operation="topics.create", limit=1))["next_page"]
    await cluster.stop(3)
    left = await ask(first, "audit.query", operation="topics.create", limit=50, page=page)
    assert gone not in {each["broker_id"] for each in left["items"]}
    verified = await ask(first, "audit.verify")
    for answer in (left, verified):
        assert [each["broker_id"] for each in answer["not_seen"]] == [gone]
    assert [each["broker_id"] for each in verified["chains"]] == [each for each in ids if each != gone]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"items": 7, "chains": 7}',
        b'{"items": [7], "chains": [{}]}',
        b'{"items": [{"seq": "x"}], "chains": [{"broker_id": "1", "intact": "maybe"}]}',
        b'{"items": [], "next_page": "nonsense", "chains": []}',
    ],
    ids=["empty", "not_text", "list", "deep", "numbers", "items", "fields", "page"],
)
async def test_a_broker_that_answers_nonsense_is_named_and_the_others_answer(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch, nonsense: bytes
) -> None:
    first, second, third = cluster.brokers.values()
    carry = OpsChannel.carry

    async def carried(self: OpsChannel, path: str, request: bytes, **more: Any) -> bytes:
        answer = await carry(self, path, request, **more)
        return nonsense if self.url == third.admin_url else answer

    monkeypatch.setattr(OpsChannel, "carry", carried)
    for operation in ("audit.query", "audit.verify", "brokers.list"):
        answer = await ask(first, operation)
        assert [each["broker_id"] for each in answer["not_seen"]] == [id_of(third)]
        if operation == "audit.query":
            seen = {each["broker_id"] for each in answer["items"]}
            assert seen == {id_of(first), id_of(second)}


async def test_a_broker_answers_for_its_own_chain_alone(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that calls its chain by another's name hides no fault of that one."""
    first, _, third = cluster.brokers.values()
    carry = OpsChannel.carry

    async def carried(self: OpsChannel, path: str, request: bytes, **more: Any) -> bytes:
        answer = await carry(self, path, request, **more)
        own = id_of(third).encode()
        return answer.replace(own, id_of(first).encode()) if self.url == third.admin_url else answer

    ids = sorted(map(id_of, cluster.brokers.values()))
    monkeypatch.setattr(OpsChannel, "carry", carried)
    verified = await ask(first, "audit.verify")
    assert [each["broker_id"] for each in verified["chains"]] == ids
