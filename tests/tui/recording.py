"""A real broker at work, and what its operations answered, on file: screens and states are drawn from it, always alike.

python -m tests.tui.recording      record anew (six minutes: statuses want a whole window of samples)

What three brokers say of their balance is in a file of its own: `brokers.list` and `cluster.balance`, asked of a
`danube cluster local --brokers 3` with seven of nine topics at one broker.

`Played` answers as the broker did; a call that was not recorded fails with the words to record again.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydanube import Client, connect
from pydanube_core.connectors import LOGS, REPORTS
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_tui.source import PAGE_ITEMS, Caller, Feed
from pydanube_tui.tail import item_of
from pydanube_tui.views import VIEWS, place

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_topic

FILE: Final = Path(__file__).with_name("recorded_answers.json.gz")
BALANCE: Final = Path(__file__).with_name("recorded_balance.json")
WATCHED_S: Final = 330.0
ROUNDS: Final = 4
STEP_S: Final = 2.0
# What a name may hold that a screen must survive: wide letters, right to left, markup.
NAMES: Final = ("订单-处理", "הזמנות", "[red]x[b]")
PAYLOADS: Final = (
    b'{"id": 7, "total": 12.5, "customer": "\xe8\xae\xa2\xe5\x8d\x95"}',
    "שלום עולם".encode(),
    b"\x1b[31mred\x1b[0m \x1b]52;c;AAAA\x07 [bold]x[/]",
    b"\x00\x01\xff\xfe binary",
    "override \u202e here, zero\u200bwidth".encode(),
)


def words_of(view: str, known: Mapping[str, str]) -> str:
    """Return the words that open a view on the recorded cluster."""
    of = {
        "topic": "topic /shop/clicks",
        "subscription": "subscription /default/orders billing",
        "messages": "messages /default/orders",
        "dead-letters": "dead-letters /default/orders returns",
        "objects": "objects /default/orders",
        "schema": "schema orders-value",
        "plan": f"plan {known['plan']}",
        "change": f"change {known['change']}",
        "connector": "connector orders-to-lake",
        "broker": f"broker {known['broker']}",
    }
    return of.get(view, view)


def key_of(operation: str, arguments: Mapping[str, Any] | None) -> str:
    """A call as a key of the file."""
    wanted = {name: value for name, value in (arguments or {}).items() if name != "since"}
    return f"{operation} {json.dumps(wanted, sort_keys=True)}"


class Recorder:
    """Calls the cluster, and keeps what it answered."""

    def __init__(self, cluster: Administered) -> None:
        self._cluster = cluster
        self.answers: dict[str, list[Any]] = {}

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, plan_token: str = ""
    ) -> dict[str, Any]:
        outcome = await self._cluster.core.call(operation, arguments or {}, principal="ann", face="tui")
        kept = self.answers.setdefault(key_of(operation, arguments), [])
        if isinstance(outcome, ClusterError):
            kept.append({"refused": str(outcome)})
            raise outcome
        body: dict[str, Any] = outcome.model_dump(mode="json", by_alias=True)
        kept.append(body)
        return body


class Played:
    """Answers as the cluster did, call by call; the last answer stays."""

    def __init__(self) -> None:
        with gzip.open(FILE, "rt", encoding="utf-8") as file:
            tree = json.load(file)
        self.known: dict[str, str] = tree["known"]
        self.now_s: float = tree["now_s"]
        self.messages: list[dict[str, Any]] = tree["messages"]
        self._answers: dict[str, list[Any]] = tree["answers"]
        self._answers[key_of("security.whoami", {})] = [{"permissions": ["*"]}]
        as_of = datetime.fromtimestamp(self.now_s, UTC).isoformat()
        for operation, answer in json.loads(BALANCE.read_text()).items():
            for key in (key_of(operation, {}), key_of(operation, {"limit": PAGE_ITEMS})):
                self._answers[key] = [{**answer, "as_of": as_of, "mark": None}]
        # The recorded broker is alone: what the cluster answered it would answer of itself.
        self.known["broker"] = broker = self._answers[key_of("brokers.status", {})][0]["broker_id"]
        for operation, same in (
            ("brokers.describe", "brokers.status"),
            ("brokers.metrics", "cluster.metrics"),
            ("cluster.chart", "cluster.chart"),
        ):
            self._answers[key_of(operation, {"broker_id": broker})] = self._answers[key_of(same, {})]
        self._calls: dict[str, int] = {}

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, plan_token: str = ""
    ) -> dict[str, Any]:
        key = key_of(operation, arguments)
        if key not in self._answers:
            raise AssertionError(f"{key} was not recorded: python -m tests.tui.recording")
        at = self._calls.get(key, 0)
        self._calls[key] = at + 1
        answer = self._answers[key][min(at, len(self._answers[key]) - 1)]
        if isinstance(answer.get("refused"), str):  # else it is the count of a connector
            raise InvalidArgument(answer["refused"], field="recorded", value=key)
        # without a mark, so that the whole list is asked for each time
        return {name: value for name, value in answer.items() if name != "mark"}


@asynccontextmanager
async def at_work(cluster: Administered) -> AsyncIterator[None]:
    """Topics with traffic: one consumer that keeps up, one that is slow, one that gives up, and one that never came."""
    for topic, partitions in (("/default/orders", 0), ("/shop/clicks", 3), ("/shop/quiet", 0)):
        await add_topic(cluster, topic, partitions=partitions)
    await cluster("subscriptions.create", topic="/default/orders", subscription="billing", start="earliest")
    for name in NAMES:
        await cluster("subscriptions.create", topic="/shop/clicks", subscription=name, start="earliest")
    async with connect(cluster.broker.broker_url) as client, AsyncExitStack() as stack:
        work = [
            _produce(client, "/default/orders", 0.05),
            _produce(client, "/shop/clicks", 0.02),
            _consume(client, "/default/orders", "audit", 0.0),
            _consume(client, "/shop/clicks", NAMES[0], 0.1),
            _give_up(client, cluster),
        ]
        tasks = [asyncio.create_task(each) for each in work]
        stack.callback(lambda: [task.cancel() for task in tasks])
        yield


async def _produce(client: Client, topic: str, every_s: float) -> None:
    async with client.producer(topic) as producer:
        number = 0
        while True:
            payload = PAYLOADS[number % len(PAYLOADS)]
            await producer.send(payload, key=f"customer-{number % 7}", attributes={"source": "网站"})
            number += 1
            await asyncio.sleep(every_s)


async def _consume(client: Client, topic: str, subscription: str, every_s: float) -> None:
    async with client.consumer(topic, subscription, name=f"{subscription}-1") as consumer:
        async for message in consumer:
            await message.ack()
            await asyncio.sleep(every_s)


async def _give_up(client: Client, cluster: Administered) -> None:
    await cluster("subscriptions.create", topic="/default/orders", subscription="returns", start="earliest")
    await cluster(
        "subscriptions.set_failure_policy",
        topic="/default/orders",
        subscription="returns",
        max_redelivery_count=1,
        base_redelivery_delay_ms=100,
        poison_policy="dead_letter",
        dead_letter_topic="/default/orders-dlq",
    )
    async with client.consumer("/default/orders", "returns", name="returns-1") as consumer:
        async for message in consumer:
            if message.offset % 60 in (0, 1, 3):
                await message.nack(reason=("no such customer", "לקוח לא קיים")[message.offset % 2])
            else:
                await message.ack()


async def declare(cluster: Administered) -> None:
    """Declare a sink that a worker reports, and a source that is paused."""
    sink = 'connector = "delta-sink"\ntopic = "orders"\n[settings]\ntable = "s3://lake/orders"\n'
    source = 'connector = "postgres-source"\ntopic = "shop"\n[settings]\ndsn = "${env:DSN}"\ntables = ["a"]\n'
    await cluster("connectors.create", connector="orders-to-lake", definition=sink, group="etl")
    await cluster("connectors.create", connector="shop", definition=source)
    await cluster("connectors.pause", connector="shop")
    await cluster("connectors.create", connector="alone", definition=sink)
    at_ms = int(time.time() * 1_000) - 61_000
    report = {
        "connector": "orders-to-lake", "state": "failing", "kind": "sink", "guarantee": "exactly_once", "rate": 1250.5,
        "lag_messages": 1200, "records": 80_000, "refused": 3, "repeated": 0, "retries": 4, "since_ms": at_ms,
        "last_error": "S3 answers 503: slow down", "position": {"/default/orders": "80003"},
    }  # fmt: skip
    said = ("connector_started type=delta-sink", 'connector_attempt_failed error="S3 answers 503: slow down"')
    lines = [
        {"time_ms": at_ms + 1_000 * n, "level": ("info", "warning")[n], "text": f"2026-11-29 {text}"}
        for n, text in enumerate(said)
    ]
    for topic, body in (
        (REPORTS, {"worker": "etl-1", "connectors": [report]}),
        (LOGS, {"worker": "etl-1", "connector": "orders-to-lake", "lines": lines}),
    ):
        await cluster("topics.create", topic=topic)
        await cluster.publish(topic, json.dumps(body).encode())


async def record() -> None:
    """Let a broker work for a window, then ask everything that every view asks."""
    async with administered(**{"tier.flush_age": "2s"}) as cluster, at_work(cluster):
        for fields in (("id",), ("id", "total")):
            schema = {"type": "object", "properties": {name: {"type": "number"} for name in fields}}
            await cluster(
                "schemas.register",
                subject="orders-value",
                schema_type="json_schema",
                schema_definition=json.dumps(schema, indent=1),
            )
        await asyncio.sleep(WATCHED_S)
        await declare(cluster)
        plan = await cluster("topics.delete", topic="/shop/quiet", plan_only=True)
        await cluster.refused("topics.create", topic="/default/orders")
        change = await cluster("namespaces.create", namespace="made")
        known = {
            "plan": str(plan["plan_id"]),
            "change": str(change["call_id"]),
            "broker": cluster.broker_id,
        }
        recorder = Recorder(cluster)
        now_s = time.time()
        for number in range(ROUNDS):
            for view in VIEWS.values():
                await _ask(recorder, words_of(view.name, known), number)
            for extra in ("messages", "topics /shop", "dead-letters"):
                await _ask(recorder, extra, number)
            await asyncio.sleep(STEP_S)
        messages: list[dict[str, Any]] = []
        async with (
            connect(cluster.broker.broker_url) as client,
            client.reader("/default/orders", start="earliest") as reader,
        ):
            async for batch in reader.batches():
                messages += [item_of(message, None) for message in batch.messages()]
                if len(messages) > 40:
                    break
        await recorder.call("topics.describe", {"topic": "/default/orders"})
    tree = {"now_s": now_s, "known": known, "messages": messages[:40], "answers": recorder.answers}
    FILE.write_bytes(gzip.compress(json.dumps(tree, ensure_ascii=False).encode(), 9, mtime=0))
    print(f"{FILE}: {len(recorder.answers)} calls, {FILE.stat().st_size} bytes")


async def _ask(caller: Caller, words: str, number: int) -> None:
    target = place(words.split())
    try:
        await Feed(caller, VIEWS[target.view], target.arguments).refresh(number)
    except ClusterError as error:
        print(f"{words}: {error}")


if __name__ == "__main__":
    asyncio.run(record())
