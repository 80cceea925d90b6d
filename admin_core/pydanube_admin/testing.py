"""For tests of faces: a cluster that exists only as facts, and a real gRPC server in front of its admin core.

    cluster = MemoryCluster()
    cluster.add_topic("/default/orders", next_offset=500)
    cluster.add_subscription("/default/orders", "billing", next_unacked=460, oldest_unread_append_ms=…)
    async with serve_ops(AdminCore(cluster, now_ms=lambda: NOW_MS).serve_call) as admin_url:
        async with OpsClient(admin_url) as ops:
            await ops.call("subscriptions.lag", {"topic": "orders"})

It stands in for a broker behind `ClusterPort` and nowhere else: names, creation and deletion behave as a broker's,
there are no messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import grpc
from grpc import aio
from pydanube_core.cluster_port import LagFacts, LagKey, TopicHistory, TopicKey
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Diagnosis, Verdict
from pydanube_core.diagnosis.lag_status import LagJudgement, LagStatus, judge_lag
from pydanube_core.diagnosis.lag_window import LagWindow
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.errors import (
    NamespaceNotFound,
    NotImplementedYet,
    SubscriptionNotFound,
    TopicNotFound,
)
from pydanube_core.facts import (
    BrokerFacts,
    ConsumerFacts,
    Grace,
    MessageFacts,
    NamespaceFacts,
    PolicyFacts,
    SessionFacts,
    SubscriptionFacts,
    TopicFacts,
)
from pydanube_core.names import TopicName
from pydanube_core.positions import Position
from pydanube_core.refusals import namespace_taken, policies_of_a_partition, subscription_taken, topic_taken
from pydanube_core.schema_facts import SchemasPort

from pydanube_admin.policy_names import POLICIES
from pydanube_admin.remote import OPS_CALL
from pydanube_admin.testing_history import two_moments
from pydanube_admin.testing_state import FAILURE_POLICY, MemoryState, changed, index_of, resolve

NOW_MS: Final = 1_800_000_000_000  # 2027-01-15T08:00:00Z
BROKER_ID: Final = "10203040506070809"


class MemoryCluster(MemoryState):
    """A `ClusterPort` over two tables. `fail_with`, once set, is raised by every method: an outage."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_with: Exception | None = None
        self._topics: dict[str, TopicFacts] = {}
        self._subscriptions: dict[tuple[str, str], SubscriptionFacts] = {}
        self._policies: dict[str, dict[str, int]] = {}
        self._namespaces: dict[str, dict[str, int]] = {"default": {}, "system": {}}
        self._failure: dict[tuple[str, str], dict[str, Any]] = {}
        self.diagnosis = Diagnosis(subject={}, verdict=Verdict.HEALTHY, findings=(), as_of_ms=NOW_MS)
        self.alert_lists: tuple[Sequence[Alert], Sequence[Alert]] = ((), ())
        self._next_id = 1
        self._buried: dict[str, Callable[[], None]] = {}  # call id → what brings back what it deleted

    # Filling it ---------------------------------------------------------------------------------------------------

    def add_topic(
        self,
        topic: str,
        *,
        partitions: int = 0,
        start_offset: int = 0,
        next_offset: int = 0,
        bytes: int = 0,
        dispatch_strategy: str = "reliable",
        durability: str = "fsynced",
        producers: int = 0,
        owner: str | None = BROKER_ID,
        parent: str | None = None,
        partition: int | None = None,
    ) -> None:
        """Add a topic, and the partitions of a partitioned one, each with the figures given."""
        split = partitions > 0
        self._topics[topic] = TopicFacts(
            topic=topic,
            topic_id=self._next_id,
            parent=parent,
            partition=partition,
            partitions=partitions,
            dispatch_strategy=dispatch_strategy,
            durability=durability,
            created_at_ms=NOW_MS - 3_600_000,
            owner=None if split else owner,
            epoch=1,
            start_offset=0 if split else start_offset,
            next_offset=0 if split else next_offset,
            tiered_offset=None,
            messages=0 if split else next_offset - start_offset,
            bytes=0 if split else bytes,
            journal_bytes=0 if split else bytes,
            object_bytes=0,
            producers=0 if split else producers,
            consumers=0,
            subscriptions=(),
        )
        self._next_id += 1
        for index in range(partitions):
            self.add_topic(
                str(TopicName.parse(topic).part(index)),
                start_offset=start_offset,
                next_offset=next_offset,
                bytes=bytes,
                dispatch_strategy=dispatch_strategy,
                durability=durability,
                producers=producers,
                owner=owner,
                parent=topic,
                partition=index,
            )

    def add_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        next_unacked: int = 0,
        acked_above: int = 0,
        in_flight: int = 0,
        consumers: int = 0,
        lag_bytes: int | None = None,
        oldest_unread_append_ms: int | None = None,
        type: str = "exclusive",
    ) -> None:
        """Add a subscription of one concrete topic, such as `/default/orders-part-0`."""
        facts = self._topics[topic]
        self._subscriptions[topic, subscription] = SubscriptionFacts(
            topic=topic,
            partition=facts.partition,
            subscription=subscription,
            subscription_id=self._next_id,
            type=type,
            start_offset=facts.start_offset,
            next_offset=facts.next_offset,
            next_unacked=next_unacked,
            acked_above=acked_above,
            in_flight=in_flight,
            redelivered=0,
            dead_lettered=0,
            lag_bytes=lag_bytes,
            oldest_unread_append_ms=oldest_unread_append_ms,
            consumers=tuple(
                ConsumerFacts(
                    consumer_id=str(self._next_id + index),
                    name=f"{subscription}-{index}",
                    active=index == 0,
                    credit_messages=100,
                    in_flight=in_flight,
                    connected_at_ms=NOW_MS - 60_000,
                )
                for index in range(consumers)
            ),
            created_at_ms=NOW_MS - 1_800_000,
        )
        self._next_id += 1 + consumers
        self._topics[topic] = replace(
            facts, subscriptions=(*facts.subscriptions, subscription), consumers=facts.consumers + consumers
        )

    # ClusterPort --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with

    async def topic_index(self) -> Sequence[TopicKey]:
        self._check()
        return index_of(self._topics.values())

    async def topic_facts(self, topics: Sequence[str]) -> Sequence[Sequence[TopicFacts]]:
        self._check()
        return [await self.topic(topic) for topic in topics if topic in self._topics]

    async def topics(self) -> Sequence[TopicFacts]:
        self._check()
        return list(self._topics.values())

    async def topic(self, topic: str) -> Sequence[TopicFacts]:
        self._check()
        if topic not in self._topics:
            raise TopicNotFound(f"there is no topic {topic}", topic=topic)
        return [self._topics[topic], *(facts for facts in self._topics.values() if facts.parent == topic)]

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        dispatch_strategy: str,
        durability: str,
        options: Mapping[str, Any],
    ) -> None:
        self._check()
        assert set(options) <= {"policies"}, f"options nobody has yet: {options}"
        if topic in self._topics:
            raise topic_taken(topic)
        self.add_topic(
            topic, partitions=partitions, dispatch_strategy=dispatch_strategy, durability=durability
        )
        self._policies[topic] = dict(options.get("policies", {}))

    async def delete_topic(self, topic: str, *, grace: Grace | None = None) -> None:
        if grace is not None:
            await self.topic(topic)
            self._bury(grace)
        self._policies.pop(topic, None)
        for facts in await self.topic(topic):
            del self._topics[facts.topic]
            for subscription in facts.subscriptions:
                del self._subscriptions[facts.topic, subscription]

    def _bury(self, grace: Grace) -> None:
        """Remember everything as it is: a test deletes one thing and brings it back before it does another."""
        kept = dict(self._topics), dict(self._subscriptions), dict(self._policies), dict(self._failure)

        def restore() -> None:
            self._topics, self._subscriptions, self._policies, self._failure = kept

        self._buried[grace.call_id] = restore

    async def restore_topic(self, call_id: str) -> str:
        self._check()
        before = set(self._topics)
        if call_id not in self._buried:
            raise TopicNotFound("what that change deleted is not kept any more", call_id=call_id)
        self._buried.pop(call_id)()
        return sorted(set(self._topics) - before)[0]

    async def restore_subscription(self, call_id: str) -> None:
        self._check()
        if call_id not in self._buried:
            raise SubscriptionNotFound("what that change deleted is not kept any more", call_id=call_id)
        self._buried.pop(call_id)()

    async def truncate_topic(self, topic: str, offsets: Mapping[str, int]) -> None:
        for facts in await self.topic(topic):
            if facts.topic in offsets:
                start = max(facts.start_offset, offsets[facts.topic])
                self._topics[facts.topic] = replace(
                    facts, start_offset=start, messages=facts.next_offset - start
                )

    async def subscriptions(self, topic: str | None, subscription: str | None) -> Sequence[SubscriptionFacts]:
        self._check()
        logs = None if topic is None else {facts.topic for facts in await self.topic(topic)}
        found = [
            facts
            for facts in self._subscriptions.values()
            if (logs is None or facts.topic in logs) and subscription in (None, facts.subscription)
        ]
        if subscription is not None and not found:
            raise SubscriptionNotFound(
                f"there is no subscription {subscription!r}", subscription=subscription
            )
        return found

    # Diagnosis: one look, so that statuses are unknown; `diagnosis` and `alert_lists` are what a test sets ----------

    async def lag_index(
        self, topic: str | None, subscription: str | None, *, status: LagStatus | None = None
    ) -> Sequence[LagKey]:
        self._check()
        if status not in (None, LagStatus.UNKNOWN):
            return []
        logs = None if topic is None else {facts.topic for facts in await self.topic(topic)}
        return [
            LagKey(_base(facts), facts.topic, facts.partition, facts.subscription)
            for facts in self._subscriptions.values()
            if (logs is None or facts.topic in logs) and subscription in (None, facts.subscription)
        ]

    async def lag_facts(self, keys: Sequence[LagKey]) -> Sequence[LagFacts]:
        self._check()
        found = [self._subscriptions.get((key.log, key.subscription)) for key in keys]
        return [
            LagFacts(facts=facts, judgement=_judged(facts), status=LagStatus.UNKNOWN, since_ms=None)
            for facts in found
            if facts is not None
        ]

    async def diagnose_cluster(self) -> Diagnosis:
        self._check()
        return self.diagnosis

    async def topic_history(self, topic: str, subscription: str | None, *, most: int) -> TopicHistory:
        return await two_moments(self, topic, subscription, most=most, now_ms=NOW_MS)

    async def diagnose_topic(self, topic: str) -> Diagnosis:
        await self.topic(topic)
        return self.diagnosis

    async def diagnose_subscription(self, topic: str, subscription: str) -> Diagnosis:
        await self.subscriptions(topic, subscription)
        return self.diagnosis

    async def diagnose_producer(self, topic: str, producer: str | None) -> Diagnosis:
        await self.topic(topic)
        return self.diagnosis

    async def alerts(self) -> tuple[Sequence[Alert], Sequence[Alert]]:
        self._check()
        return self.alert_lists

    # Policies: topic, else namespace, else no limit ---------------------------------------------------------------

    async def topic_policies(self, topic: str) -> PolicyFacts:
        own = self._policies.get((await self.topic(topic))[0].topic, {})
        namespace = self._namespaces.get(TopicName.parse(topic).namespace, {})
        return PolicyFacts(own=own, effective={**dict.fromkeys(POLICIES, 0), **namespace, **own})

    async def set_topic_policies(self, topic: str, changes: Mapping[str, int | None]) -> None:
        own, *_ = await self.topic(topic)
        if own.parent is not None:
            raise policies_of_a_partition(topic)
        self._policies[topic] = changed(self._policies.get(topic, {}), changes)

    async def namespaces(self) -> Sequence[NamespaceFacts]:
        self._check()
        return [
            NamespaceFacts(
                namespace=name,
                created_at_ms=NOW_MS - 7_200_000,
                policies=policies,
                topics=sum(
                    facts.parent is None and TopicName.parse(facts.topic).namespace == name
                    for facts in self._topics.values()
                ),
            )
            for name, policies in sorted(self._namespaces.items())
        ]

    async def create_namespace(
        self, namespace: str, policies: Mapping[str, int | None], *, created_at_ms: int | None = None
    ) -> None:
        self._check()
        if namespace in self._namespaces:
            raise namespace_taken(namespace)
        self._namespaces[namespace] = changed({}, policies)

    async def delete_namespace(self, namespace: str) -> None:
        await self.namespace_policies(namespace)
        del self._namespaces[namespace]

    async def namespace_policies(self, namespace: str) -> PolicyFacts:
        self._check()
        if namespace not in self._namespaces:
            raise NamespaceNotFound(f"there is no namespace {namespace}", namespace=namespace)
        own = self._namespaces[namespace]
        return PolicyFacts(own=own, effective={**dict.fromkeys(POLICIES, 0), **own})

    async def set_namespace_policies(self, namespace: str, changes: Mapping[str, int | None]) -> None:
        own = (await self.namespace_policies(namespace)).own
        self._namespaces[namespace] = changed(own, changes)

    # Subscriptions: cursors are numbers here ----------------------------------------------------------------------

    async def create_subscription(self, topic: str, subscription: str, *, type: str, start: str) -> None:
        places = await self.resolve_position(topic, start)
        if all((log, subscription) in self._subscriptions for log in places):
            raise subscription_taken(topic, subscription)
        for log, offset in places.items():
            self.add_subscription(log, subscription, next_unacked=offset, type=type)

    async def resolve_position(self, topic: str, position: str) -> Mapping[str, int]:
        found = Position.parse(position, now_ms=NOW_MS)
        own, *parts = await self.topic(topic)
        return {log.topic: resolve(log, found) for log in parts or [own]}

    async def seek_subscription(self, topic: str, subscription: str, position: str) -> None:
        places = await self.resolve_position(topic, position)
        for facts in await self.subscriptions(topic, subscription):
            self._move(facts, places[facts.topic])

    async def skip_messages(self, topic: str, subscription: str, count: int) -> int:
        (facts,) = await self.subscriptions(topic, subscription)
        skipped = min(count, facts.lag_messages)
        self._move(facts, facts.next_unacked + skipped)
        return skipped

    async def purge_subscription(self, topic: str, subscription: str) -> None:
        for facts in await self.subscriptions(topic, subscription):
            self._move(facts, facts.next_offset)

    def _move(self, facts: SubscriptionFacts, offset: int) -> None:
        moved = replace(
            facts, next_unacked=offset, acked_above=0, lag_bytes=None, oldest_unread_append_ms=None
        )
        self._subscriptions[facts.topic, facts.subscription] = moved

    async def cursors(self, topic: str, subscription: str) -> Mapping[str, bytes]:
        found = await self.subscriptions(topic, subscription)
        return {facts.topic: str(facts.next_unacked).encode() for facts in found}

    async def place_cursors(self, topic: str, subscription: str, images: Mapping[str, bytes]) -> None:
        for facts in await self.subscriptions(topic, subscription):
            self._move(facts, int(images[facts.topic]))

    async def delete_subscription(self, topic: str, subscription: str, *, grace: Grace | None = None) -> None:
        await self.subscriptions(topic, subscription)
        if grace is not None:
            self._bury(grace)
        for facts in await self.subscriptions(topic, subscription):
            del self._subscriptions[facts.topic, subscription]
            log = self._topics[facts.topic]
            kept = tuple(name for name in log.subscriptions if name != subscription)
            self._topics[facts.topic] = replace(log, subscriptions=kept)

    async def failure_policy(self, topic: str, subscription: str) -> Mapping[str, Any]:
        await self.subscriptions(topic, subscription)
        return {**FAILURE_POLICY, **self._failure.get((topic, subscription), {})}

    async def set_failure_policy(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> None:
        kept = {**await self.failure_policy(topic, subscription), **changes}
        if kept["poison_policy"] == "dead_letter" and not kept["dead_letter_topic"]:
            kept["dead_letter_topic"] = f"{topic}-dlq-{subscription}"
        kept["dead_letter_topic"] = kept["dead_letter_topic"] or None
        self._failure[topic, subscription] = kept

    @property
    def schemas(self) -> SchemasPort:
        raise NotImplementedYet("this cluster has no schema registry")

    # -- the cold tier: this cluster keeps everything in memory and has no objects

    async def topic_ranges(
        self, topic: str, *, start: str | None, until: str | None
    ) -> Mapping[str, tuple[int, int]]:
        starts = await self.resolve_position(topic, start or "earliest")
        ends = await self.resolve_position(topic, until or "latest")
        return {name: (starts[name], max(starts[name], ends[name])) for name in starts}

    async def export_objects(
        self, topic: str, *, start: int, end: int, to: str, file_format: str, any_folder: bool
    ) -> Mapping[str, Any]:
        raise NotImplementedYet("this cluster has no files")

    async def replay_topic(
        self, topic: str, *, ranges: Mapping[str, tuple[int, int]], to: str
    ) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedYet("this cluster has no messages to copy")

    async def objects(self, topic: str, *, start: int, end: int | None) -> Sequence[Mapping[str, Any]]:
        await self.topic(topic)
        return ()

    async def verify_objects(self, topic: str, *, start: int, end: int | None) -> Mapping[str, Any]:
        await self.topic(topic)
        return {"checked": 0, "damaged": [], "missing": [], "gaps": [], "duplicates": []}

    async def flush_objects(self, topic: str) -> int:
        await self.topic(topic)
        return 0

    async def compact_objects(self, topic: str) -> int:
        await self.topic(topic)
        return 0

    async def orphans(self, topic: str) -> Sequence[Mapping[str, Any]]:
        await self.topic(topic)
        return ()

    async def collect_objects(self, topic: str) -> Sequence[Mapping[str, Any]]:
        return await self.orphans(topic)

    async def journal(self) -> Mapping[str, Any]:
        return {
            "bytes": 0,
            "segments": 0,
            "next_lsn": 0,
            "durable_lsn": 0,
            "read_only": False,
            "sealed": [],
            "held_by": [],
        }

    # -- messages: there are none

    async def read_messages(
        self, topic: str, *, start: int, end: int, max_messages: int, max_bytes: int
    ) -> Sequence[MessageFacts]:
        await self.topic(topic)
        return ()

    async def publish_message(
        self, topic: str, *, payload: bytes, key: str | None, attributes: Mapping[str, str]
    ) -> int:
        facts = (await self.topic(topic))[0]
        self._topics[topic] = replace(facts, next_offset=facts.next_offset + 1, messages=facts.messages + 1)
        return facts.next_offset

    # -- sessions, counters, settings, log

    async def producers(self) -> Sequence[SessionFacts]:
        self._check()
        return ()

    async def consumers(self) -> Sequence[SessionFacts]:
        return [
            SessionFacts(
                session_id=consumer.consumer_id,
                topic=facts.topic,
                name=consumer.name,
                exclusive=consumer.active,
                subscription=facts.subscription,
                in_flight=consumer.in_flight,
                connected_at_ms=consumer.connected_at_ms,
            )
            for facts in await self.subscriptions(None, None)
            for consumer in facts.consumers
        ]

    async def status(self) -> BrokerFacts:
        self._check()
        return BrokerFacts(
            version="0.1.0",
            broker_id=BROKER_ID,
            pid=4242,
            uptime_s=12.5,
            durability="fsynced",
            grpc_runtime="grpcio",
            data_dir=None,
            data_dir_reason="memory_only",
            listen={"grpc": "http://127.0.0.1:6650"},
            disk={"free_bytes": 1 << 30},
            journal={"bytes": 0},
            tier={},
            topics=sum(facts.parent is None for facts in self._topics.values()),
            read_only=False,
            ready=True,
            reasons=(),
        )


@asynccontextmanager
async def serve_ops(serve_call: Callable[[bytes], Awaitable[bytes]], *, port: int = 0) -> AsyncIterator[str]:
    """Serve `danube.ops/Call` on a loopback port, as a broker does, and yield the admin URL."""

    async def call(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        return await serve_call(request)

    server = aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                OPS_CALL.split("/")[1], {OPS_CALL.split("/")[2]: grpc.unary_unary_rpc_method_handler(call)}
            ),
        )
    )
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"http://127.0.0.1:{bound}"
    finally:
        await server.stop(grace=None)


def _base(facts: SubscriptionFacts) -> str:
    return facts.topic if facts.partition is None else str(TopicName.parse(facts.topic).base)


def _judged(facts: SubscriptionFacts) -> LagJudgement:
    """The lag from one look."""
    window = LagWindow(
        times_ms=[NOW_MS],
        start_offset=[facts.start_offset],
        next_offset=[facts.next_offset],
        next_unacked=[facts.next_unacked],
        acked_above=[facts.acked_above],
        in_flight=[facts.in_flight],
        members=[len(facts.consumers)],
        now_ms=NOW_MS,
        interval_s=5.0,
        window_s=300.0,
        oldest_unread_append_ms=facts.oldest_unread_append_ms,
    )
    return judge_lag(window, DiagnosisOptions())
