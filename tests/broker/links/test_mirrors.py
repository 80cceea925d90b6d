"""Two brokers alone, each a cluster: a link mirrors topics of the one at the other, until they are failed over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydanube import MirrorReadOnly
from pydanube.sync import connect

from tests.broker.official.raw_client import RawClient
from tests.support.broker_process import BrokerProcess
from tests.support.mirrors import check_equal_bytes, described, ends, link_to, until, until_copied

ORDERS, PARTS = "/default/orders", "/default/parts"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "source") as process:
        yield process


@pytest.fixture
def here(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "here") as process:
        yield process


def payloads(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


def read(broker: BrokerProcess, topic: str, count: int) -> list[tuple[int, bytes, datetime]]:
    with connect(broker.url) as client, client.reader(topic, start="earliest") as reader:
        found = [next(reader) for _ in range(count)]
    return [(each.offset, bytes(each.payload), each.append_time) for each in found]


def refused(broker: BrokerProcess, operation: str, **arguments: Any) -> dict[str, Any]:
    answer = broker.rpc(operation, **arguments)
    assert "error" in answer, answer
    found: dict[str, Any] = answer["error"]["data"]
    return found


def test_topics_are_mirrored_at_the_same_offsets_with_the_same_bytes_and_new_ones_follow(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(500))
    source.ask("topics.create", topic=PARTS, partitions=2)
    source.publish(PARTS, payloads(50))
    source.ask("topics.set_policies", topic=ORDERS, policies={"max_consumers_per_topic": 7})
    link_to(here, source)
    until_copied(source, here, ORDERS, PARTS)
    assert read(here, ORDERS, 500) == read(source, ORDERS, 500)

    source.publish("/default/new", payloads(5))
    source.publish(ORDERS, payloads(500, 500))
    source.ask("topics.add_partitions", topic=PARTS, partitions=3)
    source.publish(PARTS, payloads(50))
    topics = (ORDERS, PARTS, "/default/new")
    until_copied(source, here, *topics)
    found = here.ask("topics.describe", topic=ORDERS)
    assert (found["policies"], found["mirror_of"]) == ({"max_consumers_per_topic": 7}, f"eu:{ORDERS}")
    link = described(here)
    assert (link["state"], link["topics"], link["lag_messages"], link["left_out"]) == ("copying", 5, 0, [])
    assert check_equal_bytes(source, here, *topics) >= 5


@pytest.mark.anyio
async def test_only_the_link_writes_a_mirror(source: BrokerProcess, here: BrokerProcess) -> None:
    source.publish(ORDERS, payloads(3))
    source.ask("topics.create", topic=PARTS, partitions=2)
    link_to(here, source)
    until_copied(source, here, ORDERS, PARTS)
    with (
        connect(here.url) as client,
        pytest.raises(MirrorReadOnly, match="only the link eu writes"),
        client.producer(ORDERS) as producer,
    ):
        producer.send(b"x")
    async with RawClient(here.url) as official:
        with pytest.raises(Exception, match="MIRROR_READ_ONLY"):
            await official.create_producer(ORDERS)
    assert refused(here, "messages.publish", topic=ORDERS, payload="x")["code"] == "MIRROR_READ_ONLY"
    assert here.command("messages", "publish", ORDERS, "--payload", "x", check=False).returncode == 4
    for operation, topic, arguments in (
        ("topics.truncate", ORDERS, {"before": "offset:2"}),
        ("topics.add_partitions", PARTS, {"partitions": 4}),
        ("topics.set_policies", ORDERS, {"policies": {"max_publish_rate": 5}}),
    ):
        arguments = {"topic": topic, **arguments}
        found = refused(here, operation, **arguments)
        if found["code"] == "PLAN_REQUIRED":
            token = found["details"]["plan"]["plan_token"]
            found = refused(here, operation, **arguments, plan_token=token)
        assert found["code"] == "MIRROR_READ_ONLY", (operation, found)
    assert ends(here, ORDERS) == {ORDERS: 3}


def test_a_mirrored_subscription_follows_its_source_and_opens_at_the_fail_over(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(100))
    source.ask("subscriptions.create", topic=ORDERS, subscription="billing", type="shared", start="earliest")
    link_to(here, source)
    with connect(source.url) as client, client.consumer(ORDERS, "billing", type="shared") as consumer:
        for message in (next(consumer) for _ in range(40)):
            if message.offset != 5:
                message.ack()

    def followed() -> bool:
        answer = here.rpc("subscriptions.describe", topic=ORDERS, subscription="billing")
        if "result" not in answer:
            return False
        (part,) = answer["result"]["parts"]
        return (part["next_unacked"], part["acked_above"]) == (5, 34)

    until("the source's cursor", followed)
    with connect(here.url) as client:
        with (
            pytest.raises(MirrorReadOnly, match="another name"),
            client.consumer(ORDERS, "billing", type="shared") as consumer,
        ):
            next(consumer)
        with client.consumer(ORDERS, "mine", start="earliest") as consumer:
            assert next(consumer).offset == 0
    assert refused(here, "subscriptions.seek", topic=ORDERS, subscription="billing", to="latest")["code"] in (
        "MIRROR_READ_ONLY",
        "PLAN_REQUIRED",
    )
    here.kill()
    here.start()
    until("the cursor after a crash", followed)
    done = here.ask("links.fail_over", link="eu")
    assert (done["missing_messages"], done["topics"][0]["copied_until"]) == (0, {ORDERS: 100})
    with connect(here.url) as client, client.consumer(ORDERS, "billing", type="shared") as consumer:
        assert [next(consumer).offset for _ in range(3)] == [5, 40, 41]


def test_a_failed_over_topic_goes_on_with_producers_of_its_own(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(10))
    source.publish("/default/other", payloads(3))
    link_to(here, source)
    until_copied(source, here, ORDERS, "/default/other")
    plan = refused(here, "links.fail_over", link="eu", topics=ORDERS)
    assert plan["code"] == "PLAN_REQUIRED"
    shown = plan["details"]["plan"]
    assert shown["reversible"] is False
    assert shown["diff"] == [
        {
            "path": f"topics{ORDERS}",
            "before": {"mirror_of": f"eu:{ORDERS}"},
            "after": {"copied_until": {ORDERS: 10}},
        }
    ]
    done = here.ask("links.fail_over", link="eu", topics=ORDERS)
    assert [each["topic"] for each in done["topics"]] == [ORDERS]
    here.publish(ORDERS, payloads(5, 10))
    source.publish("/default/other", payloads(3))
    source.publish(ORDERS, [b"too late"])
    until_copied(source, here, "/default/other")
    here.kill()
    here.start()
    assert [offset for offset, _, _ in read(here, ORDERS, 15)] == list(range(15))
    assert here.ask("topics.describe", topic=ORDERS)["mirror_of"] is None
    left = until("the standing", lambda: described(here)["left_out"])
    assert [(each["topic"], each["state"]) for each in left] == [(ORDERS, "failed_over")]
    here.ask("links.fail_over", link="eu")
    assert described(here)["state"] == "failed_over"
    here.publish("/default/other", payloads(1))


def test_a_link_is_paused_resumed_and_deleted_by_a_plan_and_the_deletion_undone(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(10))
    link_to(here, source)
    until_copied(source, here, ORDERS)
    here.ask("links.pause", link="eu")
    source.publish(ORDERS, payloads(10, 10))
    source.publish("/default/later", payloads(1))
    assert described(here)["state"] == "paused"
    assert ends(here, ORDERS) == {ORDERS: 10}
    here.ask("links.resume", link="eu")
    until_copied(source, here, ORDERS, "/default/later")

    assert refused(here, "links.delete", link="eu")["code"] == "PLAN_REQUIRED"
    gone = here.ask("links.delete", link="eu")
    assert gone["read_only_topics"] == 2
    assert refused(here, "links.describe", link="eu")["code"] == "LINK_NOT_FOUND"
    assert refused(here, "messages.publish", topic=ORDERS, payload="x")["code"] == "MIRROR_READ_ONLY"
    source.publish(ORDERS, payloads(10, 20))
    here.ask("changes.undo", call_id=gone["call_id"])
    until_copied(source, here, ORDERS)


def test_what_cannot_be_mirrored_is_named(source: BrokerProcess, here: BrokerProcess) -> None:
    source.ask("topics.create", topic="fleeting", dispatch_strategy="non_reliable")
    source.publish(ORDERS, payloads(3))
    here.publish(ORDERS, payloads(7))
    link_to(here, source)
    left = until("the standings", lambda: described(here)["left_out"])
    assert {each["topic"]: each["state"] for each in left} == {
        "/default/fleeting": "left_out",
        ORDERS: "name_taken",
    }
    assert ends(here, ORDERS) == {ORDERS: 7}, "a topic of this cluster is never written"
    link_to(here, source, "renamed", topics=ORDERS, rename="eu-")
    until("the renamed mirror", lambda: ends(here, "/default/eu-orders") == {"/default/eu-orders": 3})


def test_a_topic_that_was_made_again_at_the_source_is_not_appended_to_its_mirror(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(10))
    link_to(here, source)
    until_copied(source, here, ORDERS)
    source.ask("topics.delete", topic=ORDERS)
    until("the deletion", lambda: [m["state"] for m in described(here)["mirrors"]] == ["source_deleted"])
    source.publish(ORDERS, payloads(20))
    until("the new topic", lambda: described(here)["state"] == "diverged")
    assert ends(here, ORDERS) == {ORDERS: 10}
    here.ask("links.fail_over", link="eu", topics=ORDERS)
    here.publish(ORDERS, payloads(1))


def test_a_mirror_follows_the_start_of_its_source_and_begins_with_the_latest_if_asked(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(100))
    link_to(here, source, "whole", rename="whole-")
    link_to(here, source, "new", rename="new-", start="latest")
    until("the copy", lambda: ends(here, "/default/whole-orders") == {"/default/whole-orders": 100})
    until("the begin", lambda: ends(here, "/default/new-orders") == {"/default/new-orders": 100})
    source.ask("topics.truncate", topic=ORDERS, before="offset:60")
    source.publish(ORDERS, payloads(1))

    def starts() -> bool:
        found = [here.ask("topics.describe", topic=f"/default/{name}-orders") for name in ("whole", "new")]
        return [(each["start_offset"], each["next_offset"]) for each in found] == [(60, 101), (100, 101)]

    until("the source's start", starts)
    here.kill()
    here.start()
    until("the same after a crash", starts)


def test_a_source_that_is_away_is_said_and_copying_goes_on_when_it_is_back(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(10))
    link_to(here, source)
    until_copied(source, here, ORDERS)
    source.kill()
    until("the state", lambda: described(here)["state"] == "source_unreachable")
    assert any("fail-over" in step for step in described(here)["next_steps"])
    source.start()
    source.publish(ORDERS, payloads(10))
    until_copied(source, here, ORDERS)
    until("the state", lambda: described(here)["state"] == "copying")
    source.kill()
    here.kill()
    here.start()  # without its source
    until("the state", lambda: described(here)["state"] == "source_unreachable")
    assert ends(here, ORDERS) == {ORDERS: 20}
