"""Two brokers alone, each a cluster: a link mirrors topics of the one at the other, until they are failed over."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
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
from pydanube_admin.remote import OpsClient
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
from tests.support.small_disk import small_disk

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


def by_socket(broker: BrokerProcess, operation: str, **arguments: Any) -> dict[str, Any]:
    """Call an operation over the broker's own socket, by which its owner may do everything."""

    async def call() -> dict[str, Any]:
        async with OpsClient(f"unix:{broker.data_dir}/admin.sock") as ops:
            return await ops.call(operation, arguments)

    return anyio.run(call)


def metrics(broker: BrokerProcess) -> str:
    with urlopen(f"{broker.metrics}/metrics", timeout=60) as answer:
        found: bytes = answer.read()
    return found.decode()


def finding(broker: BrokerProcess, rule: str) -> dict[str, Any] | None:
    findings = broker.ask("diagnose.cluster")["findings"]
    return next((each for each in findings if each["rule"] == rule), None)


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
    source.ask("links.reopen", topic=ORDERS)  # the fail-over has fenced it
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


def test_a_subject_that_differs_is_refused_or_mirrored_under_the_prefix(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    def register(broker: BrokerProcess, subject: str, field: str) -> int:
        definition = json.dumps({"type": "object", "properties": {field: {"type": "string"}}})
        found = broker.ask(
            "schemas.register", subject=subject, schema_type="json_schema", schema_definition=definition
        )
        return int(found["schema_id"])

    register(source, "before", "a")
    theirs = register(source, "order", "a")
    assert register(here, "order", "b") != theirs
    source.ask("topics.create", topic=ORDERS)
    source.ask("topics.configure_schema", topic=ORDERS, schema_subject="order")
    source.publish("/default/plain", payloads(3))
    link_to(here, source)
    (left,) = until("the refusal", lambda: described(here)["left_out"])
    assert (left["topic"], left["state"]) == (ORDERS, "schema_mismatch")
    assert "--rename" in left["why"]
    until_copied(source, here, "/default/plain")
    found = until("the finding", lambda: finding(here, "link_not_copying"))
    assert found["evidence"]["states"] == {"schema_mismatch": 1}
    assert [each["operation"] for each in found["next"]] == ["links.describe", "schemas.list"]
    until("the metric", lambda: 'danube_link_logs{link="eu",state="schema_mismatch"} 1' in metrics(here))
    link_to(here, source, "renamed", topics=ORDERS, rename="eu-")
    until("the renamed mirror", lambda: ends(here, "/default/eu-orders") == {"/default/eu-orders": 0})
    assert here.ask("topics.describe", topic="/default/eu-orders")["schema"]["subject"] == "eu-order"
    assert int(here.ask("schemas.get", subject="eu-order")["schema_id"]) == theirs
    assert '"b"' in here.ask("schemas.get", subject="order")["untrusted"]["schema_definition"]


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


def test_a_source_that_was_restored_to_an_older_state_is_never_appended_to_its_mirror(
    tmp_path: Path, here: BrokerProcess
) -> None:
    """Neither while it is behind the mirror, nor once it is ahead, has its messages in objects and the mirror restarts."""
    flushing = {"DANUBE_TIER__FLUSH_AGE": "300ms"}
    with BrokerProcess(tmp_path / "source", environment=flushing) as source:
        source.publish(ORDERS, payloads(10))
        source.kill()
        shutil.copytree(source.data_dir, tmp_path / "backup")
        source.start()
        source.publish(ORDERS, payloads(10, 10))
        source.ask("subscriptions.create", topic=ORDERS, subscription="billing", start="earliest")
        link_to(here, source)
        until_copied(source, here, ORDERS)
        wanted = {"topic": ORDERS, "subscription": "billing"}
        until("the subscription", lambda: "result" in here.rpc("subscriptions.describe", **wanted))
        source.kill()
        shutil.rmtree(source.data_dir)
        shutil.copytree(tmp_path / "backup", source.data_dir)
        source.start()

        def states(why: str) -> bool:
            (mirror,) = described(here)["mirrors"]
            return mirror["state"] == "diverged" and why in mirror["why"]

        until("the older state", lambda: states("ends at offset 10, and its mirror at 20"))
        source.publish(ORDERS, payloads(25, 100))
        tiered = lambda: source.ask("topics.describe", topic=ORDERS)["tiered_offset"]  # noqa: E731
        until("objects", lambda: tiered() == 35)
        until("the other messages", lambda: states("another message at offset 19"))
        here.kill()
        here.start()
        until("the same after a crash", lambda: states("another message at offset 19"))
        assert (described(here)["state"], ends(here, ORDERS)) == ("diverged", {ORDERS: 20})
        assert "result" in here.rpc("subscriptions.describe", **wanted), (
            "the source has lost it, and the mirror not"
        )
        assert 'danube_link_logs{link="eu",state="diverged"} 1' in metrics(here)
        found = until("the finding", lambda: finding(here, "link_not_copying"))
        assert (found["severity"], found["evidence"]["states"]) == ("critical", {"diverged": 1})
        assert [each["operation"] for each in found["next"]] == ["links.describe", "links.fail_over"]
        here.ask("links.fail_over", link="eu")
        here.publish(ORDERS, payloads(1))
        assert read(here, ORDERS, 21)[19][1] == b"message 19"


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


def test_a_fail_over_fences_the_source_and_loses_nothing(source: BrokerProcess, here: BrokerProcess) -> None:
    source.publish(ORDERS, payloads(10))
    source.ask("topics.create", topic=PARTS, partitions=2)
    source.ask("subscriptions.create", topic=ORDERS, subscription="billing", start="earliest")
    link_to(here, source)
    until_copied(source, here, ORDERS, PARTS)
    with connect(source.url, retry=Retry(max_elapsed_s=1)) as client:
        with client.producer(ORDERS) as producer, client.consumer(ORDERS, "billing") as consumer:
            next(consumer).ack()
            with ThreadPoolExecutor(1) as beside:
                failing_over = beside.submit(lambda: here.ask("links.fail_over", link="eu"))
                sent: list[int] = []

                def produce() -> None:
                    for number in count():
                        producer.send(b"%d" % number)
                        sent.append(number)

                with pytest.raises(FailedOver, match="danube links reopen /default/orders"):
                    produce()
            done = failing_over.result()
        assert (done["source_fenced"], done["source"], done["missing_messages"]) == (True, None, 0)
        assert here.rpc("topics.describe", topic=ORDERS)["result"]["next_offset"] >= 10 + len(sent)
        assert ends(here, ORDERS) == ends(source, ORDERS)
        assert source.ask("topics.describe", topic=ORDERS)["failed_over_to"] is not None
        for refused_here in (
            lambda: client.producer(ORDERS).__enter__(),
            lambda: client.consumer(ORDERS, "billing").__enter__(),
        ):
            with pytest.raises(FailedOver):
                refused_here()
        with client.reader(ORDERS, stop="head") as reader:  # what is there can be read
            assert len(list(reader)) == ends(source, ORDERS)[ORDERS]
        source.kill()
        source.start()
        assert refused(source, "messages.publish", topic=PARTS, payload="x")["code"] == "FAILED_OVER"
        back = source.ask("links.reopen", topic=PARTS)
        assert back["was_failed_over_to"]
        source.publish(PARTS, payloads(2))
        assert refused(source, "links.reopen", topic=PARTS)["code"] == "INVALID_ARGUMENT"


def test_a_fail_over_goes_on_in_an_epoch_above_those_of_the_source(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    for _ in range(3):  # each start of a broker alone is another epoch of its topics
        source.publish(ORDERS, payloads(1))
        source.kill()
        source.start()
    source.publish(ORDERS, payloads(1))
    link_to(here, source)
    until_copied(source, here, ORDERS)
    (topic_id,) = topic_ids(here, ORDERS).values()
    before = int(here.ask("topics.describe", topic=ORDERS)["epoch"])
    here.ask("links.fail_over", link="eu")
    here.publish(ORDERS, payloads(1))
    after = int(here.ask("topics.describe", topic=ORDERS)["epoch"])
    here.kill()
    stored = sorted(stored_batches(here.data_dir, topic_id).items())
    *copied, own = [read_broker_part(batch[:BROKER_PART_BYTES]).epoch for _, batch in stored]
    assert copied == [1, 2, 3, 4]
    assert (before, own) == (1, after)
    assert own > max(copied)
    here.start()  # the journal agrees with the metadata
    here.publish(ORDERS, payloads(1))
    assert len(read(here, ORDERS, 6)) == 6


def test_an_sdk_producer_of_the_source_goes_on_at_the_mirror_exactly_once(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    """Its session is resumed after the fail-over, and a batch that was copied is answered as a duplicate."""
    source.ask("topics.create", topic=ORDERS)
    link_to(here, source)
    until_copied(source, here, ORDERS)
    address = f"{source.url.replace('http', 'danube')}|{here.url.partition('://')[2]}"
    with connect(address, retry=Retry(max_elapsed_s=60)) as client, client.producer(ORDERS) as producer:
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
            until("messages", lambda: (ends(here, ORDERS) or {ORDERS: 0})[ORDERS] > 20)
            done = here.ask("links.fail_over", link="eu")
            at = done["topics"][0]["copied_until"][ORDERS]
            until("more messages", lambda: ends(here, ORDERS)[ORDERS] > at + 20)
            stop.set()
            count = producing.result()
        assert producer.statistics().sessions == 1, "it went on in its session"
    assert done["missing_messages"] == 0
    assert [data for _, data, _ in read(here, ORDERS, count)] == [b"%d" % n for n in range(count)]
    assert ends(here, ORDERS) == {ORDERS: count}


def test_a_source_that_does_not_answer_is_not_fenced_and_the_result_says_so(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(10))
    link_to(here, source)
    until_copied(source, here, ORDERS)
    source.pause()
    done = here.ask("links.fail_over", link="eu")
    assert done["source_fenced"] is False
    assert "did not answer" in done["source"]
    here.publish(ORDERS, payloads(1))
    source.resume()
    both = f"{source.url.replace('http', 'danube')}|{here.url.partition('://')[2]}"
    with connect(both) as client, client.producer(ORDERS) as producer:  # the source takes producers, too
        producer.send(b"to the cluster that took it over last")
    assert ends(here, ORDERS) == {ORDERS: 12}


def test_a_client_of_two_clusters_says_what_each_answers_when_neither_takes_it(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(1))
    link_to(here, source)
    until_copied(source, here, ORDERS)
    source.kill()
    both = f"{source.url.replace('http', 'danube')}|{here.url.partition('://')[2]}"
    with (
        connect(both, retry=Retry(max_elapsed_s=1)) as client,
        pytest.raises(
            Unavailable, match=r"cannot be reached.*is a mirror \(eu:/default/orders\) and was not failed"
        ),
        client.producer(ORDERS),
    ):
        pass
    with (
        connect(both, retry=Retry(max_elapsed_s=1)) as client,
        pytest.raises(Unavailable, match="no cluster of this client"),
        client.producer("/default/new"),
    ):
        pass
    assert ends(here, "/default/new") == {}, (
        "a topic is not made while a cluster does not say that it has none"
    )
    source.start()
    with connect(both) as client, client.producer("/default/new") as producer:
        producer.send(b"x")
    assert ends(source, "/default/new") == {"/default/new": 1}


def test_two_opposite_links_on_disjoint_topics(source: BrokerProcess, here: BrokerProcess) -> None:
    """Active and active: each cluster writes its own topics, and mirrors those of the other under a prefix."""
    source.publish(ORDERS, payloads(20))
    here.publish(ORDERS, payloads(30))
    link_to(here, source, "eu", rename="eu-")
    link_to(source, here, "us", rename="us-")
    until("the mirrors", lambda: ends(here, "/default/eu-orders") == {"/default/eu-orders": 20})
    until("the mirrors", lambda: ends(source, "/default/us-orders") == {"/default/us-orders": 30})
    source.publish(ORDERS, payloads(5))
    until("more", lambda: ends(here, "/default/eu-orders") == {"/default/eu-orders": 25})
    for broker, link in ((here, "eu"), (source, "us")):
        (left,) = until("the other's mirror", lambda b=broker, n=link: described(b, n)["left_out"])
        assert (left["state"], "itself a mirror" in left["why"]) == ("left_out", True)
    assert [each["topic"] for each in here.ask("topics.list")["items"]] == ["/default/eu-orders", ORDERS]
    here.ask("links.fail_over", link="eu")
    here.publish("/default/eu-orders", payloads(1))
    assert refused(source, "messages.publish", topic=ORDERS, payload="x")["code"] == "FAILED_OVER"
    here.publish(ORDERS, payloads(1))
    until("the other way goes on", lambda: ends(source, "/default/us-orders") == {"/default/us-orders": 31})


def test_a_gap_behind_retention_is_named(source: BrokerProcess, here: BrokerProcess) -> None:
    source.publish(ORDERS, payloads(10))
    link_to(here, source)
    until_copied(source, here, ORDERS)
    here.ask("links.pause", link="eu")
    source.publish(ORDERS, payloads(50))
    source.ask("topics.truncate", topic=ORDERS, before="offset:40")
    here.ask("links.resume", link="eu")
    until_copied(source, here, ORDERS)
    (mirror,) = described(here)["mirrors"]
    assert mirror["gap"] == "10–40"
    until(
        "the finding",
        lambda: "mirror_has_a_gap" in [each["rule"] for each in here.ask("diagnose.cluster")["findings"]],
    )


def test_a_source_whose_messages_were_all_deleted_is_a_gap_at_once(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(10))
    link_to(here, source)
    until_copied(source, here, ORDERS)
    here.ask("links.pause", link="eu")
    source.publish(ORDERS, payloads(10))
    source.ask("topics.truncate", topic=ORDERS, before="offset:20")
    here.ask("links.resume", link="eu")
    until_copied(source, here, ORDERS)
    (mirror,) = described(here)["mirrors"]
    assert (mirror["gap"], mirror["lag_messages"]) == ("10–20", 0)
    here.kill()
    here.start()
    source.publish(ORDERS, payloads(1))
    until_copied(source, here, ORDERS)
    assert described(here)["state"] == "copying", "the message before the gap is not compared"


def test_a_full_disk_of_the_mirror_is_said_and_copying_goes_on_when_there_is_room(
    source: BrokerProcess, tmp_path: Path
) -> None:
    with (
        small_disk(tmp_path / "small", "48m") as folder,
        BrokerProcess(tmp_path / "full", data_dir=folder / "data") as here,
    ):
        link_to(here, source)
        for _ in range(20):
            source.publish(ORDERS, [random.randbytes(100_000)] * 20)

        def is_full() -> bool:
            link = described(here)
            states = {each["state"] for each in link["mirrors"]}
            return states == {"failed"} and link["state"] == "copying" and "free space" in link["why"]

        until("the full disk", is_full)
        found = until("the finding", lambda: finding(here, "link_not_copying"))
        assert found["evidence"]["states"] == {"failed": 1}
        assert [each["operation"] for each in found["next"]] == ["links.describe", "brokers.status"]
        assert 'danube_link_logs{link="eu",state="failed"} 1' in metrics(here)
        subprocess.run(["mount", "-o", "remount,size=400m", str(folder)], check=True)
        until_copied(source, here, ORDERS)
        assert described(here)["mirrors"][0]["gap"] is None


def test_an_expired_certificate_of_the_source_is_named_and_a_renewed_one_is_taken(tmp_path: Path) -> None:
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
        with connect(source.url, tls=tls) as client, client.producer(ORDERS) as producer:
            producer.send(b"x")

    trusting = {"SSL_CERT_FILE": str(folder.file("ca.crt"))}
    with (
        BrokerProcess(tmp_path / "source", environment=tls) as source,
        BrokerProcess(tmp_path / "doubting") as doubting,
        BrokerProcess(tmp_path / "here", environment=trusting) as here,
    ):
        publish(source)
        link_to(doubting, source)
        link_to(here, source)
        until("the copy", lambda: ends(here, ORDERS) == {ORDERS: 1})
        assert "certificate is not accepted" in until("the reason", lambda: described(doubting)["why"])
        assert described(doubting)["state"] == "source_unreachable"
        assert 'danube_link_logs{link="eu",state="source_unreachable"} 1' in metrics(doubting)
        source.kill()
        certify(0)
        source.start()
        until("the reason", lambda: "certificate has expired" in str(described(here)["why"]))
        assert described(here)["state"] == "source_unreachable"
        assert any("its certificate" in step for step in described(here)["next_steps"])
        found = until("the finding", lambda: finding(here, "link_not_copying"))
        assert "certificate has expired" in found["summary"]
        source.kill()
        certify(2)
        source.start()
        publish(source)
        until("the copy", lambda: ends(here, ORDERS) == {ORDERS: 2})


def test_a_mirror_that_was_deleted_is_made_and_copied_again(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    source.publish(ORDERS, payloads(10))
    link_to(here, source)
    until_copied(source, here, ORDERS)
    here.ask("topics.delete", topic=ORDERS)
    until_copied(source, here, ORDERS)
    assert read(here, ORDERS, 10) == read(source, ORDERS, 10)


def test_a_link_copies_no_more_than_its_limit(source: BrokerProcess, here: BrokerProcess) -> None:
    source.publish(ORDERS, [bytes(1000)] * 3000)  # 3 MB
    begun_s = time.monotonic()
    link_to(here, source, max_bytes_per_s=1_000_000)
    until_copied(source, here, ORDERS)
    assert time.monotonic() - begun_s > 1.5  # a piece of up to 1 MB leaves at once, and each later one waits
    assert described(here)["max_bytes_per_s"] == 1_000_000


def test_official_clients_are_refused_by_the_source_and_work_at_the_mirror(
    source: BrokerProcess, here: BrokerProcess
) -> None:
    async def run() -> None:
        async with RawClient(source.url) as official:
            number = await official.create_producer(ORDERS, "shop")
            for each in payloads(5):
                await official.send(ORDERS, number, each, name="shop")
            await to_thread.run_sync(lambda: link_to(here, source))
            await to_thread.run_sync(lambda: until_copied(source, here, ORDERS))
            done = await to_thread.run_sync(lambda: here.ask("links.fail_over", link="eu"))
            assert done["source_fenced"], done
            with pytest.raises(Exception, match="FAILED_OVER"):
                await official.send(ORDERS, number, b"late", name="shop")
            with pytest.raises(Exception, match="FAILED_OVER"):
                await official.create_producer(ORDERS, "another")
        async with RawClient(here.url) as official:
            number = await official.create_producer(ORDERS, "shop")
            await official.send(ORDERS, number, b"goes on", name="shop")

    anyio.run(run)
    assert [data for _, data, _ in read(here, ORDERS, 6)] == [*payloads(5), b"goes on"]


def test_the_token_decides_what_is_mirrored_and_whether_the_source_is_fenced(
    tmp_path: Path, here: BrokerProcess
) -> None:
    """`Replicate` mirrors. A fence wants `data:fence`, too."""

    def token(name: str, roles: str) -> str:
        by_socket(source, "bindings.create", binding=name, principal=name, roles=roles, scope="cluster")
        return str(by_socket(source, "tokens.create", name=name)["token"])

    environment = {"DANUBE_AUTH__MODE": "required"}
    with BrokerProcess(tmp_path / "source", environment=environment) as source:
        by_socket(source, "roles.create", role="fencer", permissions="Replicate,data:fence")
        by_socket(source, "roles.create", role="replicator", permissions="Replicate")
        file = tmp_path / "token"
        file.write_text(token("nobody", "consumer"))
        for topic in (ORDERS, PARTS):
            with (
                connect(source.url, token=token(topic[9:], "producer")) as client,
                client.producer(topic) as one,
            ):
                one.send(b"x")
        link_to(here, source, token_file=str(file))
        until("the refusal", lambda: "data:mirror" in str(described(here)["why"]))
        file.write_text(token("replicator", "replicator"))  # read for each call
        until("the copies", lambda: (ends(here, ORDERS), ends(here, PARTS)) == ({ORDERS: 1}, {PARTS: 1}))
        done = here.ask("links.fail_over", link="eu", topics=ORDERS)
        assert (done["source_fenced"], "data:fence" in done["source"]) == (False, True), done
        file.write_text(token("fencer", "fencer"))
        assert here.ask("links.fail_over", link="eu", topics=PARTS)["source_fenced"]
