"""Two brokers alone, each a cluster: a link mirrors topics of the one at the other, until they are failed over."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any
from urllib.request import urlopen

import anyio
import pytest
from anyio import to_thread
from pydanube import FailedOver, MirrorReadOnly, Retry, Tls, Unavailable
from pydanube.sync import connect
from pydanube_cli.certificates import CertificateFolder
from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part

from tests.broker.official.raw_client import RawClient
from tests.support.broker_process import BrokerProcess
from tests.support.mirrors import (
    check_equal_bytes,
    described,
    ends,
    link_to,
    stored_batches,
    topic_ids,
    until,
    until_copied,
)
from tests.support.official_client import official_client_environment
from tests.support.small_disk import small_disk

_SPACES = count()
SCENARIOS = Path(__file__).parents[2] / "conformance" / "official" / "scenarios.py"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Two clusters that the tests of this module share. A start takes longer than most of the tests."""
    folder = tmp_path_factory.mktemp("brokers")
    with BrokerProcess(folder / "source") as source, BrokerProcess(folder / "here") as here:
        yield source, here


@pytest.fixture
def source(brokers: tuple[BrokerProcess, BrokerProcess]) -> BrokerProcess:
    return brokers[0]


@pytest.fixture
def here(brokers: tuple[BrokerProcess, BrokerProcess]) -> BrokerProcess:
    return brokers[1]


@pytest.fixture
def space(brokers: tuple[BrokerProcess, BrokerProcess]) -> Iterator[str]:
    """A namespace of the test's own, with its slash. What the test leaves is deleted, and brokers that it killed are started."""
    name = f"t{next(_SPACES)}"
    brokers[0].ask("namespaces.create", namespace=name)
    yield f"/{name}"
    for broker in brokers:
        if not broker.running:
            broker.start()
        for link in broker.ask("links.list")["items"]:
            broker.ask("links.delete", link=link["link"])
        # A link of the same name would go on with the mirrors
        for topic in broker.ask("topics.list", filter=f"/{name}/*")["items"]:
            broker.ask("topics.delete", topic=topic["topic"])


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


def metrics(broker: BrokerProcess) -> str:
    with urlopen(f"{broker.metrics}/metrics", timeout=60) as answer:
        found: bytes = answer.read()
    return found.decode()


def finding(broker: BrokerProcess, rule: str) -> dict[str, Any] | None:
    findings = broker.ask("diagnose.cluster")["findings"]
    return next((each for each in findings if each["rule"] == rule), None)


def test_topics_are_mirrored_at_the_same_offsets_with_the_same_bytes_and_new_ones_follow(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders, parts = f"{space}/orders", f"{space}/parts"
    source.publish(orders, payloads(500))
    source.ask("topics.create", topic=parts, partitions=2)
    source.publish(parts, payloads(50))
    source.ask("topics.set_policies", topic=orders, policies={"max_consumers_per_topic": 7})
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders, parts)
    assert read(here, orders, 500) == read(source, orders, 500)

    source.publish(f"{space}/new", payloads(5))
    source.publish(orders, payloads(500, 500))
    source.ask("topics.add_partitions", topic=parts, partitions=3)
    source.publish(parts, payloads(50))
    topics = (orders, parts, f"{space}/new")
    until_copied(source, here, *topics)
    found = here.ask("topics.describe", topic=orders)
    assert (found["policies"], found["mirror_of"]) == ({"max_consumers_per_topic": 7}, f"eu:{orders}")
    link = described(here)
    assert (link["state"], link["topics"], link["lag_messages"], link["left_out"]) == ("copying", 5, 0, [])
    counted = f'danube_topic_messages_in_total{{topic="{orders}"}}'
    assert f"{counted} 1000" in metrics(source)
    assert counted not in metrics(here).replace(f"{counted} 0", ""), "a copy is no user's traffic"
    assert check_equal_bytes(source, here, *topics) >= 5


@pytest.mark.anyio
async def test_only_the_link_writes_a_mirror(source: BrokerProcess, here: BrokerProcess, space: str) -> None:
    orders, parts = f"{space}/orders", f"{space}/parts"
    source.publish(orders, payloads(3))
    source.ask("topics.create", topic=parts, partitions=2)
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders, parts)
    with (
        connect(here.url) as client,
        pytest.raises(MirrorReadOnly, match="only the link eu writes"),
        client.producer(orders) as producer,
    ):
        producer.send(b"x")
    async with RawClient(here.url) as official:
        with pytest.raises(Exception, match="MIRROR_READ_ONLY"):
            await official.create_producer(orders)
    assert refused(here, "messages.publish", topic=orders, payload="x")["code"] == "MIRROR_READ_ONLY"
    text = refused(here, "messages.publish", topic=parts, payload="x")["message"]
    assert f"--topics {parts}`" in text, "the topic, and none of its partitions"
    assert here.command("messages", "publish", orders, "--payload", "x", check=False).returncode == 4
    for operation, topic, arguments in (
        ("topics.truncate", orders, {"before": "offset:2"}),
        ("topics.add_partitions", parts, {"partitions": 4}),
        ("topics.set_policies", orders, {"policies": {"max_publish_rate": 5}}),
    ):
        arguments = {"topic": topic, **arguments}
        found = refused(here, operation, **arguments)
        if found["code"] == "PLAN_REQUIRED":
            token = found["details"]["plan"]["plan_token"]
            found = refused(here, operation, **arguments, plan_token=token)
        assert found["code"] == "MIRROR_READ_ONLY", (operation, found)
    assert ends(here, orders) == {orders: 3}


def test_a_mirrored_subscription_follows_its_source_and_opens_at_the_fail_over(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(100))
    source.ask("subscriptions.create", topic=orders, subscription="billing", type="shared", start="earliest")
    link_to(here, source, topics=f"{space}/*")
    with connect(source.url) as client, client.consumer(orders, "billing", type="shared") as consumer:
        for message in (next(consumer) for _ in range(40)):
            if message.offset != 5:
                message.ack()

    def followed() -> bool:
        answer = here.rpc("subscriptions.describe", topic=orders, subscription="billing")
        if "result" not in answer:
            return False
        (part,) = answer["result"]["parts"]
        return (part["next_unacked"], part["acked_above"]) == (5, 34)

    until("the source's cursor", followed)
    with connect(here.url) as client:
        with (
            pytest.raises(MirrorReadOnly, match="another name"),
            client.consumer(orders, "billing", type="shared") as consumer,
        ):
            next(consumer)
        with client.consumer(orders, "mine", start="earliest") as consumer:
            assert next(consumer).offset == 0
    assert refused(here, "subscriptions.seek", topic=orders, subscription="billing", to="latest")["code"] in (
        "MIRROR_READ_ONLY",
        "PLAN_REQUIRED",
    )
    here.kill()
    here.start()
    until("the cursor after a crash", followed)
    done = here.ask("links.fail_over", link="eu")
    assert (done["missing_messages"], done["topics"][0]["copied_until"]) == (0, {orders: 100})
    with connect(here.url) as client, client.consumer(orders, "billing", type="shared") as consumer:
        assert [next(consumer).offset for _ in range(3)] == [5, 40, 41]


def test_a_cursor_that_is_moved_back_at_the_source_moves_back_at_the_mirror(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    wanted = {"topic": f"{space}/orders", "subscription": "billing"}
    source.publish(f"{space}/orders", payloads(10))
    source.ask("subscriptions.create", **wanted, start="latest")
    link_to(here, source, topics=f"{space}/*")

    def is_at(offset: int) -> bool:
        found = here.rpc("subscriptions.describe", **wanted).get("result")
        return found is not None and found["parts"][0]["next_unacked"] == offset

    until("the cursor", lambda: is_at(10))
    source.ask("subscriptions.seek", **wanted, to="offset:3")
    until("the cursor of before", lambda: is_at(3))
    source.ask("subscriptions.seek", **wanted, to="latest")
    until("the end", lambda: is_at(10))


def test_a_mirrored_subscription_has_the_type_and_the_policy_that_its_source_has_now(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    """Both stayed as they were when the mirror was made: the policy until the next start, the type for ever."""
    wanted = {"topic": f"{space}/orders", "subscription": "billing"}
    policy = {"max_redelivery_count": 2, "poison_policy": "dead_letter", "dead_letter_topic": f"{space}/bad"}
    source.publish(wanted["topic"], payloads(10))
    source.ask("subscriptions.create", **wanted, type="exclusive", start="earliest")
    link_to(here, source, topics=f"{space}/*", rename="eu-")
    mirror = {**wanted, "topic": f"{space}/eu-orders"}

    def found() -> dict[str, Any]:
        answer: dict[str, Any] = here.rpc("subscriptions.describe", **mirror).get("result", {})
        return answer

    until("the subscription", lambda: found().get("type") == "exclusive")
    source.ask("subscriptions.set_failure_policy", **wanted, **policy)
    expected = {**policy, "dead_letter_topic": f"{space}/eu-bad"}
    until("the policy", lambda: found()["failure_policy"].items() >= expected.items())
    here.ask("links.pause", link="eu")
    source.ask("subscriptions.delete", **wanted)
    source.ask("subscriptions.create", **wanted, type="shared", start="offset:4")
    here.ask("links.resume", link="eu")
    until("the type", lambda: (found()["type"], found()["parts"][0]["next_unacked"]) == ("shared", 4))
    here.ask("links.fail_over", link="eu")
    with connect(here.url) as client, client.consumer(mirror["topic"], "billing", type="shared") as consumer:
        assert next(consumer).offset == 4


def test_the_policies_of_subscriptions_to_come_are_mirrored(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders, parts, bad = f"{space}/orders", f"{space}/parts", f"{space}/bad"
    for topic in (orders, bad):
        source.ask("topics.create", topic=topic)
    source.ask("topics.create", topic=parts, partitions=2)

    def keep(topic: str, subscription: str, **fields: Any) -> None:
        source.ask(
            "subscriptions.set_failure_policy", topic=topic, subscription=subscription, keep=True, **fields
        )

    def kept(topic: str) -> dict[str, Any]:
        found: dict[str, Any] = here.ask("topics.describe", topic=topic)["kept_failure_policies"]
        return {
            name: {key: each.get(key) for key in ("max_redelivery_count", "dead_letter_topic")}
            for name, each in found.items()
        }

    keep(orders, "later", max_redelivery_count=9, dead_letter_topic=bad)
    keep(parts, "later", max_redelivery_count=8)
    link_to(here, source, topics=f"{space}/*", rename="eu-")
    names = {topic: topic.replace(f"{space}/", f"{space}/eu-") for topic in (orders, parts, bad)}
    until("the mirrors", lambda: len(described(here)["mirrors"]) == 4)
    wanted = {"max_redelivery_count": 9, "dead_letter_topic": names[bad]}
    until("the policy", lambda: kept(names[orders]) == {"later": wanted})
    until("the policy", lambda: kept(names[parts])["later"]["max_redelivery_count"] == 8)
    keep(orders, "other", max_redelivery_count=7)
    keep(orders, "later", max_redelivery_count=6)
    until("the change", lambda: kept(names[orders]).keys() == {"later", "other"})
    until("the change", lambda: kept(names[orders])["later"]["max_redelivery_count"] == 6)
    # It becomes that of the subscription, on both sides, and is kept no longer
    source.ask("subscriptions.create", topic=orders, subscription="other")
    until("the subscription", lambda: kept(names[orders]).keys() == {"later"})
    here.ask("links.fail_over", link="eu")
    here.ask("subscriptions.create", topic=names[orders], subscription="later")
    for name, most in (("later", 6), ("other", 7)):
        policy = here.ask("subscriptions.get_failure_policy", topic=names[orders], subscription=name)
        assert policy["max_redelivery_count"] == most


def test_a_failed_over_topic_goes_on_with_producers_of_its_own(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(10))
    source.publish(f"{space}/other", payloads(3))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders, f"{space}/other")
    plan = refused(here, "links.fail_over", link="eu", topics=orders)
    assert plan["code"] == "PLAN_REQUIRED"
    shown = plan["details"]["plan"]
    assert shown["reversible"] is False
    assert shown["diff"] == [
        {
            "path": f"topics{orders}",
            "before": {"mirror_of": f"eu:{orders}"},
            "after": {"copied_until": {orders: 10}},
        }
    ]
    done = here.ask("links.fail_over", link="eu", topics=orders)
    assert [each["topic"] for each in done["topics"]] == [orders]
    here.publish(orders, payloads(5, 10))
    source.publish(f"{space}/other", payloads(3))
    source.ask("links.reopen", topic=orders)  # the fail-over has fenced it
    source.publish(orders, [b"too late"])
    until_copied(source, here, f"{space}/other")
    here.kill()
    here.start()
    assert [offset for offset, _, _ in read(here, orders, 15)] == list(range(15))
    assert here.ask("topics.describe", topic=orders)["mirror_of"] is None
    left = until("the standing", lambda: described(here)["left_out"])
    assert [(each["topic"], each["state"]) for each in left] == [(orders, "failed_over")]
    here.ask("links.fail_over", link="eu")
    assert described(here)["state"] == "failed_over"
    here.publish(f"{space}/other", payloads(1))


def test_a_link_is_paused_resumed_and_deleted_by_a_plan_and_the_deletion_undone(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(10))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    here.ask("links.pause", link="eu")
    source.publish(orders, payloads(10, 10))
    source.publish(f"{space}/later", payloads(1))
    assert described(here)["state"] == "paused"
    assert ends(here, orders) == {orders: 10}
    here.ask("links.resume", link="eu")
    until_copied(source, here, orders, f"{space}/later")

    assert refused(here, "links.delete", link="eu")["code"] == "PLAN_REQUIRED"
    gone = here.ask("links.delete", link="eu")
    assert gone["read_only_topics"] == 2
    assert refused(here, "links.describe", link="eu")["code"] == "LINK_NOT_FOUND"
    assert refused(here, "messages.publish", topic=orders, payload="x")["code"] == "MIRROR_READ_ONLY"
    source.publish(orders, payloads(10, 20))
    here.ask("changes.undo", call_id=gone["call_id"])
    until_copied(source, here, orders)


def test_a_paused_link_is_failed_over_with_what_is_copied(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(10))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    here.ask("links.pause", link="eu")
    source.publish(orders, payloads(3, 10))
    (mirror,) = until("the mirror", lambda: described(here)["mirrors"])
    assert (mirror["state"], mirror["copied_until"], mirror["lag_messages"]) == ("paused", 10, None)
    done = here.ask("links.fail_over", link="eu")
    (topic,) = done["topics"]
    assert (topic["copied_until"], done["source_fenced"], done["missing_messages"]) == ({orders: 10}, True, 3)
    here.publish(orders, payloads(1))
    assert refused(source, "messages.publish", topic=orders, payload="x")["code"] == "FAILED_OVER"
    assert "was failed over" in refused(here, "links.fail_over", link="eu")["message"]


def test_links_that_cannot_mirror_anything_say_why(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    here.ask("namespaces.create", namespace=space[1:])
    here.publish(f"{space}/orders", payloads(3))
    link_to(here, here, "self", topics=f"{space}/*", rename="again-")
    link_to(here, source, "none", topics=f"{space}/*")
    administration = source.admin.replace("http://", "danube://")
    here.ask("links.create", link="wrong", source=administration, topics=f"{space}/*")
    whys = {
        "self": "and this cluster have the same name",
        "none": "no topic of the source matches",
        "wrong": "client port of a pydanube broker",
    }
    for link, why in whys.items():
        until(why, lambda link=link, why=why: why in str(described(here, link)["why"]))
    assert ends(here, f"{space}/again-orders") == {}
    assert described(here, "self")["lag_messages"] is None
    assert "no mirrors" in refused(here, "links.fail_over", link="none")["message"]


def test_what_cannot_be_mirrored_is_named(source: BrokerProcess, here: BrokerProcess, space: str) -> None:
    orders = f"{space}/orders"
    source.ask("topics.create", topic=f"{space}/fleeting", dispatch_strategy="non_reliable")
    source.publish(orders, payloads(3))
    here.ask("namespaces.create", namespace=space[1:])
    here.publish(orders, payloads(7))
    link_to(here, source, topics=f"{space}/*")
    left = until("the standings", lambda: described(here)["left_out"])
    assert {each["topic"]: each["state"] for each in left} == {
        f"{space}/fleeting": "left_out",
        orders: "name_taken",
    }
    assert ends(here, orders) == {orders: 7}, "a topic of this cluster is never written"
    link_to(here, source, "renamed", topics=orders, rename="eu-")
    until("the renamed mirror", lambda: ends(here, f"{space}/eu-orders") == {f"{space}/eu-orders": 3})


def test_a_subject_that_differs_is_refused_or_mirrored_under_the_prefix(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"

    def register(broker: BrokerProcess, subject: str, field: str) -> int:
        definition = json.dumps({"type": "object", "properties": {field: {"type": "string"}}})
        found = broker.ask(
            "schemas.register", subject=subject, schema_type="json_schema", schema_definition=definition
        )
        return int(found["schema_id"])

    register(source, "before", "a")
    theirs = register(source, "order", "a")
    assert register(here, "order", "b") != theirs
    source.ask("topics.create", topic=orders)
    source.ask("topics.configure_schema", topic=orders, schema_subject="order")
    source.publish(f"{space}/plain", payloads(3))
    link_to(here, source, topics=f"{space}/*")
    (left,) = until("the refusal", lambda: described(here)["left_out"])
    assert (left["topic"], left["state"]) == (orders, "schema_mismatch")
    assert "--rename" in left["why"]
    until_copied(source, here, f"{space}/plain")
    found = until("the finding", lambda: finding(here, "link_not_copying"))
    assert found["evidence"]["states"] == {"schema_mismatch": 1}
    assert [each["operation"] for each in found["next"]] == ["links.describe", "schemas.list"]
    until("the metric", lambda: 'danube_link_logs{link="eu",state="schema_mismatch"} 1' in metrics(here))
    link_to(here, source, "renamed", topics=orders, rename="eu-")
    until("the renamed mirror", lambda: ends(here, f"{space}/eu-orders") == {f"{space}/eu-orders": 0})
    assert here.ask("topics.describe", topic=f"{space}/eu-orders")["schema"]["subject"] == "eu-order"
    assert int(here.ask("schemas.get", subject="eu-order")["schema_id"]) == theirs
    assert '"b"' in here.ask("schemas.get", subject="order")["untrusted"]["schema_definition"]


def test_a_topic_that_was_made_again_at_the_source_is_not_appended_to_its_mirror(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(10))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    source.ask("topics.delete", topic=orders)
    until("the deletion", lambda: [m["state"] for m in described(here)["mirrors"]] == ["source_deleted"])
    source.publish(orders, payloads(20))
    until("the new topic", lambda: described(here)["state"] == "diverged")
    assert ends(here, orders) == {orders: 10}
    here.ask("links.fail_over", link="eu", topics=orders)
    here.publish(orders, payloads(1))


def test_a_source_that_was_restored_to_an_older_state_is_never_appended_to_its_mirror(
    tmp_path: Path, here: BrokerProcess, space: str
) -> None:
    """Neither while it is behind the mirror, nor once it is ahead, has its messages in objects and the mirror restarts."""
    orders = f"{space}/orders"
    flushing = {"DANUBE_TIER__FLUSH_AGE": "300ms"}
    with BrokerProcess(tmp_path / "source", environment=flushing) as source:
        source.ask("namespaces.create", namespace=space[1:])
        source.publish(orders, payloads(10))
        source.kill()
        shutil.copytree(source.data_dir, tmp_path / "backup")
        source.start()
        source.publish(orders, payloads(10, 10))
        source.ask("subscriptions.create", topic=orders, subscription="billing", start="earliest")
        link_to(here, source, topics=f"{space}/*")
        until_copied(source, here, orders)
        wanted = {"topic": orders, "subscription": "billing"}
        until("the subscription", lambda: "result" in here.rpc("subscriptions.describe", **wanted))
        source.kill()
        shutil.rmtree(source.data_dir)
        shutil.copytree(tmp_path / "backup", source.data_dir)
        source.start()

        def states(why: str) -> bool:
            (mirror,) = described(here)["mirrors"]
            return mirror["state"] == "diverged" and why in mirror["why"]

        until("the older state", lambda: states("ends at offset 10, and its mirror at 20"))
        source.publish(orders, payloads(25, 100))
        tiered = lambda: source.ask("topics.describe", topic=orders)["tiered_offset"]  # noqa: E731
        until("objects", lambda: tiered() == 35)
        until("the other messages", lambda: states("another message at offset 19"))
        here.kill()
        here.start()
        until("the same after a crash", lambda: states("another message at offset 19"))
        assert (described(here)["state"], ends(here, orders)) == ("diverged", {orders: 20})
        assert "result" in here.rpc("subscriptions.describe", **wanted), (
            "the source has lost it, and the mirror not"
        )
        assert 'danube_link_logs{link="eu",state="diverged"} 1' in metrics(here)
        found = until("the finding", lambda: finding(here, "link_not_copying"))
        assert (found["severity"], found["evidence"]["states"]) == ("critical", {"diverged": 1})
        assert [each["operation"] for each in found["next"]] == ["links.describe", "links.fail_over"]
        here.ask("links.fail_over", link="eu")
        here.publish(orders, payloads(1))
        assert read(here, orders, 21)[19][1] == b"message 19"


def test_a_mirror_follows_the_start_of_its_source_and_begins_with_the_latest_if_asked(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(100))
    link_to(here, source, "whole", rename="whole-", topics=f"{space}/*")
    link_to(here, source, "new", rename="new-", start="latest", topics=f"{space}/*")
    until("the copy", lambda: ends(here, f"{space}/whole-orders") == {f"{space}/whole-orders": 100})
    until("the begin", lambda: ends(here, f"{space}/new-orders") == {f"{space}/new-orders": 100})
    source.ask("topics.truncate", topic=orders, before="offset:60")
    source.publish(orders, payloads(1))

    def starts() -> bool:
        found = [here.ask("topics.describe", topic=f"{space}/{name}-orders") for name in ("whole", "new")]
        return [(each["start_offset"], each["next_offset"]) for each in found] == [(60, 101), (100, 101)]

    until("the source's start", starts)
    here.kill()
    here.start()
    until("the same after a crash", starts)


def test_a_source_that_is_away_is_said_and_copying_goes_on_when_it_is_back(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(10))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    source.kill()
    until("the state", lambda: described(here)["state"] == "source_unreachable")
    assert any("fail-over" in step for step in described(here)["next_steps"])
    source.start()
    source.publish(orders, payloads(10))
    until_copied(source, here, orders)
    until("the state", lambda: described(here)["state"] == "copying")
    source.kill()
    here.kill()
    here.start()  # without its source
    until("the state", lambda: described(here)["state"] == "source_unreachable")
    assert ends(here, orders) == {orders: 20}


def test_a_fail_over_fences_the_source_and_loses_nothing(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders, parts = f"{space}/orders", f"{space}/parts"
    source.publish(orders, payloads(10))
    source.ask("topics.create", topic=parts, partitions=2)
    source.ask("subscriptions.create", topic=orders, subscription="billing", start="earliest")
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders, parts)
    with connect(source.url, retry=Retry(max_elapsed_s=1)) as client:
        with client.producer(orders) as producer, client.consumer(orders, "billing") as consumer:
            next(consumer).ack()
            with ThreadPoolExecutor(1) as beside:
                failing_over = beside.submit(lambda: here.ask("links.fail_over", link="eu"))
                sent: list[int] = []

                def produce() -> None:
                    for number in count():
                        producer.send(b"%d" % number)
                        sent.append(number)

                with pytest.raises(FailedOver, match=f"danube links reopen {space}/orders"):
                    produce()
            done = failing_over.result()
        assert (done["source_fenced"], done["source"], done["missing_messages"]) == (True, None, 0)
        assert here.rpc("topics.describe", topic=orders)["result"]["next_offset"] >= 10 + len(sent)
        assert ends(here, orders) == ends(source, orders)
        assert source.ask("topics.describe", topic=orders)["failed_over_to"] is not None
        for refused_here in (
            lambda: client.producer(orders).__enter__(),
            lambda: client.consumer(orders, "billing").__enter__(),
        ):
            with pytest.raises(FailedOver):
                refused_here()
        with client.reader(orders, stop="head") as reader:  # what is there can be read
            assert len(list(reader)) == ends(source, orders)[orders]
        source.kill()
        source.start()
        away = refused(source, "messages.publish", topic=parts, payload="x")
        assert away["code"] == "FAILED_OVER"
        assert away["message"].endswith(f"danube links reopen {parts}"), (
            "the topic, and none of its partitions"
        )
        back = source.ask("links.reopen", topic=f"{parts}-part-0")
        assert back["topic"] == parts, "a fail-over is of all partitions, and so is what ends it"
        assert back["was_failed_over_to"]
        source.publish(parts, payloads(2))
        assert refused(source, "links.reopen", topic=parts)["code"] == "INVALID_ARGUMENT"


def test_a_fail_over_goes_on_in_an_epoch_above_those_of_the_source(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    for _ in range(3):  # each start of a broker alone is another epoch of its topics
        source.publish(orders, payloads(1))
        source.kill()
        source.start()
    source.publish(orders, payloads(1))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    (topic_id,) = topic_ids(here, orders).values()
    before = int(here.ask("topics.describe", topic=orders)["epoch"])
    here.ask("links.fail_over", link="eu")
    here.publish(orders, payloads(1))
    after = int(here.ask("topics.describe", topic=orders)["epoch"])
    here.kill()
    stored = sorted(stored_batches(here.data_dir, topic_id).items())
    *copied, own = [read_broker_part(batch[:BROKER_PART_BYTES]).epoch for _, batch in stored]
    assert copied == [1, 2, 3, 4]
    assert (before, own) == (1, after)
    assert own > max(copied)
    here.start()  # the journal agrees with the metadata
    here.publish(orders, payloads(1))
    assert len(read(here, orders, 6)) == 6


def test_an_sdk_producer_of_the_source_goes_on_at_the_mirror_exactly_once(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    """Its session is resumed after the fail-over, and a batch that was copied is answered as a duplicate."""
    orders = f"{space}/orders"
    source.ask("topics.create", topic=orders)
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    address = f"{source.url.replace('http', 'danube')}|{here.url.partition('://')[2]}"
    with connect(address, retry=Retry(max_elapsed_s=60)) as client, client.producer(orders) as producer:
        numbers = iter(range(10**9))
        stop = Event()

        def produce() -> int:
            count = 0
            while not stop.is_set():
                producer.send(b"%d" % next(numbers))
                count += 1
            return count

        with ThreadPoolExecutor(1) as beside:
            producing = beside.submit(produce)
            until("messages", lambda: (ends(here, orders) or {orders: 0})[orders] > 20)
            done = here.ask("links.fail_over", link="eu")
            at = done["topics"][0]["copied_until"][orders]
            until("more messages", lambda: ends(here, orders)[orders] > at + 20)
            stop.set()
            count = producing.result()
        assert producer.statistics().sessions == 1, "it went on in its session"
    assert done["missing_messages"] == 0
    assert [data for _, data, _ in read(here, orders, count)] == [b"%d" % n for n in range(count)]
    assert ends(here, orders) == {orders: count}


def test_a_session_that_was_opened_just_before_the_fence_goes_on_at_the_mirror(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    """Also one that has sent nothing, with which no batch is copied."""
    orders = f"{space}/orders"
    source.publish(orders, payloads(1))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    plan = refused(here, "links.fail_over", link="eu")["details"]["plan"]["plan_token"]
    address = f"{source.url.replace('http', 'danube')}|{here.url.partition('://')[2]}"
    with connect(address, retry=Retry(max_elapsed_s=60)) as client, client.producer(orders) as producer:
        assert "result" in here.rpc("links.fail_over", link="eu", plan_token=plan)
        assert producer.send(b"second").offset == 1
        assert producer.statistics().sessions == 1
    assert ends(here, orders) == {orders: 2}


def test_a_source_that_does_not_answer_is_not_fenced_and_the_result_says_so(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(10))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    source.pause()
    done = here.ask("links.fail_over", link="eu")
    assert done["source_fenced"] is False
    assert "did not answer" in done["source"]
    here.publish(orders, payloads(1))
    source.resume()
    both = f"{source.url.replace('http', 'danube')}|{here.url.partition('://')[2]}"
    with connect(both) as client, client.producer(orders) as producer:  # the source takes producers, too
        producer.send(b"to the cluster that took it over last")
    assert ends(here, orders) == {orders: 12}


def test_a_client_of_two_clusters_says_what_each_answers_when_neither_takes_it(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(1))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    source.kill()
    both = f"{source.url.replace('http', 'danube')}|{here.url.partition('://')[2]}"
    with (
        connect(both, retry=Retry(max_elapsed_s=1)) as client,
        pytest.raises(
            Unavailable, match=rf"cannot be reached.*is a mirror \(eu:{space}/orders\) and was not failed"
        ),
        client.producer(orders),
    ):
        pass
    with (
        connect(both, retry=Retry(max_elapsed_s=1)) as client,
        pytest.raises(Unavailable, match="no cluster of this client"),
        client.producer(f"{space}/new"),
    ):
        pass
    assert ends(here, f"{space}/new") == {}, (
        "a topic is not made while a cluster does not say that it has none"
    )
    source.start()
    with connect(both) as client, client.producer(f"{space}/new") as producer:
        producer.send(b"x")
    assert ends(source, f"{space}/new") == {f"{space}/new": 1}


def test_two_opposite_links_on_disjoint_topics(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    """Active and active: each cluster writes its own topics, and mirrors those of the other under a prefix."""
    orders = f"{space}/orders"
    source.publish(orders, payloads(20))
    here.ask("namespaces.create", namespace=space[1:])
    here.publish(orders, payloads(30))
    link_to(here, source, "eu", rename="eu-", topics=f"{space}/*")
    link_to(source, here, "us", rename="us-", topics=f"{space}/*")
    until("the mirrors", lambda: ends(here, f"{space}/eu-orders") == {f"{space}/eu-orders": 20})
    until("the mirrors", lambda: ends(source, f"{space}/us-orders") == {f"{space}/us-orders": 30})
    source.publish(orders, payloads(5))
    until("more", lambda: ends(here, f"{space}/eu-orders") == {f"{space}/eu-orders": 25})
    for broker, link in ((here, "eu"), (source, "us")):
        (left,) = until("the other's mirror", lambda b=broker, n=link: described(b, n)["left_out"])
        assert (left["state"], "itself a mirror" in left["why"]) == ("left_out", True)
    assert [each["topic"] for each in here.ask("topics.list", filter=f"{space}/*")["items"]] == [
        f"{space}/eu-orders",
        orders,
    ]
    here.ask("links.fail_over", link="eu")
    here.publish(f"{space}/eu-orders", payloads(1))
    assert refused(source, "messages.publish", topic=orders, payload="x")["code"] == "FAILED_OVER"
    here.publish(orders, payloads(1))
    until("the other way goes on", lambda: ends(source, f"{space}/us-orders") == {f"{space}/us-orders": 31})


def test_a_gap_behind_retention_is_named(source: BrokerProcess, here: BrokerProcess, space: str) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(10))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    here.ask("links.pause", link="eu")
    source.publish(orders, payloads(50))
    source.ask("topics.truncate", topic=orders, before="offset:40")
    here.ask("links.resume", link="eu")
    until_copied(source, here, orders)
    (mirror,) = described(here)["mirrors"]
    assert mirror["gap"] == "10–40"
    until(
        "the finding",
        lambda: "mirror_has_a_gap" in [each["rule"] for each in here.ask("diagnose.cluster")["findings"]],
    )


def test_a_link_whose_mirrors_are_all_open_can_be_failed_over(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    """As after a fail-over that was cut off before its record was written."""
    orders = f"{space}/orders"
    source.publish(orders, payloads(10))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    here.ask("links.fail_over", link="eu", topics=orders)
    until("no mirror", lambda: not described(here)["mirrors"] and described(here)["left_out"])
    done = here.ask("links.fail_over", link="eu")
    assert (done["topics"], done["source_fenced"], done["missing_messages"]) == ([], False, None)
    assert described(here)["state"] == "failed_over"


def test_a_source_whose_messages_were_all_deleted_is_a_gap_at_once(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(10))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    here.ask("links.pause", link="eu")
    source.publish(orders, payloads(10))
    source.ask("topics.truncate", topic=orders, before="offset:20")
    here.ask("links.resume", link="eu")
    until_copied(source, here, orders)
    (mirror,) = described(here)["mirrors"]
    assert (mirror["gap"], mirror["lag_messages"]) == ("10–20", 0)
    here.kill()
    here.start()
    source.publish(orders, payloads(1))
    until_copied(source, here, orders)
    assert described(here)["state"] == "copying", "the message before the gap is not compared"


def test_a_full_disk_of_the_mirror_is_said_and_copying_goes_on_when_there_is_room(
    source: BrokerProcess, tmp_path: Path, space: str
) -> None:
    orders = f"{space}/orders"
    with (
        small_disk(tmp_path / "small", "48m") as folder,
        BrokerProcess(tmp_path / "full", data_dir=folder / "data") as here,
    ):
        link_to(here, source, topics=f"{space}/*")
        for _ in range(20):
            source.publish(orders, [random.randbytes(100_000)] * 20)

        def is_full() -> bool:
            link = described(here)
            states = {each["state"] for each in link["mirrors"]}
            return states == {"failed"} and link["state"] == "copying" and "Free space" in link["why"]

        until("the full disk", is_full)
        found = until("the finding", lambda: finding(here, "link_not_copying"))
        assert found["evidence"]["states"] == {"failed": 1}
        assert [each["operation"] for each in found["next"]] == ["links.describe", "brokers.status"]
        assert 'danube_link_logs{link="eu",state="failed"} 1' in metrics(here)
        subprocess.run(["mount", "-o", "remount,size=400m", str(folder)], check=True)
        until_copied(source, here, orders)
        assert described(here)["mirrors"][0]["gap"] is None


@pytest.mark.usefixtures("space")  # which deletes the link here
def test_an_expired_certificate_of_the_source_is_named_and_a_renewed_one_is_taken(
    tmp_path: Path, here: BrokerProcess
) -> None:
    orders = "/default/certified"
    folder = CertificateFolder(path=tmp_path / "certificates")

    def certify(days: int) -> None:
        folder.make(("127.0.0.1",), principal="ann", days=days, again=True)

    certify(2)
    tls = {
        "DANUBE_TLS__CERT": str(folder.file("server.crt")),
        "DANUBE_TLS__KEY": str(folder.file("server.key")),
    }

    def publish(source: BrokerProcess) -> None:
        tls = Tls(ca=str(folder.file("ca.crt")))
        with connect(source.url, tls=tls) as client, client.producer(orders) as producer:
            producer.send(b"x")

    authorities = {"SSL_CERT_FILE": str(folder.file("ca.crt"))}
    with (
        BrokerProcess(tmp_path / "source", environment=tls) as source,
        BrokerProcess(tmp_path / "trusting", environment=authorities) as trusting,
    ):
        publish(source)
        link_to(here, source, topics=orders)
        link_to(trusting, source, topics=orders)
        until("the copy", lambda: ends(trusting, orders) == {orders: 1})
        assert "certificate is not accepted" in until("the reason", lambda: described(here)["why"])
        assert described(here)["state"] == "source_unreachable"
        assert 'danube_link_logs{link="eu",state="source_unreachable"} 1' in metrics(here)
        source.kill()
        certify(0)
        source.start()
        until("the reason", lambda: "certificate has expired" in str(described(trusting)["why"]))
        assert described(trusting)["state"] == "source_unreachable"
        assert any("its certificate" in step for step in described(trusting)["next_steps"])
        found = until("the finding", lambda: finding(trusting, "link_not_copying"))
        assert "certificate has expired" in found["summary"]
        source.kill()
        certify(2)
        source.start()
        publish(source)
        until("the copy", lambda: ends(trusting, orders) == {orders: 2})


def test_a_mirror_that_was_deleted_is_made_and_copied_again(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"
    source.publish(orders, payloads(10))
    link_to(here, source, topics=f"{space}/*")
    until_copied(source, here, orders)
    here.ask("topics.delete", topic=orders)
    until_copied(source, here, orders)
    assert read(here, orders, 10) == read(source, orders, 10)


def test_a_link_copies_no_more_than_its_limit(source: BrokerProcess, here: BrokerProcess, space: str) -> None:
    orders = f"{space}/orders"
    source.publish(orders, [bytes(1000)] * 3000)  # 3 MB
    begun_s = time.monotonic()
    link_to(here, source, max_bytes_per_s=1_000_000, topics=f"{space}/*")
    until_copied(source, here, orders)
    assert time.monotonic() - begun_s > 1.5  # a piece of up to 1 MB leaves at once, and each later one waits
    assert described(here)["max_bytes_per_s"] == 1_000_000


def test_official_clients_write_the_source_read_the_mirror_and_go_on_there(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    """The official Python client, unmodified, at both ends."""
    orders = f"{space}/orders"
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(SCENARIOS), "mirrored", source.url, here.url, orders],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=official_client_environment(),
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None

        def said(word: str) -> None:
            assert client.stdout is not None
            assert client.stdout.readline() == f"{word}\n"

        def go_on() -> None:
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()

        said("sent")
        link_to(here, source, topics=f"{space}/*")
        until_copied(source, here, orders)
        go_on()
        said("reading")
        said("read")
        done = here.ask("links.fail_over", link="eu")
        assert (done["source_fenced"], done["missing_messages"]) == (True, 0), done
        go_on()
        said("ok")
    assert client.returncode == 0
    assert len(read(here, orders, 24)) == 24


def test_official_clients_are_refused_by_the_source_and_work_at_the_mirror(
    source: BrokerProcess, here: BrokerProcess, space: str
) -> None:
    orders = f"{space}/orders"

    async def run() -> None:
        async with RawClient(source.url) as official:
            number = await official.create_producer(orders, "shop")
            for each in payloads(5):
                await official.send(orders, number, each, name="shop")
            await to_thread.run_sync(lambda: link_to(here, source, topics=f"{space}/*"))
            await to_thread.run_sync(lambda: until_copied(source, here, orders))
            done = await to_thread.run_sync(lambda: here.ask("links.fail_over", link="eu"))
            assert done["source_fenced"], done
            with pytest.raises(Exception, match="FAILED_OVER"):
                await official.send(orders, number, b"late", name="shop")
            with pytest.raises(Exception, match="FAILED_OVER"):
                await official.create_producer(orders, "another")
        async with RawClient(here.url) as official:
            number = await official.create_producer(orders, "shop")
            await official.send(orders, number, b"goes on", name="shop")

    anyio.run(run)
    assert [data for _, data, _ in read(here, orders, 6)] == [*payloads(5), b"goes on"]
