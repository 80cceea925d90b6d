"""Operations at any of three brokers: about a topic by its owner, lists from all, and who did not answer is named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from pydanube import connect
from pydanube_admin import cluster_wide_port
from pydanube_admin.compat.methods import compat_methods
from pydanube_admin.core import AdminCore
from pydanube_admin.peers import Peers
from pydanube_admin.remote import OpsClient
from pydanube_broker.broker import Broker
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.rpc.caller import call_metadata
from pydanube_broker.settings.sections import Settings
from pydanube_core.diagnosis.lag_status import LagStatus
from pydanube_core.errors import ClusterError, Unavailable
from pydanube_core.facts import BrokerAddress, TopicFacts
from pydanube_core.generated import danube_admin_pb2 as pb
from pydanube_core.names import TopicName
from pydanube_core.units import counted

from tests.admin.test_danube_admin_grpc import Tool
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, id_of, several_brokers
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
TOPICS = [f"/default/t{n}" for n in range(9)]


@asynccontextmanager
async def administered(settings: Settings) -> AsyncIterator[Broker]:
    core = AdminCore()
    methods = compat_methods(core, call_metadata)
    async with Broker(settings, ops=core.serve_call, administration=methods) as broker:
        core.attach(broker.port)
        try:
            yield broker
        finally:
            await core.aclose()


@pytest.fixture
async def cluster(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[SeveralBrokers]:
    async with several_brokers(etcd, tmp_path, administered) as cluster:
        async with connect(cluster.brokers[1].broker_url) as client:
            for topic in TOPICS:
                async with client.producer(topic) as producer:
                    await producer.send(topic.encode())
                async with client.consumer(topic, "s", start="earliest"):
                    pass
        yield cluster


async def ask(broker: Broker, operation: str, /, **arguments: Any) -> dict[str, Any]:
    async with OpsClient(broker.admin_url) as client:
        return await client.call(operation, arguments)


async def place(cluster: SeveralBrokers, topic: str, target: Broker) -> None:
    """Wait until a topic is served, and move it to a broker unless it is there."""
    await until(lambda: cluster.serves(TopicName.parse(topic)))
    if cluster.owner(topic) is not target:
        await ask(target, "topics.move", topic=topic, to_broker=id_of(target))
        await until(lambda: target.registry.find(TopicName.parse(topic)) is not None)


async def answered_by_all(broker: Broker, operation: str, /, **arguments: Any) -> dict[str, Any]:
    """Ask until no broker is left out: on a busy machine one may answer too late."""
    answer: dict[str, Any] = {}

    async def by_all() -> bool:
        nonlocal answer
        answer = await ask(broker, operation, **arguments)
        return "not_seen" not in answer

    await until(by_all)
    return answer


async def test_every_broker_lists_all_topics_page_by_page(cluster: SeveralBrokers) -> None:
    for broker in cluster.brokers.values():
        found: list[dict[str, Any]] = []
        page: str | None = None
        while True:
            answer = await ask(broker, "topics.list", limit=4, **({} if page is None else {"page": page}))
            found += answer["items"]
            assert "not_seen" not in answer
            page = answer.get("next_page")
            if page is None:
                break
        assert [each["topic"] for each in found] == TOPICS
        assert {each["messages"] for each in found} == {1}
        assert {each["owner"] for each in found} == {
            str(one.data_dir.broker_id) for one in cluster.brokers.values()
        }


async def test_every_broker_describes_and_changes_the_topic_of_another(cluster: SeveralBrokers) -> None:
    for n, broker in enumerate(cluster.brokers.values()):
        for topic in TOPICS:
            described = await ask(broker, "topics.describe", topic=topic)
            assert (described["next_offset"], described["subscriptions"][-1]) == (1, "s")
            subscription = f"new-{n}"
            await ask(broker, "subscriptions.create", topic=topic, subscription=subscription, type="shared")
        peeked = await ask(broker, "messages.peek", topic=TOPICS[0])
        assert [each["offset"] for each in peeked["items"]] == [0]


async def test_topic_is_deleted_at_another_broker_than_its_owner(
    cluster: SeveralBrokers,
) -> None:
    for topic in TOPICS[:4]:
        one, other = cluster.others(topic)
        with pytest.raises(ClusterError) as caught:
            await ask(one, "topics.delete", topic=topic)
        assert caught.value.code == "PLAN_REQUIRED"
        token = caught.value.details["plan"]["plan_token"]
        deleted = await ask(other, "topics.delete", topic=topic, plan_token=token)
        await until(
            lambda topic=topic: (
                not any(b.registry.find(TopicName.parse(topic)) for b in cluster.brokers.values())
            )
        )
        assert deleted["call_id"]
        answer = await ask(one, "topics.list")
        assert topic not in [each["topic"] for each in answer["items"]]


async def test_lag_of_all_is_seen_from_any_broker(cluster: SeveralBrokers) -> None:
    for broker in cluster.brokers.values():
        answer = await ask(broker, "subscriptions.lag")
        assert [(each["topic"], each["lag_messages"]) for each in answer["items"]] == [(t, 1) for t in TOPICS]


async def test_diagnosis_at_any_broker_has_what_the_owner_found(cluster: SeveralBrokers) -> None:
    topic = next(topic for topic in TOPICS if cluster.owner(topic) is cluster.brokers[3])
    await ask(cluster.brokers[1], "topics.set_policies", topic=topic, policies={"alert_unread_messages": 1})
    async with connect(cluster.brokers[1].broker_url) as client, client.producer(topic) as producer:
        await producer.send(b"one more")
    for broker in cluster.brokers.values():
        with anyio.fail_after(60):
            while True:
                found = await ask(broker, "diagnose.cluster")
                alerts = (await ask(broker, "alerts.list", filter="threshold_exceeded"))["items"]
                if alerts and found["counts"].get("threshold_exceeded"):
                    break
                await anyio.sleep(0.1)
        assert found["subject"] == {"brokers": 3, "topics": len(TOPICS)}
        [exceeded] = [one for one in found["findings"] if one["rule"] == "threshold_exceeded"]
        assert exceeded["subject"]["topic"] == topic
        assert [each["subject"]["topic"] for each in alerts] == [topic]


async def test_brokers_are_listed_with_their_leader(cluster: SeveralBrokers) -> None:
    ids = sorted(str(broker.data_dir.broker_id) for broker in cluster.brokers.values())
    for broker in cluster.brokers.values():
        items = (await ask(broker, "brokers.list"))["items"]
        assert sorted(each["broker_id"] for each in items) == ids
        assert sum(each["leader"] for each in items) == 1
        assert all(each["load"]["disk_bytes"] > 0 and each["heard_s_ago"] == 0 for each in items)
        assert sum(each["topics"] for each in items) == len(TOPICS)


async def test_partitioned_topic_over_several_brokers_is_one(cluster: SeveralBrokers) -> None:
    await ask(cluster.brokers[1], "topics.create", topic="wide", partitions=9)
    for broker in cluster.brokers.values():
        described = await ask(broker, "topics.describe", topic="wide")
        assert described["partitions"] == 9
        assert [part["partition"] for part in described["parts"]] == list(range(9))
        with pytest.raises(ClusterError, match="name one partition") as caught:
            await ask(broker, "topics.chart", topic="wide")
        assert caught.value.code == "NOT_OWNER"


async def _findings(broker: Broker, rule: str) -> list[dict[str, Any]]:
    found = (await ask(broker, "diagnose.cluster"))["findings"]
    return [each for each in found if each["rule"] == rule]


async def test_broker_that_does_not_answer_is_named(cluster: SeveralBrokers) -> None:
    gone = cluster.brokers[3]
    gone_id = str(gone.data_dir.broker_id)
    lost = [topic for topic in TOPICS if cluster.owner(topic) is gone]
    assert lost
    await cluster.stop(3)
    answer = await ask(cluster.brokers[1], "topics.list")
    assert [each["topic"] for each in answer["items"]] == [topic for topic in TOPICS if topic not in lost]
    assert [each["broker_id"] for each in answer["not_seen"]] == [gone_id]
    alone = await ask(cluster.brokers[1], "topics.list", filter=lost[0])
    assert (alone["items"], [each["broker_id"] for each in alone["not_seen"]]) == ([], [gone_id])
    assert alone["not_seen"][0]["topics"] == lost[:1]
    await until(lambda: int(gone_id) not in cluster.brokers[1].registry.ownership.coordinator.members)
    for broker, operation in product(cluster.brokers.values(), ("topics.list", "subscriptions.lag")):
        [waiting] = (await ask(broker, operation))["not_seen"]
        assert (waiting["broker_id"], waiting["state"]) == (gone_id, "gone")
        assert (waiting["topics"], waiting["topic_count"]) == (lost, len(lost))
        assert waiting["gone_since"] is not None
        assert "not registered" in waiting["why"]
    listed = (await ask(cluster.brokers[1], "brokers.list"))["items"]
    assert [each["state"] for each in listed if each["broker_id"] != gone_id] == ["active"] * 2
    [item] = [each for each in listed if each["broker_id"] == gone_id]
    assert (item["state"], item["leader"], item["ready"], item["version"]) == ("gone", False, False, None)
    assert item["topics"] == len(lost), "its own audit is not among those that wait"
    with anyio.fail_after(60):
        while not (down := await _findings(cluster.brokers[1], "owner_down")):  # noqa: ASYNC110
            await anyio.sleep(0.1)
    assert down[0]["evidence"]["topics"] == len(lost)
    with anyio.fail_after(60):
        while "tried" not in down[0]["evidence"]:
            down = await _findings(cluster.brokers[1], "owner_down")
    (tried,) = down[0]["evidence"]["tried"].values()
    assert tried["why"]
    assert f"Nothing answers at its address {tried['address']}" in down[0]["summary"]
    assert item["heard_s_ago"] >= 0
    pages = [await ask(cluster.brokers[1], "topics.list", filter=topic) for topic in TOPICS]
    named = [each["topics"] for page in pages for each in page["not_seen"] if "topics" in each]
    assert named == [[topic] for topic in lost], "a page names the rows that it lacks"
    unread = await ask(cluster.brokers[1], "subscriptions.lag")
    assert [each["topic"] for each in unread["items"]] == [topic for topic in TOPICS if topic not in lost]
    assert unread["total"] == len(TOPICS)
    metrics = await ask(cluster.brokers[1], "cluster.metrics")
    assert metrics["topics"] == len(TOPICS) - len(lost)
    for answer in (unread, metrics):
        assert [each["broker_id"] for each in answer["not_seen"]] == [gone_id]
    diagnosis = await ask(cluster.brokers[1], "diagnose.cluster")
    assert gone_id in diagnosis["unobservable"][0]
    assert diagnosis["verdict"] != "healthy"
    for operation, arguments in (
        ("subscriptions.describe", {"topic": lost[0], "subscription": "s"}),
        ("messages.peek", {"topic": lost[0]}),
        ("brokers.describe", {"broker_id": gone_id}),
    ):
        with pytest.raises(
            ClusterError, match=r"gone: it is not registered since .*, and does not answer"
        ) as caught:
            await ask(cluster.brokers[1], operation, **arguments)
        assert caught.value.retryable
        told = caught.value.details
        assert (told["broker_id"], told["state"]) == (gone_id, "gone")
        assert told["topics"] >= len(lost), "its own audit may wait for it too"
        assert told.get("topic") == arguments.get("topic")
        assert "Nothing answers at its address" in caught.value.message
        assert "on its data directory" in caught.value.message
        assert [each["operation"] for each in caught.value.next] == ["brokers.list", "brokers.remove"]


PARTITIONS = 24  # placed at random: each broker of three has some


async def test_a_topic_whose_owner_is_gone_is_described_from_the_metadata(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = cluster.brokers[3]
    gone_id = str(gone.data_dir.broker_id)
    lost = next(topic for topic in TOPICS if cluster.owner(topic) is gone)
    await ask(cluster.brokers[1], "topics.set_policies", topic=lost, policies={"max_publish_rate": 1000})
    await ask(cluster.brokers[1], "topics.create", topic="wide", partitions=PARTITIONS)
    before = {name: await ask(cluster.brokers[1], "topics.describe", topic=name) for name in (lost, "wide")}
    at_it = [each["partition"] for each in before["wide"]["parts"] if each["owner"] == gone_id]
    assert 0 < len(at_it) < PARTITIONS
    await cluster.stop(3)

    async def none_missed(_: object) -> dict[str, int]:
        return {}

    with monkeypatch.context() as before_its_lease_ends:
        before_its_lease_ends.setattr(type(cluster.brokers[1].port), "missed", none_missed)
        for broker in (cluster.brokers[1], cluster.brokers[2]):
            found = await ask(broker, "topics.describe", topic=lost)
            assert (found["owner_state"], found["messages_reason"]) == ("down", "owner_silent")
            assert "when its lease ends" in found["because"]
            for operation in ("diagnose.topic", "diagnose.subscription", "diagnose.producer"):
                subject = {"topic": lost} | ({"subscription": "s"} if "subscription" in operation else {})
                [finding] = (await ask(broker, operation, **subject))["findings"]
                assert (finding["rule"], [*finding["evidence"]["brokers"]]) == (
                    "broker_unreachable",
                    [gone_id],
                )
            assert "broker_unreachable" in (await ask(broker, "diagnose.topic", topic="wide"))["counts"]
    await until(lambda: int(gone_id) not in cluster.brokers[1].registry.ownership.coordinator.members)
    for broker in (cluster.brokers[1], cluster.brokers[2]):
        found = await ask(broker, "topics.describe", topic=lost)
        for name in ("topic", "topic_id", "owner", "subscriptions", "policies", "durability", "created_at"):
            assert found[name] == before[lost][name]
        assert (found["owner_state"], found["subscriptions"], found["policies"]) == (
            "down",
            ["s"],
            {"max_publish_rate": 1000},
        )
        assert (found["messages"], found["messages_reason"]) == (None, "owner_gone"), "unknown, not none"
        assert (found["in_use"], found["in_use_reason"]) == (None, "owner_gone")
        assert found["gone_since"] is not None
        assert "on its data directory" in found["because"]
        assert [each["operation"] for each in found["next"]] == ["brokers.list", "brokers.remove"]
        wide = await ask(broker, "topics.describe", topic="wide")
        assert (wide["partitions"], wide["messages_reason"]) == (PARTITIONS, "owner_gone")
        assert [each["owner"] for each in wide["parts"]] == [
            each["owner"] for each in before["wide"]["parts"]
        ]
        assert [each["partition"] for each in wide["parts"] if each["messages"] is None] == at_it
        [item] = (await ask(broker, "topics.list", filter="wide"))["items"]
        assert item["partitions"] == PARTITIONS, "those at the broker that is gone are counted"
    monkeypatch.setattr("pydanube_admin.peers.TOPICS_NAMED", 1)
    monkeypatch.setattr("pydanube_admin.compat.asking.TOPICS_NAMED", 1)
    async with grpc.aio.insecure_channel(broker.admin_url.removeprefix("http://")) as channel:
        tool = Tool(channel)
        shown = await tool("TopicAdmin/DescribeTopic", pb.DescribeTopicRequest(name=lost))
        assert (shown.broker_id, list(shown.subscriptions)) == (gone_id, ["s"])
        listed = await tool("TopicAdmin/ListNamespaceTopics", pb.NamespaceRequest(name="default"))
        parts = [f"/default/wide-part-{n}" for n in range(PARTITIONS)]
        assert sorted(each.name for each in listed.topics) == sorted([*TOPICS, *parts])
        assert next(each.broker_id for each in listed.topics if each.name == lost) == gone_id


async def test_a_topic_whose_owner_is_gone_is_diagnosed_at_any_broker(cluster: SeveralBrokers) -> None:
    gone = cluster.brokers[3]
    gone_id = str(gone.data_dir.broker_id)
    lost = [topic for topic in TOPICS if cluster.owner(topic) is gone]
    await ask(cluster.brokers[1], "topics.create", topic="wide", partitions=6)
    await until(
        lambda: gone.registry.find(TopicName.parse("wide-part-0")) or cluster.serves_name("wide-part-5")
    )
    await cluster.stop(3)
    await until(lambda: int(gone_id) not in cluster.brokers[1].registry.ownership.coordinator.members)
    subjects: dict[str, dict[str, Any]] = {
        "diagnose.topic": {"topic": lost[0]},
        "diagnose.subscription": {"topic": lost[0], "subscription": "s"},
        "diagnose.producer": {"topic": lost[0]},
    }
    for broker in cluster.brokers.values():
        for operation, subject in subjects.items():
            found = await ask(broker, operation, **subject)
            assert (found["verdict"], found["subject"]) == ("failing", subject)
            [finding] = found["findings"]
            assert (finding["rule"], finding["severity"]) == ("owner_down", "critical")
            assert finding["evidence"]["brokers"].keys() == {gone_id}
            assert lost[0] in finding["summary"]
            assert [each["operation"] for each in finding["next"]] == ["brokers.list", "brokers.remove"]
        whole = await ask(broker, "diagnose.topic", topic="wide")
        assert "owner_down" in whole["counts"], "some partitions are at the broker that is gone"


@asynccontextmanager
async def moved_round(cluster: SeveralBrokers) -> AsyncIterator[anyio.Event]:
    """A topic goes from broker to broker; gives what is set when it has been at each of them twice."""
    asked, name = cluster.brokers[1], TopicName.parse("t0")
    record = asked.registry.catalog.index.find_topic(name)
    assert record is not None
    was_round = anyio.Event()

    async def go_round() -> None:
        for target in (*cluster.brokers.values(), *cluster.brokers.values()):
            if target is not cluster.owner("t0"):
                await asked.moves.begin([record], BrokerId(int(target.data_dir.broker_id)))
                await until(lambda target=target: target.registry.find(name) is not None)
        was_round.set()

    async with anyio.create_task_group() as group:
        group.start_soon(go_round)
        yield was_round


LISTS: dict[str, dict[str, Any]] = {
    "topics.list": {},
    "subscriptions.list": {},
    "subscriptions.lag": {"sort": "topic"},
}


@pytest.mark.parametrize("operation", LISTS)
async def test_a_topic_between_two_owners_is_in_every_list(cluster: SeveralBrokers, operation: str) -> None:
    async with moved_round(cluster) as was_round:
        while not was_round.is_set():
            for arguments in ({}, LISTS[operation]):
                answer = await ask(cluster.brokers[1], operation, **arguments)
                assert "not_seen" in answer or [each["topic"] for each in answer["items"]] == TOPICS


async def test_a_topic_between_two_owners_is_in_every_sum(cluster: SeveralBrokers) -> None:
    port = cluster.brokers[1].port
    async with moved_round(cluster) as was_round:
        while not was_round.is_set():
            metrics = await ask(cluster.brokers[1], "cluster.metrics")
            assert "not_seen" in metrics or (metrics["topics"], metrics["lag_messages"]) == (9, 9)
            found = await ask(cluster.brokers[1], "diagnose.cluster")
            assert found["unobservable"] or found["subject"]["topics"] == 9
            of_status = [
                await ask(cluster.brokers[1], "subscriptions.lag", status=each) for each in LagStatus
            ]
            listed = [item["topic"] for answer in of_status for item in answer["items"]]
            assert any("not_seen" in answer for answer in of_status) or set(listed) == set(TOPICS)
    assert len(await port.lag_index(None, None)) == 9


async def test_what_does_not_arrive_is_named_and_not_said_to_be_gone(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_wide_port, "ON_ITS_WAY_S", 0.0)
    owner = cluster.owner("t0")
    owner_id = str(owner.data_dir.broker_id)
    asked = next(broker for broker in cluster.brokers.values() if broker is not owner)
    before = await ask(asked, "subscriptions.lag")
    async with connect(asked.broker_url) as client, client.consumer("t0", "s") as consumer:
        [message] = await consumer.receive()
        await message.ack()
        await consumer.flush_acks()
    served = owner.registry.ownership.topics
    away = served.pop(TopicName.parse("t0"))
    for operation, arguments in (
        ("topics.list", {}),
        ("subscriptions.list", {}),
        ("subscriptions.lag", {}),
        ("subscriptions.lag", {"sort": "-lag_messages"}),
        ("subscriptions.lag", {"limit": 1}),
        ("subscriptions.lag", {"changed_since": before["mark"]}),
        ("cluster.metrics", {}),
    ):
        answer = await ask(asked, operation, **arguments)
        assert len(answer.get("items", ())) < 9
        assert "gone" not in answer or answer["gone"] == []
        assert answer["not_seen"], (operation, answer)
    assert owner_id in {each["broker_id"] for each in (await ask(asked, "topics.list"))["not_seen"]}
    page = (await ask(asked, "subscriptions.lag", limit=1))["next_page"]
    later = await answered_by_all(asked, "subscriptions.lag", limit=1, page=page)
    assert [each["topic"] for each in later["items"]] == ["/default/t1"]
    unseen = await ask(asked, "subscriptions.lag", changed_since=before["mark"])
    served[TopicName.parse("t0")] = away
    seen = await answered_by_all(asked, "subscriptions.lag", changed_since=unseen["mark"])
    assert [(each["topic"], each["lag_messages"]) for each in seen["items"]] == [("/default/t0", 0)]
    assert seen["gone"] == []


async def test_a_topic_is_created_also_where_its_owners_open_it_later_than_a_call_may_wait(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_wide_port, "DEADLINE_S", 0.0)
    first = cluster.brokers[1]
    done = await ask(first, "topics.create", topic="slowly", partitions=6)
    monkeypatch.undo()
    described = await ask(first, "topics.describe", topic="slowly")
    told = ("topic", "topic_id", "partitions", "dispatch_strategy", "durability", "created_at")
    assert {name: done[name] for name in told} == {name: described[name] for name in told}


async def test_a_topic_that_its_owners_still_open_is_waited_for(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_wide_port, "ON_ITS_WAY_S", 0.0)  # a list says at once that it is on its way
    port = cluster.brokers[2].port
    whole, asked = port.topic_facts, 0

    async def opening(topics: Sequence[str]) -> Sequence[Sequence[TopicFacts]]:
        nonlocal asked
        asked += 1
        return await whole(topics) if asked > 2 else []

    monkeypatch.setattr(port, "topic_facts", opening)
    pauses: list[float] = []
    all_pauses = cluster_wide_port.growing_pauses

    def noted() -> Iterator[float]:
        for pause_s in all_pauses():
            pauses.append(pause_s)
            yield pause_s

    monkeypatch.setattr(cluster_wide_port, "growing_pauses", noted)
    made = await ask(cluster.brokers[1], "topics.create", topic="wide", partitions=60)
    assert asked > 2
    assert sum(pauses[:2]) < 0.02, "an owner opens a topic within milliseconds"
    assert made["topic"] == "/default/wide"
    assert (await ask(cluster.brokers[2], "topics.describe", topic="wide"))["partitions"] == 60


async def test_plan_of_a_removal_is_asked_of_no_broker_that_hangs_and_names_what_nobody_knows(
    cluster: SeveralBrokers,
) -> None:
    first, last = cluster.brokers[1], cluster.brokers[3]
    last_id = str(last.data_dir.broker_id)
    of_it: dict[str, Any] = {"broker_id": last_id, "plan_only": True}
    members = first.registry.ownership.coordinator.members
    here = members[last.data_dir.broker_id]
    members[last.data_dir.broker_id] = replace(here, admin_url="http://127.0.0.1:9")  # nobody is there
    with pytest.raises(ClusterError, match="is registered") as refused:
        await ask(first, "brokers.remove", **of_it)
    assert refused.value.code == "CONFLICT"

    await last.moves.keep_states()
    await last.registry.create(TopicName.parse("late"), partitions=0, dispatch_strategy="reliable", here=True)
    await cluster.stop(3)
    await until(lambda: last.data_dir.broker_id not in members)
    plan = await ask(first, "brokers.remove", **of_it)
    topics = {each["path"]: each["before"] for each in plan["diff"] if each["path"].startswith("topics")}
    untold = [path for path, before in topics.items() if before["known_to"] is None]
    assert "topics/default/late" in untold
    assert f". Of {counted(len(untold), 'topic')} it reported nothing. " in plan["later"]


async def test_a_broker_that_hangs_is_asked_once_and_the_others_are_listed(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question takes five seconds without an answer, and a face waits ten."""
    hung = id_of(cluster.brokers[3])
    there = [topic for topic in TOPICS if id_of(cluster.owner(topic)) != hung]
    asked: list[str] = []
    answering = Peers.ask

    async def silent(self: Peers, broker: BrokerAddress, method: str, *given: Any, **more: Any) -> Any:
        if broker.broker_id != hung:
            return await answering(self, broker, method, *given, **more)
        asked.append(method)
        await anyio.sleep(0.2)
        raise Unavailable(f"broker {hung} does not answer", broker_id=hung)

    monkeypatch.setattr(Peers, "ask", silent)
    for operation in ("topics.list", "subscriptions.list", "subscriptions.lag", "brokers.list"):
        asked.clear()
        found = await ask(cluster.brokers[1], operation)
        assert len(asked) == 1, (operation, asked)
        assert [each["broker_id"] for each in found["not_seen"]] == [hung]
        if operation == "topics.list":
            assert [each["topic"] for each in found["items"]] == there
