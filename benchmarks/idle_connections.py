"""What connections cost a broker while nothing happens on them.

    python benchmarks/idle_connections.py [--connections 5000] [--consumers 1000] [--json]

Two brokers, one after the other, each with its data on disk:

* consumers: so many official consumers (grpcio's client, 100 connections), each with an open stream and a health check
  every 5 s: the broker's processor over 15 s;
* connections: so many HTTP/2 connections that have made one call each and now wait: the broker's memory.

Goals: 1 000 consumers ≤ 6 % of a core, 5 000 connections < 300 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.idle_consumers import idle_costs
from benchmarks.measuring import USUAL, parser_of, resident_bytes
from tests.support.broker_process import BrokerProcess

FRAME = struct.Struct(">HBBBI")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, DATA, ACK = 4, 1, 0, 1


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return FRAME.pack(len(body) >> 8, len(body) & 0xFF, kind, flags, stream) + body


def field(name: bytes, value: bytes) -> bytes:
    """A header that is never indexed, as it is."""
    return b"\x10" + bytes((len(name),)) + name + bytes((len(value),)) + value


REQUEST = b"".join(
    (
        field(b":method", b"POST"),
        field(b":scheme", b"http"),
        field(b":path", b"/grpc.health.v1.Health/Check"),
        field(b":authority", b"localhost"),
        field(b"content-type", b"application/grpc"),
        field(b"te", b"trailers"),
    )
)
GREETING = (
    PREFACE
    + frame(SETTINGS, 0, 0)
    + frame(SETTINGS, ACK, 0)
    + frame(HEADERS, 4, 1, b"\x20" + REQUEST)
    + frame(DATA, 1, 1, bytes(5))
)


class Idle(asyncio.Protocol):
    """A connection that makes one call and waits."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        if b"\x08\x01" in data and not self.answered.done():  # the message of an answer: SERVING
            self.answered.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(error or ConnectionError("closed before it was answered"))


async def connect(broker: BrokerProcess, count: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    host, _, port = broker.url.removeprefix("http://").rpartition(":")
    before = resident_bytes(broker.pid)
    made = []
    for _ in range(count):
        transport, protocol = await loop.create_connection(Idle, host, int(port))
        await asyncio.wait_for(protocol.answered, 20)
        made.append(transport)
    await asyncio.sleep(3)
    rss = resident_bytes(broker.pid)
    for transport in made:
        transport.close()
    return {
        "connections": count,
        "rss_mib": round(rss / (1 << 20)),
        "before_mib": round(before / (1 << 20)),
        "kib_each": round((rss - before) / 1024 / count, 1),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--consumers", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, 2 * options.connections + 512)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))  # the broker inherits it
    result: dict[str, Any] = {}
    for what in ("consumers", "connections"):
        if not getattr(options, what):
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            BrokerProcess(Path(folder), environment=USUAL, face="broker") as broker,
        ):
            if what == "consumers":
                channels = argparse.Namespace(idle=options.consumers, connections=100)
                result[what] = idle_costs(broker, channels)
            else:
                result[what] = asyncio.run(connect(broker, options.connections))
    if options.json:
        print(json.dumps(result))
        return
    for what, found in result.items():
        print(f"{what:12}", ", ".join(f"{key} {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
