"""One process of a benchmark: a role, told by one JSON line on stdin, answering by JSON lines on stdout.

    → {"role": …, …}    what to be
    ← {"ready": true}   connected; waiting
    → go                start
    → stop              end early (roles without a number of messages)
    ← {"result": {…}}   or {"error": {…}}

Times are `time.monotonic_ns()`, which the processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final

from pydanube_client import Retry, connect
from pydanube_core.errors import WindowFull

from pydanube_cli.bench.payloads import Checker, make_payloads, percentiles_ms
from pydanube_cli.failures import cluster_error
from pydanube_cli.lines import LineSource, split_lines, stdin_pieces
from pydanube_cli.runtime import run_async

__all__ = ["ROLES", "run_role"]

CHUNK_MESSAGES: Final = 8192  # made at a time; large enough that making them vanishes in the mean
QUIET_S: Final = 15.0  # a consumer that misses messages gives up after this long without one
EACH_CHECK: Final = 4096
WARM_UP_PRODUCER: Final = 1 << 20  # no producer of the plan: such messages are not counted

Spec = dict[str, Any]


class Start:
    """The word `go`, and whether `stop` was said."""

    def __init__(self, lines: LineSource) -> None:
        self._lines = lines
        self.stopped = False

    async def go(self) -> None:
        """Say that this worker is ready, and wait."""
        _say({"ready": True})
        gathered = await self._lines.take()
        if gathered is None or gathered.payloads[0] != b"go":
            raise EOFError("the benchmark went away")
        self._watch = asyncio.ensure_future(self._until_stop())

    async def _until_stop(self) -> None:
        await self._lines.take()
        self.stopped = True

    def close(self) -> None:
        if hasattr(self, "_watch"):
            self._watch.cancel()


def _pieces(spec: Spec) -> Iterator[list[bytes]]:
    """All payloads of a producer, made as they are taken."""
    for first in range(0, spec["messages"], CHUNK_MESSAGES):
        yield make_payloads(
            producer=spec["index"],
            first=first,
            count=min(CHUNK_MESSAGES, spec["messages"] - first),
            size=spec["size"],
            now_ns=time.monotonic_ns(),
        )


async def produce_many(spec: Spec, start: Start) -> dict[str, Any]:
    """Send `messages` by the batch and wait for all."""
    async with _client(spec) as client, _producer(client, spec) as producer:
        await start.go()
        begun = time.monotonic_ns()
        # One call: what is handed over is bounded by the window, and nothing waits between pieces.
        summary = await producer.send_many(chain.from_iterable(_pieces(spec)))
        ended = time.monotonic_ns()
    return {"begun": begun, "ended": ended, "acknowledged": summary.count, "durability": summary.durability}


async def produce_each(spec: Spec, start: Start) -> dict[str, Any]:
    """Send `messages` one by one with `send_nowait`; a full window waits for an earlier one."""
    async with _client(spec) as client, _producer(client, spec) as producer:
        await start.go()
        begun = time.monotonic_ns()
        send = producer.send_nowait
        earlier: deque[Awaitable[Any]] = deque()
        sent = 0
        while sent < spec["messages"]:
            count = min(CHUNK_MESSAGES, spec["messages"] - sent)
            payloads = make_payloads(
                producer=spec["index"], first=sent, count=count, size=spec["size"], now_ns=time.monotonic_ns()
            )
            for at, payload in enumerate(payloads):
                try:
                    handle = send(payload)
                except WindowFull:
                    while True:
                        await earlier.popleft()
                        try:
                            handle = send(payload)
                            break
                        except WindowFull:
                            continue
                if not at & 511:
                    earlier.append(handle)
                    await asyncio.sleep(0)
            sent += count
        receipt = await handle
        await producer.flush()
        ended = time.monotonic_ns()
        acknowledged = producer.statistics().acknowledged_messages
    return {"begun": begun, "ended": ended, "acknowledged": acknowledged, "durability": receipt.durability}


async def send_lone(spec: Spec, start: Start) -> dict[str, Any]:
    """Send one message after another, each awaited; `messages` of them, or until told to stop."""
    limit = spec["messages"]
    async with _client(spec) as client, _producer(client, spec) as producer:
        for payload in make_payloads(
            producer=WARM_UP_PRODUCER, first=0, count=spec["warm_up"], size=spec["size"], now_ns=0
        ):
            await producer.send(payload)
        await start.go()
        begun = time.monotonic_ns()
        taken_ns: list[int] = []
        durability = ""
        while not start.stopped and (limit is None or len(taken_ns) < limit):
            now = time.monotonic_ns()
            [payload] = make_payloads(
                producer=spec["index"], first=len(taken_ns), count=1, size=spec["size"], now_ns=now
            )
            now = time.monotonic_ns()
            receipt = await producer.send(payload)
            taken_ns.append(time.monotonic_ns() - now)
            durability = receipt.durability
        ended = time.monotonic_ns()
    latencies = percentiles_ms([ns / 1e6 for ns in taken_ns])
    return {
        "begun": begun,
        "ended": ended,
        "acknowledged": len(taken_ns),
        "durability": durability,
        "latency": latencies,
    }


async def send_await(spec: Spec, start: Start) -> dict[str, Any]:
    """`coroutines` that each await one send after another, over `producers` producers of one process.

    With `messages` they share that many; without, they go on until told to stop.
    """
    limit = spec["messages"]
    async with _client(spec) as client:
        producers = [_producer(client, spec, index) for index in range(spec["producers"])]
        for producer in producers:
            await producer.__aenter__()
        try:
            await start.go()
            begun = time.monotonic_ns()
            handed = 0
            filler = b"." * (spec["size"] - 16)
            taken_ns: list[int] = []
            durability = ""

            async def caller(producer: Any) -> None:
                nonlocal handed, durability
                while not start.stopped and (limit is None or handed < limit):
                    number = handed
                    handed += 1
                    now = time.monotonic_ns()
                    payload = number.to_bytes(8, "little") + now.to_bytes(8, "little") + filler
                    receipt = await producer.send(payload)
                    taken_ns.append(time.monotonic_ns() - now)
                    durability = receipt.durability

            async with asyncio.TaskGroup() as tasks:
                for index in range(spec["coroutines"]):
                    tasks.create_task(caller(producers[index % len(producers)]))
            ended = time.monotonic_ns()
        finally:
            for producer in producers:
                await producer.__aexit__(None, None, None)
    return {
        "begun": begun,
        "ended": ended,
        "acknowledged": len(taken_ns),
        "durability": durability,
        "latency": percentiles_ms([ns / 1e6 for ns in taken_ns]),
    }


async def consume_batches(spec: Spec, start: Start) -> dict[str, Any]:
    """Take `messages` by the batch, acknowledge each batch, check every message."""
    checker = Checker(size=spec["size"])
    async with _client(spec) as client, _receiver(client, spec) as receiver:
        await start.go()
        begun = time.monotonic_ns()
        first = 0
        batches = receiver.batches()
        to_the_head = bool(spec.get("stop_at_head"))
        while to_the_head or checker.received < spec["messages"]:
            try:
                async with asyncio.timeout(QUIET_S):
                    batch = await anext(batches)
            except (TimeoutError, StopAsyncIteration):
                break
            now = time.monotonic_ns()
            first = first or now
            checker.add(batch.payloads, now)
            if spec["subscription"]:
                await batch.ack()
        ended = time.monotonic_ns()
        await batches.aclose()
    return _consumed(spec, checker, begun, first, ended)


async def consume_each(spec: Spec, start: Start) -> dict[str, Any]:
    """The same, message by message: `async for`, `ack`."""
    checker = Checker(size=spec["size"])
    wanted: int = spec["messages"]
    async with _client(spec) as client, _receiver(client, spec) as receiver:
        await start.go()
        begun = time.monotonic_ns()
        first = 0
        gathered: list[bytes] = []
        acknowledge = bool(spec["subscription"])
        taken = 0
        watchdog = asyncio.get_running_loop()
        deadline = asyncio.timeout(QUIET_S)
        try:
            async with deadline:
                async for message in receiver:
                    gathered.append(message.payload)
                    if acknowledge:
                        await message.ack()
                    taken += 1
                    if not taken % EACH_CHECK or taken == wanted:
                        now = time.monotonic_ns()
                        first = first or now
                        checker.add(gathered, now)
                        gathered.clear()
                        deadline.reschedule(watchdog.time() + QUIET_S)
                        if taken == wanted:
                            break
        except TimeoutError:
            pass
        if gathered:
            checker.add(gathered, time.monotonic_ns())
        ended = time.monotonic_ns()
    return _consumed(spec, checker, begun, first, ended)


def _consumed(spec: Spec, checker: Checker, begun: int, first: int, ended: int) -> dict[str, Any]:
    verified = checker.verify(spec["sent"])
    return {
        "begun": begun,
        "first": first,
        "ended": ended,
        "verified": {name: getattr(verified, name) for name in verified.__slots__},
        "latency": percentiles_ms(checker.latencies_ms()),
    }


ROLES: Final[dict[str, Callable[[Spec, Start], Awaitable[dict[str, Any]]]]] = {
    "produce_many": produce_many,
    "produce_each": produce_each,
    "send_lone": send_lone,
    "send_await": send_await,
    "consume_batches": consume_batches,
    "consume_each": consume_each,
}


def _client(spec: Spec) -> Any:
    return connect(spec["broker"], retry=Retry(max_elapsed_s=spec["timeout_s"]))


def _producer(client: Any, spec: Spec, index: int = 0) -> Any:
    return client.producer(
        spec["topic"], compression=spec.get("compression", "none"), name=f"bench-{spec['index']}-{index}"
    )


def _receiver(client: Any, spec: Spec) -> Any:
    if spec["subscription"]:
        return client.consumer(spec["topic"], spec["subscription"])
    return client.reader(spec["topic"], stop="head" if spec.get("stop_at_head") else None)


async def run_role(spec: Spec, lines: LineSource) -> None:
    """Play the role and say how it went."""
    start = Start(lines)
    try:
        result = await ROLES[spec["role"]](spec, start)
    except Exception as error:
        _say({"error": cluster_error(error).to_dict()})
    else:
        _say({"result": result})
    finally:
        start.close()


async def _main() -> None:
    # Each line is a word of its own: a piece may hold several.
    async with LineSource(
        lambda: ([line] for lines in split_lines(stdin_pieces()) for line in lines)
    ) as lines:
        gathered = await lines.take()
        if gathered is None:
            return
        await run_role(json.loads(gathered.payloads[0]), lines)


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message, default=str), flush=True)


if __name__ == "__main__":
    try:
        run_async(partial(_main))
    except KeyboardInterrupt:
        sys.exit(130)
