"""Three brokers on one etcd with TLS and `auth.mode = required`: who calls is known at whichever broker carries it out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydanube import Tls, connect
from pydanube.wire.http2_transport import Http2Transport
from pydanube.wire.ops_channel import OpsChannel
from pydanube_broker.broker import Broker
from pydanube_broker.relay.membership import Seals
from pydanube_broker.settings.sections import Settings
from pydanube_broker.settings.security import Auth
from pydanube_broker.settings.security import Tls as TlsSettings
from pydanube_broker.topics.topic import now_ms
from pydanube_cli.certificates import CertificateFolder
from pydanube_cli.composition import administered
from pydanube_core.errors import ClusterError, PermissionDenied, Unauthenticated
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse
from pydanube_core.names import TopicName
from pydanube_core.ops_call import CARRIED_CALL, call_request
from pydanube_core.security.identity import OPERATOR

from tests.support.broker_process import free_ports
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, several_brokers
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
TOPICS = [f"/shop/t{n}" for n in range(6)]


class LockedCluster:
    """The cluster, its certificates, and the tokens that its people have."""

    def __init__(self, several: SeveralBrokers, folder: CertificateFolder) -> None:
        self.several = several
        self.folder = folder
        self.tls = Tls(ca=str(folder.file("ca.crt")))
        self.tokens: dict[str, str] = {}

    @property
    def brokers(self) -> list[Broker]:
        return list(self.several.brokers.values())

    async def call(self, broker: Broker, who: str, operation: str, /, **arguments: Any) -> dict[str, Any]:
        channel = OpsChannel(broker.admin_url, token=self.tokens.get(who), tls=self.tls)
        return await asked(channel, operation, arguments)

    async def give(self, name: str, roles: str, scope: str = "cluster", resource: str = "") -> None:
        """A principal with roles and a token, made by the operator on the machine of the first broker."""
        binding = {"binding": name, "principal": name, "roles": roles, "scope": scope, "resource": resource}
        await self.at_the_machine("bindings.create", binding)
        self.tokens[name] = (await self.at_the_machine("tokens.create", {"name": name}))["token"]

    async def at_the_machine(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        path = self.brokers[0].data_dir.path.absolute()
        return await asked(OpsChannel(f"unix:{path}/admin.sock"), operation, arguments)


async def asked(channel: OpsChannel, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        request = call_request(operation, arguments, principal="", face="cli")
        found: dict[str, Any] = json.loads(await channel.call(request, timeout_s=60))
        return found
    finally:
        await channel.aclose()


@asynccontextmanager
async def locked_cluster(
    etcd: EtcdMembers, path: Path, *, one_address: bool = False, modes: Sequence[str] = ("required",) * 3
) -> AsyncIterator[LockedCluster]:
    """
    Args:
        one_address: clients reach the first broker alone, which carries what is not its own.
        modes: of the three, `auth.mode`.
    """
    folder = CertificateFolder(path=path / "certificates")
    folder.make(["127.0.0.1"], principal="client", days=2, again=False)
    tls = TlsSettings(
        cert=folder.file("server.crt"),
        key=folder.file("server.key"),
        client_ca=folder.file("ca.crt"),
        client_auth="optional",
    )
    mode = iter(modes)

    (port,) = free_ports(1)
    ports = iter((port, 0, 0))

    @asynccontextmanager
    async def make(settings: Settings) -> AsyncIterator[Broker]:
        server = settings.server
        if one_address:
            moved = {"grpc_port": next(ports), "connect_url": f"https://127.0.0.1:{port}"}
            server = server.model_copy(update=moved)
        auth = Auth(mode=next(mode), failure_delay=0.001)
        locked = settings.model_copy(update={"tls": tls, "auth": auth, "server": server})
        async with administered(locked) as (broker, _):
            yield broker

    async with several_brokers(etcd, path, make) as several:
        cluster = LockedCluster(several, folder)
        await cluster.at_the_machine("namespaces.create", {"namespace": "shop"})
        await cluster.give("admin", "admin")
        await cluster.give("owner", "admin", "namespace", "shop")
        await cluster.give("stranger", "viewer", "namespace", "default")
        for broker in cluster.brokers:
            if broker.locks is not None:
                await until(lambda b=broker: len(b.locks.access_records.tokens) == len(cluster.tokens))
        yield cluster


@pytest.fixture
async def cluster(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[LockedCluster]:
    async with locked_cluster(etcd, tmp_path) as cluster:
        yield cluster


async def test_any_broker_serves_whoever_may_and_nobody_else(cluster: LockedCluster) -> None:
    owner = cluster.tokens["owner"]
    first = cluster.brokers[0].broker_url
    async with connect(first, token=owner, tls=cluster.tls) as client:
        for topic in TOPICS:
            async with client.producer(topic) as producer:
                await producer.send(topic.encode())
            async with client.consumer(topic, "s", start="earliest") as consumer:
                message = await anext(aiter(consumer))
                assert message.payload == topic.encode()
    owners = Counter(cluster.several.owner(topic).broker_url for topic in TOPICS)
    assert owners.keys() - {first}, "some topic went to another broker"

    for broker in cluster.brokers:
        listed = await cluster.call(broker, "owner", "topics.list")
        assert [each["topic"] for each in listed["items"]] == TOPICS
        assert "not_seen" not in listed
        assert (await cluster.call(broker, "stranger", "topics.list"))["items"] == []
        assert len((await cluster.call(broker, "admin", "brokers.list"))["items"]) == 3

    topic = TOPICS[0]
    one, other = cluster.several.others(topic)
    given = {"topic": topic, "subscription": "made", "type": "shared"}
    await cluster.call(one, "owner", "subscriptions.create", **given)
    with pytest.raises(PermissionDenied):
        await cluster.call(other, "stranger", "subscriptions.create", **{**given, "subscription": "not"})
    with pytest.raises(PermissionDenied):  # the same words as for what is not there
        await cluster.call(other, "stranger", "topics.describe", topic="/shop/none")
    with pytest.raises(Unauthenticated):
        await cluster.call(other, "nobody", "topics.describe", topic=topic)
    described = await cluster.call(other, "owner", "topics.describe", topic=topic)
    assert sorted(described["subscriptions"]) == ["made", "s"]

    # what was done at the owner is in its audit, with who did it and which broker had it carried there
    records = await cluster.call(
        cluster.several.owner(topic), "admin", "audit.query", operation="subscriptions.create"
    )
    made = [each for each in records["items"] if each["arguments"].get("subscription") == "made"]
    assert {(each["principal"], each["authenticated"], each["relayed_by"]) for each in made} == {
        ("owner", True, str(one.data_dir.broker_id))
    }
    records = await cluster.call(other, "admin", "audit.query", operation="subscriptions.create")
    assert {
        (each["principal"], each["code"], each["relayed_by"]) for each in records["items"] if each["code"]
    } == {
        ("stranger", "PERMISSION_DENIED", None)  # refused where he called
    }


async def test_one_address_over_tls_carries_streams_dead_letters_and_whoever_they_are_of(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with locked_cluster(etcd, tmp_path, one_address=True) as cluster:
        first = cluster.brokers[0]
        token = cluster.tokens["owner"]
        async with connect(first.broker_url, token=token, tls=cluster.tls) as client:
            for topic in TOPICS:
                async with client.producer(topic) as producer:
                    await producer.send(topic.encode())
            elsewhere = [topic for topic in TOPICS if cluster.several.owner(topic) is not first]
            assert elsewhere, "some topic went to another broker"
            for topic in elsewhere:
                async with client.consumer(topic, "s", start="earliest") as consumer:
                    assert (await anext(aiter(consumer))).payload == topic.encode()
            origin = elsewhere[0]
            letters = next(t for t in TOPICS if cluster.several.owner(t) is not cluster.several.owner(origin))
            policy = {
                "max_redelivery_count": 0,
                "base_redelivery_delay_ms": 1,
                "poison_policy": "dead_letter",
                "dead_letter_topic": letters,
            }
            await cluster.call(
                first, "owner", "subscriptions.set_failure_policy", topic=origin, subscription="s", **policy
            )
            async with client.consumer(origin, "s") as consumer:
                await (await anext(aiter(consumer))).nack(0, reason="cannot be read")
                async with client.reader(letters) as reader:
                    await anext(reader)
                    letter = await anext(reader)
            assert letter.attributes["x-original-topic"] == origin
        stranger = cluster.tokens["stranger"]
        async with connect(first.broker_url, token=stranger, tls=cluster.tls) as client:
            for topic in TOPICS:
                with pytest.raises(PermissionDenied):
                    async with client.producer(topic):
                        pass


async def test_rights_hold_at_all_brokers_as_soon_as_they_are_given_or_taken(cluster: LockedCluster) -> None:
    topic = TOPICS[0]
    one, other = cluster.brokers[:2]  # rights are given at the first, the topic is at the second
    await cluster.call(one, "admin", "topics.create", topic=topic)
    await until(lambda: cluster.several.serves_name(topic))
    if cluster.several.owner(topic) is not other:
        await cluster.call(one, "admin", "topics.move", topic=topic, to_broker=str(other.data_dir.broker_id))
    name = TopicName.parse(topic)
    await until(lambda: other.registry.find(name) is not None and one.registry.find(name) is None)
    await cluster.give("late", "admin", "namespace", "shop")
    given = {"topic": topic, "type": "shared"}
    await cluster.call(one, "late", "subscriptions.create", subscription="a", **given)
    await cluster.at_the_machine("bindings.delete", {"binding": "late"})
    with pytest.raises(PermissionDenied):
        await cluster.call(one, "late", "subscriptions.create", subscription="b", **given)


async def test_a_running_cluster_is_locked_broker_by_broker(etcd: EtcdMembers, tmp_path: Path) -> None:
    async with locked_cluster(etcd, tmp_path, modes=("optional", "required", "off")) as cluster:
        counting, locked, still_open = cluster.brokers
        locked_id, counting_id = (str(each.data_dir.broker_id) for each in (locked, counting))
        # who shows nothing goes on at those that do not insist, and is counted where that is asked for
        before = counting.metrics.security_refused["no_identity"]
        answer = await cluster.call(counting, "nobody", "brokers.list")
        assert [each["broker_id"] for each in answer["not_seen"]] == [locked_id]
        assert counting.metrics.security_refused["no_identity"] > before
        answer = await cluster.call(still_open, "nobody", "brokers.list")
        assert [each["broker_id"] for each in answer["not_seen"]] == [locked_id]
        with pytest.raises(Unauthenticated):
            await cluster.call(locked, "nobody", "brokers.list")
        # who shows a token is known at all that ask
        for broker in (counting, locked):
            answer = await cluster.call(broker, "admin", "brokers.list")
            assert "not_seen" not in answer
        with pytest.raises(Unauthenticated, match="the one that you called does not"):
            await cluster.call(still_open, "admin", "brokers.describe", broker_id=locked_id)
        described = await cluster.call(still_open, "admin", "brokers.describe", broker_id=counting_id)
        assert described["broker_id"] == counting_id


async def test_whoever_is_no_broker_is_nobody(cluster: LockedCluster) -> None:
    one, other = cluster.brokers[:2]
    mine, theirs = str(one.data_dir.broker_id), str(other.data_dir.broker_id)
    request = call_request("security.whoami", {}, principal="", face="cli").SerializeToString()
    async with AsyncExitStack() as stack:
        transport = Http2Transport(other.admin_url, tls=cluster.tls)
        stack.push_async_callback(transport.aclose)

        async def carried(sealed: bytes) -> dict[str, Any]:
            answer = CallResponse.FromString(await transport.call(CARRIED_CALL, sealed, timeout_s=30))
            if answer.error:
                raise ClusterError.from_json(answer.error.decode())
            found: dict[str, Any] = json.loads(answer.result)
            return found

        before = other.metrics.security_refused["not_a_member"]
        stranger = Seals(b"x" * 32, mine)
        with pytest.raises(PermissionDenied) as caught:
            await carried(stranger.seal(theirs, OPERATOR, request, now_ms()))
        assert one.relay is not None
        assert one.relay.membership is not None
        seals = one.relay.membership.seals
        secret = seals._secret  # the test wants to see that it is nowhere
        assert secret.hex() not in caught.value.to_json()
        good = seals.seal(theirs, OPERATOR, request, now_ms())
        assert (await carried(good))["principal"]
        wrong = {
            "it comes again": good,
            "for another": seals.seal("1", OPERATOR, request, now_ms()),
            "too late": seals.seal(theirs, OPERATOR, request, now_ms() - 120_000),
            "changed": seals.seal(theirs, OPERATOR, request, now_ms())[:-1] + b"\0",
            "nothing": b"",
        }
        for why, sealed in wrong.items():
            with pytest.raises(PermissionDenied):
                assert not await carried(sealed), why
        with pytest.raises(Unauthenticated):  # of a broker whose locks are off
            await carried(seals.seal(theirs, None, request, now_ms()))
        assert other.metrics.security_refused["not_a_member"] == before + 1 + len(wrong)
        # to ask the other broker's port, one has to be a broker as well
        channel = OpsChannel(other.admin_url, token=cluster.tokens["admin"], tls=cluster.tls)
        stack.push_async_callback(channel.aclose)
        with pytest.raises(ClusterError) as refused:
            await channel.call(CallRequest(operation="peers.topics", arguments=b"{}"), timeout_s=30)
        assert refused.value.code == "INVALID_ARGUMENT"
        records = await cluster.call(other, "admin", "audit.query", filter="login")
        assert records["items"], "the stranger's first attempt is in the audit"
