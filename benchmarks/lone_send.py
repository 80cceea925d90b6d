"""What one `send()` takes when nothing else is under way, beside the disk's own sync, in turns on the same machine.

    python benchmarks/lone_send.py [--count 1500] [--rounds 4] [--danube /path/to/danube]

A broker of its own, fsynced, and this process: the SDK's `await producer.send(128 bytes)` one after the other, in rounds with as
many `pwrite` + `fdatasync` of the same size on a file that is there already. Printed: both medians, and their difference, which is
what SDK, sockets and broker add; and the processor both processes used for a send.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop
from pydanube import connect

BYTES = 128


def syncs(folder: Path, count: int) -> list[float]:
    """Return the seconds of each `fdatasync`."""
    path, taken = folder / "probe", []
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        os.write(descriptor, bytes(4 << 20))
        os.fsync(descriptor)
        for number in range(count):
            begun = time.perf_counter()
            os.pwrite(descriptor, bytes(BYTES + 200), number * 328)
            os.fdatasync(descriptor)
            taken.append(time.perf_counter() - begun)
    finally:
        os.close(descriptor)
    return taken


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--danube", default=str(Path(sys.executable).with_name("danube")))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            options.danube, "broker", "--data-dir", f"{folder}/data", "--json", "--grpc-port", "0", "--admin-port", "0",
            "--metrics-port", "0", "--log-level", "warning",
        ]  # fmt: skip
        broker = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert broker.stdout is not None
            url = json.loads(broker.stdout.readline())["grpc"]
            process = psutil.Process(broker.pid)
            disk: list[float] = []
            ours: list[float] = []
            used = [0.0, 0.0]
            for _ in range(options.rounds):
                disk += syncs(Path(folder), options.count)
                before = process.cpu_times(), time.process_time()
                ours += uvloop.run(sends(url, options.count))
                after = process.cpu_times()
                used[0] += after.user + after.system - before[0].user - before[0].system
                used[1] += time.process_time() - before[1]
        finally:
            broker.terminate()
            broker.wait()
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
