"""A client that one task closes while another opens or uses something of it: the other one gets an error, at every step."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydanube import Client, ClosedResource, ClusterError
from pydanube.tasks import TaskOwner
from pydanube.testing import InMemoryCluster

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]

Use = Callable[[Client, list[object]], Awaitable[None]]  # and what came back so far
NUMBERS = itertools.count()  # of subscriptions, which all begin with the first message
# of the loop, at least. It goes on until a message has come: when it does is a matter of sockets.
STEPS, MOST_STEPS = 60, 1000


async def produces(client: Client, seen: list[object]) -> None:
    async with client.producer("t") as producer:
        while True:
            seen.append(await producer.send(b"x"))


async def consumes(client: Client, seen: list[object]) -> None:
    async with client.consumer("t", f"s{next(NUMBERS)}", start="earliest") as consumer:
        async for message in consumer:
            seen.append(message)
            await message.ack()
    raise ClosedResource("the iteration ended")


async def reads(client: Client, seen: list[object]) -> None:
    async with client.reader("t", start="earliest") as reader:
        async for message in reader:
            seen += [message]
    raise ClosedResource("the iteration ended")


async def requests(client: Client, seen: list[object]) -> None:
    seen.append(await client.request("service", b"x", timeout_s=30))


@pytest.mark.parametrize(
    ("use", "kind"), [(produces, "publish "), (consumes, "consumer "), (reads, "reader ")]
)
async def test_a_client_that_is_closed_before_the_first_step_of_its_task_fails_its_opener(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, use: Use, kind: str
) -> None:
    """A task that is cancelled then runs none of its lines, and the opener waited for ever."""
    closing: list[asyncio.Task[None]] = []
    start = TaskOwner.start

    def started(self: TaskOwner, work: Any, *, name: str, **more: Any) -> Any:
        if name.startswith(kind):
            closing.append(asyncio.ensure_future(client.aclose()))  # its step comes before that of the task
        return start(self, work, name=name, **more)

    monkeypatch.setattr(TaskOwner, "start", started)
    memory.create_topic("t")
    client = memory.connect()
    await client.__aenter__()
    async with asyncio.timeout(20):
        with pytest.raises(ClosedResource, match="is closed"):
            await use(client, [])
    await asyncio.gather(*closing)


@pytest.mark.parametrize("use", [produces, consumes, reads, requests])
async def test_a_user_of_a_client_that_is_closed_ends_with_an_error(
    memory: InMemoryCluster, use: Use
) -> None:
    memory.create_topic("t")
    async with memory.connect() as other, other.producer("t") as producer:
        await producer.send(b"first")
    for steps in range(MOST_STEPS):
        client = memory.connect()
        await client.__aenter__()
        user = asyncio.ensure_future(use(client, seen := []))
        for _ in range(steps):
            await asyncio.sleep(0)
        came = bool(seen) or use is requests  # which nothing answers
        closing = asyncio.ensure_future(client.aclose())
        _, left = await asyncio.wait({user, closing}, timeout=20)
        assert not left, f"after {steps} steps"
        assert not user.cancelled(), f"after {steps} steps: nothing cancelled it"
        assert isinstance(user.exception(), ClusterError)
        await closing
        if came and steps >= STEPS:
            break
    else:
        pytest.fail(f"nothing came back within {MOST_STEPS} steps")
