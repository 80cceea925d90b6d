"""The official Python client over TLS: argument 1 the URL, 2 the authority, 3 a token where one is needed. Prints what came back."""

import asyncio
import sys
import tempfile
from pathlib import Path

from danube import DanubeClientBuilder, SubType


async def main(url: str, authority: str, token: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ca = Path(folder) / "ca.crt"
        ca.write_text(authority)
        builder = DanubeClientBuilder().service_url(url).with_tls(str(ca))
    if token:
        builder = builder.with_token(token)
    client = await builder.build()
    producer = client.new_producer().with_topic("/default/orders").with_name("p").build()
    await producer.create()
    consumer = (
        client.new_consumer()
        .with_topic("/default/orders")
        .with_consumer_name("c")
        .with_subscription("s")
        .with_subscription_type(SubType.EXCLUSIVE)
        .build()
    )
    await consumer.subscribe()
    queue = await consumer.receive()
    await producer.send(b"over TLS")
    message = await asyncio.wait_for(queue.get(), 30)
    await consumer.ack(message)
    print(message.payload.decode())
    await producer.close()
    await consumer.close()


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3]))
