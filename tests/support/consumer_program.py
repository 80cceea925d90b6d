"""One consumer in a process of its own, to be killed or paused by a test: `python consumer_program.py URL TOPIC …`.

Prints one JSON object a line and flushes it: `{"event": "ready", "active"}` once it is attached, then for each message
`{"offset", "partition", "key", "payload", "delivery_count"}`, printed before the message is acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from pydanube import Retry, connect


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def consume(options: argparse.Namespace) -> None:
    async with (
        connect(options.url, retry=Retry(max_elapsed_s=600, initial_s=0.02, max_delay_s=0.2)) as client,
        client.consumer(
            options.topic,
            options.subscription,
            type=options.type,
            name=options.name,
            credit_messages=options.credit,
            key_filters=options.key_filter,
        ) as consumer,
    ):
        say(event="ready", active=consumer.active)
        async for message in consumer:
            say(
                offset=message.offset,
                partition=message.partition,
                key=message.key,
                payload=message.payload.decode(),
                delivery_count=message.delivery_count,
            )
            if options.hold:
                continue
            if options.pause_ms:
                await asyncio.sleep(options.pause_ms / 1000)
            await message.ack()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("topic")
    parser.add_argument("subscription")
    parser.add_argument("--type", default="exclusive")
    parser.add_argument("--name")
    parser.add_argument("--credit", type=int, default=10_000)
    parser.add_argument("--pause-ms", type=float, default=0, help="work on each message")
    parser.add_argument("--hold", action="store_true", help="never acknowledge")
    parser.add_argument("--key-filter", action="append", default=[])
    asyncio.run(consume(parser.parse_args()))


if __name__ == "__main__":
    main()
