"""The load of `tier.py`: lines of a log, and the processes that send and read them."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.broker_process import BrokerProcess, client_environment

TOPIC: Final = "bench"
SEED: Final = 20_261_121
POOL: Final = 24_000  # distinct lines: more than any compressor's window, and quick to make
DEADLINE_S: Final = 900.0
_TEXT: Final = """
    accepted cache client closed commit connection database deadline elapsed entry error event expired failed fetch
    flush handler hit index insert invalid key latency limit lock lookup miss open order parse partition payload
    payment peer pool queue read rebalance refused region replica request reset response retry route scan schema
    session shard slow snapshot started status stream timeout token topic update upstream user valid wait worker write
"""


def log_lines(count: int, size: int) -> list[bytes]:
    """Lines of a service's log, `size` bytes each: time, level, host, two ids, then words and numbers."""
    found = random.Random(SEED)
    words = _TEXT.split()
    hosts = [f"web-{number:02d}.eu-west-{zone}" for number in range(24) for zone in (1, 2)]
    lines = []
    for number in range(count):
        parts = [
            f"2026-11-21T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}.{found.randrange(1000):03d}Z",
            found.choice(("INFO", "INFO", "INFO", "WARN", "ERROR")),
            found.choice(hosts),
            f"req={found.getrandbits(64):016x} trace={found.getrandbits(64):016x}",
        ]
        length = sum(map(len, parts)) + len(parts)
        while length < size:
            word = str(found.randrange(100_000)) if found.random() < 0.2 else found.choice(words)
            parts.append(word)
            length += len(word) + 1
        lines.append(" ".join(parts)[:size].ljust(size).encode())
    return lines


async def produce(spec: dict[str, Any]) -> dict[str, Any]:
    """Send `messages`, or as many as go in `seconds`."""
    from pydanube import connect

    lines = log_lines(POOL, spec["size"])
    async with connect(spec["broker"]) as client, client.producer(TOPIC) as producer:
        begun = time.monotonic()
        sent = iter(itertools.cycle(lines))
        if spec["messages"] is not None:
            sent = itertools.islice(sent, spec["messages"])
        else:
            end = begun + spec["seconds"]
            sent = itertools.takewhile(lambda _: time.monotonic() < end, sent)
        summary = await producer.send_many(sent)
        ended = time.monotonic()
    return {"messages": summary.count, "begun": begun, "ended": ended}


async def consume(spec: dict[str, Any]) -> dict[str, Any]:
    """Take `messages` by the batch; offsets must follow each other."""
    from pydanube import connect

    async with connect(spec["broker"]) as client:
        begun = time.monotonic()
        first, taken = 0.0, 0
        # what it asks for is there already, or its subscription begins before the first
        async with client.consumer(TOPIC, spec["subscription"]) as consumer:
            async for batch in consumer.batches():
                first = first or time.monotonic()
                offsets = batch.offsets
                if offsets[0] != taken or offsets[-1] != taken + len(offsets) - 1:
                    raise AssertionError(f"offset {offsets[0]} came where {taken} was due")
                taken += len(offsets)
                await batch.ack()
                if taken >= spec["messages"]:
                    break
            ended = time.monotonic()
    return {"messages": taken, "begun": begun, "first": first, "ended": ended}


ROLES: Final[dict[str, Any]] = {"produce": produce, "consume": consume}


class Load:
    """A load generator in a process of its own."""

    def __init__(self, role: str, broker: BrokerProcess, **spec: Any) -> None:
        words = json.dumps({"role": role, "broker": broker.url, **spec})
        self._process = subprocess.Popen(
            [sys.executable, __file__, words], stdout=subprocess.PIPE, env=client_environment()
        )

    def result(self) -> dict[str, Any]:
        out, _ = self._process.communicate(timeout=DEADLINE_S)
        if self._process.returncode:
            raise SystemExit("a load generator failed; what it said is above")
        found: dict[str, Any] = json.loads(out)
        found["per_s"] = round(found["messages"] / (found["ended"] - found["begun"]))
        return found


def load(role: str, broker: BrokerProcess, **spec: Any) -> dict[str, Any]:
    return Load(role, broker, **spec).result()


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(ROLES[wanted["role"]](wanted))))
