"""What one `send()` takes when nothing else is under way, beside the disk's own sync, in turns on the same machine.

    python benchmarks/lone_send.py [--count 1500] [--rounds 4] [--danube /path/to/danube]

A broker of its own, fsynced, and this process: the SDK's `await producer.send(128 bytes)` one after the other, in rounds with as
many `pwrite` + `fdatasync` of the same size on a file that is there already. Printed: both medians, and their difference, which is
what SDK, sockets and broker add; and the processor both processes used for a send.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from pydanube import connect

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import USUAL, parser_of, processor_s, sync_s
from tests.support.broker_process import BrokerProcess

BYTES = 128


async def sends(url: str, count: int) -> list[float]:
    taken = []
    payload = bytes(BYTES)
    async with connect(url) as client, client.producer("lone") as producer:
        for _ in range(200):
            await producer.send(payload)
        for _ in range(count):
            begun = time.perf_counter()
            await producer.send(payload)
            taken.append(time.perf_counter() - begun)
    return taken


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--danube", help="another one than this environment's")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder), environment=USUAL, face="broker", program=options.danube) as broker,
    ):
        disk: list[float] = []
        ours: list[float] = []
        used = [0.0, 0.0]
        for _ in range(options.rounds):
            disk += sync_s(Path(folder), options.count, BYTES + 200)
            before = processor_s(broker.pid), time.process_time()
            ours += uvloop.run(sends(broker.url, options.count))
            used[0] += processor_s(broker.pid) - before[0]
            used[1] += time.process_time() - before[1]
    calls = options.rounds * (options.count + 200)
    fdatasync, send = statistics.median(disk) * 1000, statistics.median(ours) * 1000
    print(
        json.dumps(
            {
                "fdatasync_p50_ms": round(fdatasync, 3),
                "send_p50_ms": round(send, 3),
                "added_ms": round(send - fdatasync, 3),
                "send_p99_ms": round(statistics.quantiles(ours, n=100)[98] * 1000, 3),
                "broker_us": round(used[0] / calls * 1e6),
                "client_us": round(used[1] / calls * 1e6),
            }
        )
    )


if __name__ == "__main__":
    main()
