"""Streams end with the token by which they were let in, its time and the leeway; whoever gives a new one in time goes on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import jwt
import pytest
from pydanube import Client, connect
from pydanube_broker.serving import rights_watch
from pydanube_core.errors import Unauthenticated

from tests.cli.test_locks_live import Locked, give, locked_broker

pytestmark = pytest.mark.anyio
LIFE_S, LEEWAY_S = 1.0, 2.0  # together: for a stream to open on a busy machine
KINDS = ("reader", "consumer", "producer")


@pytest.fixture(scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Locked]:
    path = tmp_path_factory.mktemp("expiry")
    keys = path / "keys.json"
    key = {"kty": "oct", "k": "c3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3M"}
    keys.write_text(json.dumps({"keys": [key]}))
    more = {"auth.jwt_keys": str(keys), "auth.leeway": f"{LEEWAY_S}s"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rights_watch, "ROUND_S", 0.1)
        async with locked_broker(path, **more) as broker:
            await give(broker, "admin", "admin")
            await give(broker, "app", "producer,consumer", "namespace", "default")
            await broker.call("admin", "topics.create", topic="/default/app")
            await broker.call("admin", "subscriptions.create", topic="/default/app", subscription="s")
            yield broker


def token(life_s: float = LIFE_S) -> str:
    return jwt.encode({"sub": "app", "exp": time.time() + life_s}, "s" * 32)


class Renewed:
    """Gives a new token whenever it is asked for one."""

    def __init__(self, times: int) -> None:
        self._left = times
        self.often = asyncio.Event()  # it was asked so many times

    def __call__(self) -> str:
        self._left -= 1
        if not self._left:
            self.often.set()
        return token()


async def ends(client: Client, what: str) -> None:
    """Wait until the stream is ended."""
    match what:
        case "reader":
            async with client.reader("app", start="latest") as reader:
                await anext(reader)
        case "consumer":
            async with client.consumer("app", subscription="s") as consumer:
                await anext(aiter(consumer))
        case _:
            async with client.producer("written") as producer:
                while True:
                    await producer.send(b"x")
                    await asyncio.sleep(0.05)


async def outcomes(client: Client) -> list[object]:
    """How a stream of each kind ended."""
    return await asyncio.gather(*(ends(client, what) for what in KINDS), return_exceptions=True)


async def test_a_stream_ends_with_its_token(locked: Locked) -> None:
    begun = time.time()
    async with asyncio.timeout(60), connect(locked.broker.broker_url, token=token()) as client:
        assert [type(each) for each in await outcomes(client)] == 3 * [Unauthenticated]
    assert time.time() - begun >= LIFE_S + LEEWAY_S


async def test_whoever_gives_a_new_token_goes_on(locked: Locked) -> None:
    """A function as the token was asked once, and the stream ended with what it had given then."""
    async with asyncio.timeout(60), AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        streams, enough = [], []
        for what in KINDS:
            renewed = Renewed(4)
            client = await stack.enter_async_context(connect(locked.broker.broker_url, token=renewed))
            streams.append(group.create_task(ends(client, what)))
            enough.append(renewed.often.wait())
        await asyncio.gather(*enough)
        for stream in streams:
            assert not stream.done()
            stream.cancel()


async def test_a_function_that_gives_the_same_token_again_goes_on_no_longer(locked: Locked) -> None:
    given = token()
    async with asyncio.timeout(60), connect(locked.broker.broker_url, token=lambda: given) as client:
        assert [type(each) for each in await outcomes(client)] == 3 * [Unauthenticated]
