"""A TCP relay in front of a server that can go silent or cut its connections, in the test's own loop.

async with Relay(port) as relay:
    connect to 127.0.0.1:{relay.port}
    relay.silent = True      # connections stand and bring nothing more; new ones are taken and answer nothing
    relay.cut()              # every connection ends, new ones are carried
    relay.holding = True     # what clients send is kept back, in `held`, until `release`
    relay.lost = Way.OUT     # what clients send is lost, and the answers arrive; Way.BACK: the other way round
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum
from types import TracebackType
from typing import Self


class Way(Enum):
    """A direction of a connection, as its client sees it."""

    OUT = "out"
    BACK = "back"


class Relay:
    """A relay between clients and a server, as the module describes."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.silent = False
        self.holding = False
        self.lost: Way | None = None
        self.bytes_lost = 0
        self.held: list[tuple[asyncio.StreamWriter, bytes]] = []
        self.bytes_back = 0
        self.connections = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End every connection at once."""
        for writer in self._writers:
            writer.transport.abort()

    def release(self, count: int) -> None:
        """Send the first so many pieces that were held, and drop the others."""
        for writer, data in self.held[:count]:
            writer.write(data)
        self.held.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._upstream)
            self._writers.add(back)
            try:
                await asyncio.gather(self._pump(reader, back, out=True), self._pump(there, writer, out=False))
            finally:
                back.close()
                self._writers.discard(back)
        except OSError:
            pass  # one side has gone: so does the other
        finally:
            writer.close()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, out: bool) -> None:
        while data := await reader.read(65536):
            if self.silent:
                continue
            if self.lost is (Way.OUT if out else Way.BACK):
                self.bytes_lost += len(data)
                continue
            if self.holding and out:
                self.held.append((writer, data))
                continue
            self.bytes_back += 0 if out else len(data)
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
