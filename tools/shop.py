"""An online shop that works, for pictures and walks: topics, programs that publish, and workers of which one is behind.

    python -m tools.shop --broker http://127.0.0.1:6650 --seconds 60

What it publishes is made up, with names that people read. `tools/pictures.py` takes its pictures while it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from pydanube import AlreadyExists, Client, Message, connect

CUSTOMERS: Final = ("ada", "bela", "chandra", "dilip", "emma", "farid", "greta", "hiro", "ines", "jonas")
ARTICLES: Final = (
    ("green tea, 100 g", 12.5), ("teapot, cast iron", 49.0), ("cups, set of four", 28.0), ("honey, lime blossom", 7.9),
    ("filter papers", 3.2), ("coffee, Sidamo", 11.4), ("hand mill", 64.0), ("gift card", 25.0),
)  # fmt: skip
CITIES: Final = ("Vienna", "Bratislava", "Budapest", "Belgrade", "Ulm", "Regensburg", "Linz", "Novi Sad")


def order(number: int) -> dict[str, Any]:
    article, price = random.choice(ARTICLES)
    count = random.randint(1, 3)
    return {
        "order": 10_000 + number,
        "customer": random.choice(CUSTOMERS),
        "article": article,
        "count": count,
        "total": round(price * count, 2),
    }


def payment(number: int) -> dict[str, Any]:
    return {"order": 10_000 + number, "method": random.choice(("card", "invoice", "transfer")), "paid": True}


def shipment(number: int) -> dict[str, Any]:
    return {"order": 10_000 + number, "to": random.choice(CITIES), "parcel": f"DN{number:07d}"}


def visit(number: int) -> dict[str, Any]:
    return {
        "customer": random.choice(CUSTOMERS),
        "page": f"/articles/{number % 40}",
        "ms": random.randint(8, 140),
    }


#: topic → what is published, messages a second, partitions
TOPICS: Final[dict[str, tuple[Callable[[int], dict[str, Any]], int, int | None]]] = {
    "/shop/orders": (order, 12, None),
    "/shop/payments": (payment, 10, None),
    "/shop/shipments": (shipment, 6, None),
    "/shop/page-views": (visit, 120, 3),
    "/warehouse/stock": (shipment, 4, None),
}
#: one that nothing happens in any more, with a subscription
QUIET: Final = ("/warehouse/returns", "claims")
#: topic, subscription, type, seconds that its worker takes for a message
WORKERS: Final = (
    ("/shop/orders", "billing", "shared", 0.002),
    ("/shop/orders", "fraud-check", "exclusive", 0.4),  # too slow: it falls behind
    ("/shop/orders", "warehouse", "failover", 0.003),
    ("/shop/payments", "ledger", "exclusive", 0.001),
    ("/shop/shipments", "tracking-mails", "shared", 0.01),
    ("/shop/page-views", "recommendations", "key-shared", 0.0),
    ("/warehouse/stock", "purchasing", "exclusive", 0.002),
)


async def _publish(client: Client, topic: str) -> None:
    make, each_s, partitions = TOPICS[topic]
    number = 0
    async with client.producer(topic, partitions=partitions, name=topic.rpartition("/")[2]) as producer:
        while True:
            for _ in range(max(1, each_s // 4)):
                number += 1
                event = make(number)
                await producer.send(
                    json.dumps(event).encode(), key=str(event.get("customer", event.get("order")))
                )
            await asyncio.sleep(random.uniform(0.15, 0.35))


async def _work(client: Client, topic: str, subscription: str, type_: Any, takes_s: float) -> None:
    async with client.consumer(
        topic, subscription, type=type_, name=f"{subscription}-1", create=True
    ) as consumer:
        async for message in consumer:
            await asyncio.sleep(takes_s)
            await message.ack()


async def fill(client: Client, *, messages: int = 2000) -> None:
    """Make the topics, with some history in each."""
    for namespace in ("shop", "warehouse"):
        with suppress(AlreadyExists):
            await client.admin.namespaces.create(namespace)
    quiet, claims = QUIET
    for topic, (make, _, partitions) in {**TOPICS, quiet: (shipment, 0, None)}.items():
        events = map(make, range(messages))
        async with client.producer(topic, partitions=partitions) as producer:
            await producer.send_many(
                Message.new(json.dumps(event).encode(), key=str(event.get("customer", event.get("order"))))
                for event in events
            )
    with suppress(AlreadyExists):
        await client.admin.subscriptions.create(quiet, claims, start="earliest")


async def trade(url: str, *, seconds: float) -> None:
    """Let the shop work for a time."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(url))
        await fill(client)
        tasks = [asyncio.create_task(_publish(client, topic)) for topic in TOPICS]
        tasks += [asyncio.create_task(_work(client, *worker)) for worker in WORKERS]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error


def main() -> None:
    parser = argparse.ArgumentParser(description="An online shop, for pictures of a broker at work.")
    parser.add_argument("--broker", default="http://127.0.0.1:6650")
    parser.add_argument("--seconds", type=float, default=3600.0)
    given = parser.parse_args()
    asyncio.run(trade(given.broker, seconds=given.seconds))


if __name__ == "__main__":
    main()
