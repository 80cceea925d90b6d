"""What an audited `topics.list` over JSON-RPC costs beside an empty endpoint of the same HTTP server.

    python benchmarks/json_rpc.py [--seconds 3] [--at-once 16] [--runs 3] [--assert-ratio 0.25]

A broker with 10 topics runs as `danube up --memory` in a process of its own, so does an application of Starlette that
answers `{}`. Clients keep their connections and have one call under way each. Runs alternate, the medians count, since other
work on the machine slows both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.broker_process import BrokerProcess, free_ports

CALL: Final = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "topics.list"}).encode()
EMPTY: Final = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
async def nothing(request):
    await request.body()
    return JSONResponse({})
uvicorn.run(Starlette(routes=[Route("/rpc", nothing, methods=["POST"])]), port=int(sys.argv[1]), access_log=False,
            log_config=None)
"""


async def rate(url: str, *, at_once: int, seconds: float) -> float:
    """Return how many calls were answered in a second."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    head = (
        f"POST /rpc HTTP/1.1\r\nHost: {parts.hostname}:{parts.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(CALL)}\r\n\r\n"
    ).encode()
    until = time.perf_counter() + seconds

    async def one() -> int:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        count = 0
        while time.perf_counter() < until:
            writer.write(head + CALL)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = next(
                int(line.split(b":")[1])
                for line in answer.lower().splitlines()
                if line.startswith(b"content-length")
            )
            body = await reader.readexactly(length)
            assert b'"error"' not in body, body
            count += 1
        writer.close()
        return count

    begun = time.perf_counter()
    counts = await asyncio.gather(*(one() for _ in range(at_once)))
    return sum(counts) / (time.perf_counter() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--assert-ratio", type=float, default=0.0)
    options = parser.parse_args()
    port, quiet = free_ports(1)[0], subprocess.DEVNULL
    with (
        tempfile.TemporaryDirectory(prefix="danube-json-rpc-") as folder,
        BrokerProcess(Path(folder), memory=True) as broker,
        subprocess.Popen([sys.executable, "-c", EMPTY, str(port)], stdout=quiet, stderr=quiet) as empty,
    ):
        for index in range(10):
            broker.command("topics", "create", f"t{index}")
        result = measured(broker.http, f"http://127.0.0.1:{port}", options)
        empty.terminate()
    print(json.dumps(result))
    return 0 if result["ratio"] >= options.assert_ratio else 6


def measured(ours: str, empty: str, options: argparse.Namespace) -> dict[str, float]:
    rates: dict[str, list[float]] = {ours: [], empty: []}
    for url in rates:
        asyncio.run(rate(url, at_once=options.at_once, seconds=1.0))  # warm
    for _ in range(options.runs):
        for url, found in rates.items():
            found.append(asyncio.run(rate(url, at_once=options.at_once, seconds=options.seconds)))
    mine, reference = (statistics.median(found) for found in rates.values())
    return {
        "topics_list_per_s": round(mine, 1),
        "empty_per_s": round(reference, 1),
        "ratio": round(mine / reference, 3),
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
