"""A stream is told of its end exactly once, whatever ends it, also when two things do at once."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio.lowlevel
import pytest
from pydanube_broker.rpc.grpcio_server import GrpcioServer
from pydanube_broker.rpc.hot import Route, StreamReply

pytestmark = pytest.mark.anyio

PATH = "/test.Test/Stream"


class Stream:
    """A stream that counts its ends."""

    def __init__(self, reply: StreamReply) -> None:
        self.reply = reply
        self.closed = 0

    def on_message(self, message: bytes) -> None:
        assert not self.closed

    def on_credit(self) -> None: ...

    def on_half_close(self) -> None: ...

    def on_close(self) -> None:
        self.closed += 1


class SilentContext:
    """grpcio's context of a call on which nothing comes."""

    async def read(self) -> Any:
        await asyncio.get_running_loop().create_future()

    async def write(self, message: bytes) -> None: ...


@pytest.mark.parametrize("turns", range(6))
async def test_a_handler_that_is_cancelled_twice_tells_its_stream(turns: int) -> None:
    """Under load a client's cancellation met a stream that was ending: its producer or consumer stayed for ever."""
    streams: list[Stream] = []

    def opener(reply: StreamReply) -> Stream:
        streams.append(Stream(reply))
        return streams[-1]

    server = GrpcioServer(host="127.0.0.1", port=0, flag="--grpc-port", route=Route(streams={PATH: opener}))
    handle = server._stream(PATH, opener).stream_stream
    call = asyncio.ensure_future(handle(None, SilentContext()))
    await anyio.lowlevel.checkpoint()
    call.cancel()
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert [stream.closed for stream in streams] == [1]
    await server.stop(None)
