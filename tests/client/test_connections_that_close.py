"""A client that was closed has closed its connection: not when the garbage collector comes by, and after errors too."""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pydanube
import pytest
from pydanube import ClusterError

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="NOT RUN: descriptors are looked up in /proc"),
]


@pytest.fixture(scope="module")
def url(start_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("closing")
    found: str = start_broker(folder, 0).url
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def nothing_left_behind() -> AsyncIterator[None]:
    """The block leaves no descriptor open, though nobody collects garbage."""
    gc.collect()
    await asyncio.sleep(0)
    before = descriptors()
    gc.disable()
    try:
        yield
        for _ in range(200):  # gRPC closes sockets in a thread of its own
            if descriptors() <= before:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{descriptors()} descriptors are open, {before} were before")
    finally:
        gc.enable()


async def test_producers_and_consumers(url: str) -> None:
    async with pydanube.connect(url) as client, client.producer("closing") as producer:
        await producer.send(b"first")  # what gRPC opens once stays
    async with nothing_left_behind():
        for number in range(4):
            async with pydanube.connect(url) as client, client.producer("closing") as producer:
                await producer.send(b"%d" % number)
            async with pydanube.connect(url) as client, client.consumer("closing", "s") as consumer:
                for message in await consumer.receive(max_messages=1, max_wait_s=5):
                    await message.ack()


async def test_after_refusals(url: str) -> None:
    async with pydanube.connect(url) as client, client.producer("refusing"):
        pass
    async with nothing_left_behind():
        for _ in range(4):
            async with pydanube.connect(url) as client:
                with pytest.raises(ClusterError):
                    async with client.producer("refusing", dispatch_strategy="non_reliable"):
                        pass
                with pytest.raises(ClusterError):
                    async with client.consumer("nowhere", "s"):
                        pass
