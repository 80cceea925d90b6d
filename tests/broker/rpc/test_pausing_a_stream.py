"""Reading of one stream pauses and goes on as its handler says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import grpc.aio
import pytest
from pydanube_broker.rpc.hot import Route, StreamReply
from pydanube_broker.rpc.own_server import OwnServer

pytestmark = pytest.mark.anyio

PATH = "/test.Test/Stream"


class Paused:
    """A stream that pauses at its first message."""

    def __init__(self, reply: StreamReply) -> None:
        self.reply = reply
        self.messages: list[bytes] = []
        self.first = asyncio.Event()
        self.all = asyncio.Event()

    def on_message(self, message: bytes) -> None:
        self.messages.append(message)
        if len(self.messages) == 1:
            self.reply.pause_reading()
            self.first.set()

    def on_credit(self) -> None: ...

    def on_half_close(self) -> None:
        self.reply.end()

    def on_close(self) -> None:
        self.all.set()


async def test_going_on_and_pausing_again_in_one_turn_lets_no_message_through() -> None:
    """A publish stream does so when the disk is behind, and a batch that slips through would be out of sequence."""
    opened: asyncio.Future[Paused] = asyncio.get_running_loop().create_future()

    def opener(reply: StreamReply) -> Paused:
        opened.set_result(Paused(reply))
        return opened.result()

    server = OwnServer(host="127.0.0.1", port=0, flag="grpc-port", route=Route(streams={PATH: opener}))
    await server.start()

    async def requests() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    with anyio.fail_after(60):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call: Any = channel.stream_stream(PATH)(requests())
            stream = await opened
            await stream.first.wait()
            for _ in range(5):
                stream.reply.resume_reading()
                stream.reply.pause_reading()
                await asyncio.sleep(0.02)  # what is let through comes at once
            assert stream.messages == [b"0"]
            stream.reply.resume_reading()
            await stream.all.wait()
            assert stream.messages == [b"0", b"1", b"2"]
            assert await call.code() is grpc.StatusCode.OK
        await server.stop(0)
