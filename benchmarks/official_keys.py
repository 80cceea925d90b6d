"""What a key-shared subscription of official consumers gives a second, by the number of keys; two versions in turns.

    python benchmarks/official_keys.py [--keys 10 1000 10000] [--messages 20000] [--rounds 3] [--against /path/to/danube]

A broker of its own. The messages are published before; then `--consumers` official consumers take them, each with up to 32 acks under
way. Printed for each number of keys: the median of messages a second, and of the broker's processor time a message; with
`--against` beside those of another version, each round one run of both.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from pydanube import Message, connect
from pydanube.wire.http2_transport import Http2Transport
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.services import CONSUMER_SERVICE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import USUAL, parser_of, processor_s
from tests.support.broker_process import BrokerProcess

KEY_SHARED = 3
ACKS = 32
TOPIC = "/default/keyed"


async def consume(url: str, name: str, taken: list[int], wanted: int, over: asyncio.Event) -> None:
    """Take messages and acknowledge each, until all consumers together have all."""
    transport = Http2Transport(url)
    acks: set[asyncio.Task[object]] = set()

    async def call(method: str, request: pb.ConsumerRequest | pb.AckRequest) -> bytes:
        return await transport.call(CONSUMER_SERVICE[method].path, request.SerializeToString(), timeout_s=30)

    try:
        asked = pb.ConsumerRequest(
            topic_name=TOPIC,
            consumer_name=name,
            subscription="s",
            subscription_type=KEY_SHARED,  # type: ignore[arg-type]
        )
        opened = pb.ConsumerResponse.FromString(await call("Subscribe", asked))
        receiving = pb.ReceiveRequest(request_id=1, consumer_id=opened.consumer_id).SerializeToString()
        stream = await transport.ask(CONSUMER_SERVICE["ReceiveMessages"].path, receiving)
        while not over.is_set():
            reading = asyncio.ensure_future(stream.read())
            ended = asyncio.ensure_future(over.wait())
            await asyncio.wait([reading, ended], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if not reading.done():
                reading.cancel()
                break
            data = reading.result()
            assert data is not None, "the stream ended"
            message = pb.StreamMessage.FromString(data)
            if len(acks) >= ACKS:
                _, acks = await asyncio.wait(acks, return_when=asyncio.FIRST_COMPLETED)
            acks.add(
                asyncio.ensure_future(
                    call("Ack", pb.AckRequest(msg_id=message.msg_id, subscription_name="s"))
                )
            )
            taken.append(message.msg_id.topic_offset)
            if len(taken) >= wanted:
                over.set()
        if acks:
            await asyncio.wait(acks)
    finally:
        await transport.aclose()


async def run(broker: BrokerProcess, keys: int, messages: int, consumers: int) -> tuple[float, float]:
    """Return messages a second, and the broker's processor seconds a message."""
    chosen = random.Random(1)
    async with connect(broker.url) as client:
        async with client.producer("keyed") as producer:
            await producer.send(b"first", key="0")
        taken: list[int] = []
        over = asyncio.Event()
        async with client.consumer(
            "keyed", "s", type="key-shared"
        ) as consumer:  # the subscription begins here
            assert await consumer.receive(max_wait_s=0) == []
        async with client.producer("keyed") as producer:
            await producer.send_many(
                [Message.new(bytes(128), key=str(chosen.randrange(keys))) for _ in range(messages)]
            )
        before, begun = processor_s(broker.pid), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(consumers):
                group.create_task(consume(broker.url, f"c{number}", taken, messages, over))
        took = time.perf_counter() - begun
    assert len(set(taken)) == messages
    return messages / took, (processor_s(broker.pid) - before) / messages


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[10, 1000, 10_000])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", help="the danube of another version")
    options = parser.parse_args()
    programs = [None, *([options.against] if options.against else [])]
    for keys in options.keys:
        found: dict[str | None, list[tuple[float, float]]] = {program: [] for program in programs}
        for turn in range(options.rounds):
            for program in programs[:: 1 if turn % 2 else -1]:
                with (
                    tempfile.TemporaryDirectory() as folder,
                    BrokerProcess(Path(folder), environment=USUAL, face="broker", program=program) as broker,
                ):
                    found[program].append(uvloop.run(run(broker, keys, options.messages, options.consumers)))
        for program, runs in found.items():
            rate, used = (statistics.median(column) for column in zip(*runs, strict=True))
            print(
                f"{keys:>6} keys  {program or 'this version'}: {rate:,.0f} messages/s, {used * 1e6:.0f} µs of the broker each",
                flush=True,
            )


if __name__ == "__main__":
    main()
