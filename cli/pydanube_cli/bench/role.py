"""Shared by all roles of a worker: the start signal, and clients, producers and receivers by its specification."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

from pydanube import Retry, connect

from pydanube_cli.bench.sampling import Sampler
from pydanube_cli.messages.lines import LineSource

AT_ONCE: Final = 32
QUIET_S: Final = 15.0  # a consumer that misses messages gives up after this long without one

Spec: TypeAlias = dict[str, Any]


class Start:
    """The start signal: the processor time used before it, and whether `stop` has arrived.

    A `sampler` starts with it.
    """

    def __init__(self, lines: LineSource, sampler: Sampler | None = None) -> None:
        self._lines = lines
        self._sampler = sampler
        self.stopped = False
        self.cpu_before_s = 0.0

    async def go(self) -> None:
        """Report that this worker is ready, and wait for `go`."""
        say({"ready": True})
        gathered = await self._lines.take()
        if gathered is None or gathered.payloads[0] != b"go":
            raise EOFError("the benchmark went away")
        self.cpu_before_s = time.process_time()
        if self._sampler is not None:
            self._sampler.start()
        self._watch = asyncio.ensure_future(self._until_stop())

    def cpu_s(self) -> float:
        """Processor time of this process since `go`."""
        return time.process_time() - self.cpu_before_s

    async def _until_stop(self) -> None:
        await self._lines.take()
        self.stopped = True

    def close(self) -> None:
        if hasattr(self, "_watch"):
            self._watch.cancel()


async def for_every(numbers: Iterable[int], work: Callable[[int], Awaitable[None]]) -> None:
    """Do the work for every number, AT_ONCE of them at a time."""
    left = iter(numbers)

    async def in_turn() -> None:
        for number in left:
            await work(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(in_turn())


def open_client(spec: Spec) -> Any:
    return connect(spec["broker"], retry=Retry(max_elapsed_s=spec["timeout_s"]))


def open_producer(client: Any, spec: Spec, index: int = 0) -> Any:
    return client.producer(
        spec["topic"], compression=spec.get("compression", "none"), name=f"bench-{spec['index']}-{index}"
    )


def open_receiver(client: Any, spec: Spec) -> Any:
    if spec["subscription"]:
        return client.consumer(
            spec["topic"],
            spec["subscription"],
            type=spec.get("sub_type", "exclusive"),
            name=f"bench-{spec['index']}",
        )
    return client.reader(spec["topic"], stop="head" if spec.get("stop_at_head") else None)


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message, default=str), flush=True)
