"""Quotas on a real broker: what is made, connected, published, delivered and asked for, by namespace and by principal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio as aio
import pytest
from pydanube import Producer, Retry, connect
from pydanube.wire.ops_channel import OpsChannel
from pydanube_broker.settings.load import load_settings
from pydanube_core.errors import ClusterError, InvalidArgument, QuotaExceeded
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.ops_call import call_request

from tests.cli.test_locks_live import Locked, give, locked_broker
from tests.support.waiting import until

LONG_S = 60


@pytest.fixture(scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Locked]:
    async with locked_broker(tmp_path_factory.mktemp("quotas")) as made:
        await give(made, "admin", "admin")
        for namespace in ("shop", "other"):
            await made.call("admin", "namespaces.create", namespace=namespace)
            await give(made, namespace, "admin", "namespace", namespace)
        yield made


async def set_quota(locked: Locked, namespace: str = "shop", **limits: int | None) -> str:
    answer = await locked.call("admin", "quotas.set", namespace=namespace, limits=limits)
    return str(answer["call_id"])


async def many(producer: Producer, number: int) -> None:
    for _ in range(number):
        await producer.send(bytes(1000))


async def test_topics_and_subscriptions_beyond_their_number_are_refused_whoever_makes_them(
    locked: Locked,
) -> None:
    await set_quota(locked, topics=4, subscriptions=1)
    await locked.call("shop", "topics.create", topic="/shop/counted", partitions=3)
    url, token = locked.broker.broker_url, locked.tokens["shop"]
    async with connect(url, token=token) as client:
        async with client.producer("/shop/first") as producer:  # made by its producer
            await producer.send(b"x")
        made = (locked.code("shop", "topics.create", {"topic": f"/shop/many-{n}"}) for n in range(20))
        assert set(await asyncio.gather(*made)) == {"QUOTA_EXCEEDED"}
        async with client.consumer("/shop/first", "one"):
            pass
        refused = {"topic": "/shop/first", "subscription": "two"}
        assert await locked.code("shop", "subscriptions.create", refused) == "QUOTA_EXCEEDED"
        await locked.call("shop", "topics.create", topic="/shop/first-again", plan_only=True)  # only planned
        assert await locked.code("other", "topics.create", {"topic": "/other/first"}) == ""
    await set_quota(locked, topics=None, subscriptions=None)
    assert await locked.code("shop", "topics.create", {"topic": "/shop/many-0"}) == ""


async def test_many_who_make_topics_at_once_do_not_make_more_than_there_may_be(locked: Locked) -> None:
    await set_quota(locked, "other", topics=10)
    made = (locked.code("other", "topics.create", {"topic": f"/other/at-once-{n}"}) for n in range(30))
    codes = await asyncio.gather(*made)
    topics = (await locked.call("admin", "topics.list", namespace="other", limit=100))["items"]
    assert len(topics) == 10
    assert sorted(set(codes)) == ["", "QUOTA_EXCEEDED"]
    await set_quota(locked, "other", topics=None)


async def test_producers_are_counted_while_they_are_there(locked: Locked) -> None:
    await set_quota(locked, producers=1)
    async with connect(
        locked.broker.broker_url, token=locked.tokens["shop"], retry=Retry(max_elapsed_s=0.5)
    ) as client:
        async with client.producer("/shop/produced"):
            with pytest.raises(QuotaExceeded, match="namespace shop has 1 of 1 producers"):
                async with client.producer("/shop/produced-too"):
                    pass
        async with asyncio.timeout(LONG_S), client.producer("/shop/produced-too") as producer:
            await producer.send(b"x")
    await set_quota(locked, producers=None)


async def test_connections_are_their_principals_and_free_when_they_end(locked: Locked) -> None:
    account = locked.broker.registry.quotas.account("principal", "user:other")
    await locked.call("admin", "quotas.set", principal="other", limits={"connections": 1})
    async with asyncio.timeout(LONG_S):
        await until(lambda: not account.counts["connections"])  # of tests before this
        held = OpsChannel(locked.broker.admin_url, token=locked.tokens["other"])
        try:
            await held.call(call_request("security.whoami", {}, principal="", face="cli"), timeout_s=30)
            assert await locked.code("other", "security.whoami", {}) == "QUOTA_EXCEEDED"
            assert await locked.code("shop", "security.whoami", {}) == ""
        finally:
            await held.aclose()
        while await locked.code("other", "security.whoami", {}) == "QUOTA_EXCEEDED":  # noqa: ASYNC110
            await asyncio.sleep(0)
    await locked.call("admin", "quotas.set", principal="other", limits={"connections": None})


async def test_what_is_published_beyond_the_rate_waits_and_its_client_is_not_refused(locked: Locked) -> None:
    await set_quota(locked, messages_in_per_s=500)
    async with connect(locked.broker.broker_url, token=locked.tokens["shop"]) as client:
        begun = asyncio.get_running_loop().time()
        async with client.producer("/shop/paced") as producer:
            for number in range(3):  # each waits for the one before it
                await asyncio.gather(*(producer.send(b"%d" % number) for _ in range(500)))
            told = producer.statistics()
            assert (told.throttled_ms > 0, told.throttled_by) == (True, "namespace shop: messages_in_per_s")
        assert (
            asyncio.get_running_loop().time() - begun >= 0.9
        )  # a burst of a second, then a second's worth waits
    quotas = locked.broker.registry.quotas
    assert quotas.account("namespace", "shop").slowed["messages_in_per_s"].times
    assert "namespace shop: messages_in_per_s" in quotas.slowed.of("/shop/paced", window_ms=600_000)
    findings = (await locked.call("shop", "diagnose.topic", topic="/shop/paced"))["findings"]
    assert "throttled by quota namespace shop: messages_in_per_s" in str([one["summary"] for one in findings])
    shown = (await locked.broker.port.metrics()).decode()
    assert (
        'danube_quota_felt_total{account="namespace shop",quota="messages_in_per_s",what="slowed"}' in shown
    )
    item = next(
        each for each in (await locked.call("admin", "quotas.list"))["items"] if each["name"] == "shop"
    )
    assert {(each["what"], each["quota"]) for each in item["felt"]} >= {("slowed", "messages_in_per_s")}
    await set_quota(locked, messages_in_per_s=None)


async def test_what_is_delivered_beyond_the_rate_waits_for_consumers_and_readers(locked: Locked) -> None:
    url, token = locked.broker.broker_url, locked.tokens["shop"]
    async with connect(url, token=token) as client:
        async with client.producer("/shop/read") as producer:
            await asyncio.gather(*(producer.send(bytes(1000)) for _ in range(300)))
        await set_quota(locked, bytes_out_per_s=100_000)
        for opened in (
            client.reader("/shop/read"),
            client.consumer("/shop/read", "slowly", start="earliest"),
        ):
            got = 0
            async with asyncio.timeout(LONG_S), opened as receiver:
                async for _ in receiver:
                    got += 1
                    if got == 300:
                        break
            assert got == 300  # 330 kB: three seconds' worth, the first of them at once
    told = locked.broker.registry.quotas.account("namespace", "shop").slowed["bytes_out_per_s"]
    assert told.times >= 2
    assert told.waited_ms >= 2000
    await set_quota(locked, bytes_out_per_s=None)


async def test_bytes_for_official_clients_are_counted_as_they_are_sent(locked: Locked) -> None:
    """Of 50 MB that the SDK had compressed to some KB a quota saw the KB, though these clients are sent the MB."""
    url, token = locked.broker.broker_url, locked.tokens["shop"]
    topic, account = "/shop/zeros", locked.broker.registry.quotas.account("namespace", "shop")
    await locked.call("admin", "topics.create", topic=topic)
    await locked.call(
        "admin", "subscriptions.create", topic=topic, subscription="s", type="exclusive", start="earliest"
    )
    async with connect(url, token=token) as client, client.producer(topic, compression="zstd") as producer:
        await asyncio.gather(*(producer.send(bytes(10_000)) for _ in range(100)))
    await set_quota(locked, bytes_out_per_s=200_000)
    bearer = (("authorization", f"Bearer {token}"),)
    async with aio.insecure_channel(url.removeprefix("http://")) as channel:
        subscribe = channel.unary_unary(
            "/danube.ConsumerService/Subscribe",
            request_serializer=pb.ConsumerRequest.SerializeToString,
            response_deserializer=pb.ConsumerResponse.FromString,
        )
        asked = pb.ConsumerRequest(topic_name=topic, consumer_name="c", subscription="s")
        made = await subscribe(asked, metadata=bearer)
        receive = channel.unary_stream("/danube.ConsumerService/ReceiveMessages")
        request = pb.ReceiveRequest(consumer_id=made.consumer_id).SerializeToString()
        begun = asyncio.get_running_loop().time()
        async with asyncio.timeout(LONG_S):
            stream, got = receive(request, metadata=bearer), 0
            async for _ in stream:
                got += 1
                if got == 60:  # 600 kB
                    break
            stream.cancel()
    assert asyncio.get_running_loop().time() - begun >= 1
    assert account.slowed["bytes_out_per_s"].waited_ms >= 1000
    await set_quota(locked, bytes_out_per_s=None)


async def test_what_is_stored_beyond_the_quota_is_refused_until_there_is_room(locked: Locked) -> None:
    await set_quota(locked, "other", stored_bytes=20_000)
    await locked.broker.measure_stored()
    retry, token = Retry(max_elapsed_s=0.5), locked.tokens["other"]
    async with (
        connect(locked.broker.broker_url, token=token, retry=retry) as client,
        client.producer("/other/stored") as producer,
    ):
        for _ in range(15):
            await producer.send(bytes(1000))
        with pytest.raises(QuotaExceeded, match="stored bytes"):
            await many(producer, 10)
        await set_quota(locked, "other", stored_bytes=None)
        await producer.send(b"again")


async def test_calls_beyond_the_rate_are_refused_with_the_time_to_wait(locked: Locked) -> None:
    await locked.call("admin", "quotas.set", principal="shop", limits={"requests_per_s": 2})
    refused: list[ClusterError] = []
    for _ in range(20):
        try:
            await locked.call("shop", "security.whoami")
        except QuotaExceeded as error:
            refused.append(error)
    assert refused
    assert 0 < (refused[-1].retry_after_ms or 0) <= 500
    assert refused[-1].details["quota"] == "principal user:shop"
    await locked.call("admin", "quotas.set", principal="shop", limits={"requests_per_s": None})


async def test_an_assistant_that_changes_or_destroys_too_much_is_refused(locked: Locked) -> None:
    async def limit(**limits: int | None) -> None:
        await locked.call("admin", "quotas.set", principal="shop", limits=limits)

    await limit(changes_per_h=2)
    for number in (1, 2):
        await locked.call("shop", "topics.create", topic=f"/shop/burst-{number}")
    assert await locked.code("shop", "topics.create", {"topic": "/shop/burst-3"}) == "QUOTA_EXCEEDED"
    assert await locked.code("shop", "topics.describe", {"topic": "/shop/burst-3"}) == "TOPIC_NOT_FOUND"
    await locked.call("shop", "topics.describe", topic="/shop/burst-1")  # reads go on
    found = await locked.call("admin", "diagnose.cluster")
    [burst] = [each for each in found["findings"] if each["rule"] == "changes_burst"]
    assert burst["evidence"]["quotas"] == ["principal user:shop: changes_per_h"]
    assert burst["next"][1]["arguments"]["principal"] == "shop"

    await limit(changes_per_h=None, destroyed_messages_per_h=5)
    async with connect(locked.broker.broker_url, token=locked.tokens["shop"]) as client:
        for number, count in ((1, 6), (2, 5)):
            async with client.producer(f"/shop/burst-{number}") as producer:
                await producer.send_many([b"x"] * count)
    codes = {}
    for number in (1, 2):
        topic = {"topic": f"/shop/burst-{number}"}
        plan = await locked.call("shop", "topics.delete", **topic, plan_only=True)
        codes[number] = await locked.code("shop", "plans.apply", {"plan_token": plan["plan_token"]})
    assert codes == {1: "QUOTA_EXCEEDED", 2: ""}
    assert (await locked.call("shop", "topics.describe", topic="/shop/burst-1"))["messages"] == 6
    await limit(destroyed_messages_per_h=None)


async def test_whoever_may_do_everything_in_a_namespace_does_not_set_its_quota(locked: Locked) -> None:
    more = {"namespace": "shop", "limits": {"topics": 0}}
    assert await locked.code("shop", "quotas.set", more) == "PERMISSION_DENIED"
    inner = {"operation": "quotas.set", "arguments": more}
    assert await locked.code("shop", "plans.create", inner) == "PERMISSION_DENIED"


async def test_a_quota_is_planned_changed_and_taken_back(locked: Locked) -> None:
    first = await set_quota(locked, "other", topics=7)
    plan = await locked.call("admin", "quotas.set", namespace="other", limits={"topics": 9}, plan_only=True)
    assert plan["diff"] == [{"path": "quotas/namespace/other/limits/topics", "before": 7, "after": 9}]
    second = await set_quota(locked, "other", topics=9)
    assert await locked.code("admin", "changes.undo", {"call_id": first}) == "CONFLICT"
    await locked.call("admin", "changes.undo", call_id=second)
    account = locked.broker.registry.quotas.account("namespace", "other")
    assert account.quota.limits == {"topics": 7}
    await locked.call("admin", "changes.undo", call_id=first)
    assert not account.quota.limits


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"limits": {"topics": 1}}, "namespace"),
        ({"namespace": "shop", "principal": "ann", "limits": {"topics": 1}}, "namespace"),
        ({"namespace": "shop"}, "limits"),
        ({"namespace": "shop", "limits": {"connections": 1}}, "limits.connections"),
        ({"principal": "ann", "warnings": {"topics": 1}}, "warnings.topics"),
    ],
)
async def test_what_cannot_be_set_is_refused_by_field(
    locked: Locked, arguments: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await locked.call("admin", "quotas.set", **arguments)
    assert refused.value.details["field"] == field


async def test_the_settings_hold_for_whoever_has_no_quota_of_his_own(tmp_path: Path) -> None:
    async with locked_broker(tmp_path, **{"quota.namespace": "topics=1"}) as locked:
        await give(locked, "admin", "admin")
        assert await locked.code("admin", "topics.create", {"topic": "/default/a"}) == ""
        assert await locked.code("admin", "topics.create", {"topic": "/default/b"}) == "QUOTA_EXCEEDED"
        await locked.call("admin", "quotas.set", namespace="*", limits={"topics": 2})
        assert await locked.code("admin", "topics.create", {"topic": "/default/b"}) == ""
        await locked.call("admin", "quotas.set", namespace="default", limits={"topics": 3})
        assert await locked.code("admin", "topics.create", {"topic": "/default/c"}) == ""
        assert await locked.code("admin", "topics.create", {"topic": "/default/d"}) == "QUOTA_EXCEEDED"
    with pytest.raises(InvalidArgument, match=r"quota\.namespace"):
        load_settings(None, {}, {"quota.namespace": "connections=1"})
