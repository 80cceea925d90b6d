"""Bounds of one connection's share of the loop: reading in one turn, and choosing which of its streams gives way."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter

import anyio
import pytest
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.own_server import OwnServer, Times
from pydanube_core.http2.codes import PREFACE

from tests.broker.rpc.http2_peer import PADDED, Peer, data, frame, message, settings
from tests.broker.rpc.test_abuse_by_raw_sockets import attacking
from tests.support.processor import at_most
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

CALLS = 9000
STREAMS = 8000


async def test_what_one_connection_sends_is_read_in_several_turns_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    turn, handled, over = 0, Counter[int](), asyncio.Event()

    def handle(request: bytes, reply: object) -> None:
        until = time.thread_time() + 30e-6
        while time.thread_time() < until:
            pass
        handled[turn] += 1
        if handled.total() == CALLS:
            over.set()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if not over.is_set():
            loop.call_soon(next_turn)

    route = Route(hot={"/test.Test/Echo": handle})
    server = OwnServer(host="127.0.0.1", port=0, flag="grpc-port", route=route, times=Times())
    await server.start()
    peer = Peer()
    block = b"\xff" + peer.block() + bytes(255)  # much to read, and little to do
    calls = b"".join(
        frame(1, 4 | PADDED, number, block) + data(number, message(b""), end=True)
        for number in range(1, 2 * CALLS, 2)
    )
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as client, anyio.fail_after(60):
            next_turn()
            await asyncio.to_thread(client.sendall, PREFACE + settings() + settings(ack=True) + calls)
            await over.wait()
    finally:
        await server.stop(0)
    assert max(handled.values()) < CALLS // 4


async def test_streams_that_nobody_reads_are_ended_at_the_cost_of_one_look_for_many() -> None:
    async with attacking((4, 0)) as attack:
        attack.writer.write(
            b"".join(attack.head("Never", number, end=False) for number in range(1, 2 * STREAMS, 2))
        )
        with anyio.fail_after(60):
            await until(lambda: len(attack.connection.http.streams) == STREAMS)
        connection, out = attack.connection, attack.connection.http.out
        out.shared = True
        size = attack.server.limits.stuck_bytes * 5 // 4 // STREAMS
        with at_most(0.6):
            for stream in tuple(connection.http.streams.values()):
                out.data(stream, bytes(size))
                connection.flush()
        assert not out.overfull
        assert out.stuck_bytes > attack.server.limits.stuck_bytes // 2, "no more are ended than have to be"
