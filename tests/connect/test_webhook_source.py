"""`webhook-source`: answered after the receipt, bounded, with tokens."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from pydanube.testing import InMemoryCluster
from pydanube_connect.file import declared
from pydanube_connect.running import run_all, runner_of
from pydanube_connect.sourcing import SourceRunner
from pydanube_core.errors import PortInUse

from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def listening(memory: InMemoryCluster, **settings: Any) -> AsyncIterator[tuple[str, SourceRunner, Any]]:
    tree = {
        "name": "w", "connector": "webhook-source", "topic": "hooks",
        "settings": {"listen": "127.0.0.1:0", **settings},
    }  # fmt: skip
    stop = anyio.Event()
    async with memory.connect() as client:
        runner = runner_of(declared(tree, path="w.toml"), client, stop=stop)
        assert isinstance(runner, SourceRunner)
        source: Any = runner.source
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_all, [runner])
            await until(lambda: source.port)
            yield f"http://127.0.0.1:{source.port}", runner, client
            stop.set()


async def messages(client: Any) -> list[Any]:
    async with client.reader("hooks", stop="head") as reader:
        return [message async for message in reader]


async def test_a_request_is_a_message_when_it_is_answered(memory: InMemoryCluster) -> None:
    async with (
        listening(memory, key_header="X-Id", headers=["Content-Type"]) as (url, _, client),
        httpx.AsyncClient() as http,
    ):
        for n in range(3):
            answer = await http.post(
                url, content=b"body %d" % n, headers={"X-Id": str(n), "Content-Type": "text/x"}
            )
            assert answer.status_code == 200
            found = await messages(client)
            assert len(found) == n + 1, "durable before the answer"
        assert (found[2].payload, found[2].key, found[2].attributes) == (
            b"body 2",
            "2",
            {"content-type": "text/x"},
        )


async def test_many_requests_at_once_are_batches(memory: InMemoryCluster) -> None:
    async with listening(memory) as (url, runner, client), httpx.AsyncClient() as http:
        async with anyio.create_task_group() as tasks:
            for n in range(200):
                tasks.start_soon(_post, http, url, b"%d" % n)
        assert sorted(int(message.payload) for message in await messages(client)) == list(range(200))
        assert runner.statistics.batches < 200


async def _post(http: httpx.AsyncClient, url: str, body: bytes) -> None:
    assert (await http.post(url, content=body)).status_code == 200


async def test_arrays_and_lines_are_split(memory: InMemoryCluster) -> None:
    async with listening(memory, split="array") as (url, _, client), httpx.AsyncClient() as http:
        assert (await http.post(url, json=[{"a": 1}, {"a": 2}])).status_code == 200
        assert (await http.post(url, json={"a": 3})).status_code == 400
        assert [message.payload for message in await messages(client)] == [b'{"a":1}', b'{"a":2}']


async def test_what_is_not_meant_for_it_is_refused(memory: InMemoryCluster) -> None:
    settings = {"token": "open-sesame", "path": "/in", "max_body_bytes": 100}
    async with listening(memory, **settings) as (url, _, client), httpx.AsyncClient() as http:
        good = {"Authorization": "Bearer open-sesame"}
        assert (await http.post(f"{url}/in", content=b"x", headers=good)).status_code == 200
        assert (await http.post(f"{url}/in", content=b"x")).status_code == 401
        assert (
            await http.post(f"{url}/in", content=b"x", headers={"Authorization": "Bearer no"})
        ).status_code == 401
        assert (await http.post(f"{url}/else", content=b"x", headers=good)).status_code == 404
        assert (await http.get(f"{url}/in", headers=good)).status_code == 405
        assert (await http.post(f"{url}/in", content=b"x" * 101, headers=good)).status_code == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * 50

        assert (await http.post(f"{url}/in", content=chunks(), headers=good)).status_code == 413
        assert len(await messages(client)) == 1


async def test_what_waits_is_bounded(memory: InMemoryCluster) -> None:
    async with listening(memory, max_waiting=1) as (url, runner, _), httpx.AsyncClient() as http:
        source: Any = runner.source
        stored, reached, hold = source.stored, anyio.Event(), anyio.Event()

        async def later(batch: Any) -> None:
            reached.set()
            await hold.wait()
            await stored(batch)

        source.stored = later
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_post, http, url, b"1")
            await reached.wait()
            answer = await http.post(url, content=b"2")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            hold.set()


async def test_a_taken_port_is_a_sentence(memory: InMemoryCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        tree = {
            "name": "w", "connector": "webhook-source", "topic": "hooks",
            "settings": {"listen": f"127.0.0.1:{taken.getsockname()[1]}"},
        }  # fmt: skip
        async with memory.connect() as client:
            runner = runner_of(declared(tree, path="w.toml"), client, stop=anyio.Event())
            with pytest.raises(PortInUse, match=r"settings\.listen.*choose another"):
                await runner.run()
