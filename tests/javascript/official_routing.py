"""The official Python client sends each key once, and reads what the JavaScript client sent: `URL TOPIC KEYS`.

Prints as JSON: key → the concrete topics of its messages.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict

from danube import DanubeClientBuilder, DispatchStrategy, SubType


async def main(url: str, topic: str, keys: list[str]) -> None:
    client = await DanubeClientBuilder().service_url(url).build()
    producer = (
        client.new_producer().with_topic(topic).with_name("official").with_partitions(7)
        .with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
    )  # fmt: skip
    await producer.create()
    consumer = (
        client.new_consumer().with_topic(topic).with_consumer_name("c").with_subscription("s")
        .with_subscription_type(SubType.SHARED).build()
    )  # fmt: skip
    await consumer.subscribe()
    inbox = await consumer.receive()
    print("subscribed", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for key in keys:
        await producer.send_with_key(b"from python", {}, key)
    found = defaultdict(list)
    for _ in range(2 * len(keys)):
        message = await asyncio.wait_for(inbox.get(), 60)
        found[message.routing_key].append(message.msg_id.topic_name)
        await consumer.ack(message)
    print(json.dumps(found), flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
