"""The speed of the machine itself, measured in the same run: a rate means little without it.

fdatasync on the data directory's disk, empty gRPC calls over loopback (client and server in two processes),
and CRC-32. Each takes about a second. `python -m pydanube_cli.bench.raw [DIR]` prints them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

FILE_BYTES: Final = 16 << 20
WRITE_BYTES: Final = 512  # a lone message with its headers
SECONDS: Final = 1.0
IN_FLIGHT: Final = 32
SERVE_WORD: Final = "serve"


def raw_reference(directory: Path | None) -> dict[str, Any]:
    """Measure all references. Those of the disk are null without a directory (a broker on another machine)."""
    disk: dict[str, Any] = dict.fromkeys(("fdatasync_p50_ms", "fdatasync_p99_ms", "fdatasync_per_s"))
    if directory is None:
        disk["fdatasync_p50_ms_reason"] = "the broker's disk is not this machine's"
    else:
        disk = fdatasync_reference(directory)
    return {**disk, **grpc_reference(), "crc32_mb_per_s": crc32_mb_per_s()}


def fdatasync_reference(
    directory: Path, *, seconds: float = SECONDS, syncs: int = FILE_BYTES // WRITE_BYTES
) -> dict[str, Any]:
    """Measure writes of 512 bytes into a preallocated file, each synced before the next, until `seconds` or `syncs`."""
    sync = getattr(os, "fdatasync", os.fsync)
    taken_ms: list[float] = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix="danube-fsync-") as file:
        descriptor = file.fileno()
        block = bytes(WRITE_BYTES << 5)
        for at in range(0, syncs * WRITE_BYTES, len(block)):
            os.pwrite(descriptor, block, at)
        os.fsync(descriptor)
        data = b"x" * WRITE_BYTES
        end = time.perf_counter() + seconds
        for at in range(0, syncs * WRITE_BYTES, WRITE_BYTES):
            if (begun := time.perf_counter()) >= end and len(taken_ms) >= 20:
                break
            os.pwrite(descriptor, data, at)
            sync(descriptor)
            taken_ms.append((time.perf_counter() - begun) * 1000)
    taken_ms.sort()
    return {
        "fdatasync_p50_ms": round(taken_ms[len(taken_ms) // 2], 4),
        "fdatasync_p99_ms": round(taken_ms[int(len(taken_ms) * 0.99)], 4),
        "fdatasync_per_s": round(len(taken_ms) / (sum(taken_ms) / 1000), 1),
    }


def crc32_mb_per_s(*, seconds: float = 0.2) -> float:
    """Measure CRC-32 over 1 MiB blocks, in megabytes (10⁶) per second."""
    block = os.urandom(1 << 20)
    count, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        zlib.crc32(block)
        count += 1
    return round(count * len(block) / 1e6 / elapsed, 1)


def parquet_write_mb_per_s(directory: Path | None, payloads: Sequence[bytes]) -> float:
    """Measure pyarrow writing payloads of one size as the tier does: one thread, zstd level 1, page checksums, synced."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count, size = len(payloads), len(payloads[0])
    table = pa.table(
        {"offset": pa.array(range(count), pa.int64()), "payload": pa.array(payloads, pa.binary())}
    )
    with tempfile.NamedTemporaryFile(dir=directory, prefix="danube-parquet-") as file:
        begun = time.perf_counter()
        pq.write_table(
            table,
            file.name,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            row_group_size=max(1, (12 << 20) // size),
            write_page_checksum=True,
        )
        os.fsync(file.fileno())
        return round(count * size / 1e6 / (time.perf_counter() - begun), 1)


def parquet_read_per_s(paths: Sequence[Path]) -> float:
    """Measure pyarrow reading rows of these files, in one thread and with their checksums."""
    import pyarrow.parquet as pq

    rows, begun = 0, time.perf_counter()
    for path in paths:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        for index in range(file.num_row_groups):
            rows += file.read_row_group(index, use_threads=False).num_rows
    return round(rows / (time.perf_counter() - begun), 1)


def grpc_reference(*, seconds: float = SECONDS) -> dict[str, Any]:
    """Measure empty unary calls and echoes on one stream: p50 of single ones, and calls per second with 32 in flight."""
    server = subprocess.Popen(
        [sys.executable, "-m", __spec__.name if __spec__ else "pydanube_cli.bench.raw", SERVE_WORD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        return asyncio.run(_call(port, seconds))
    finally:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.close()
        server.wait(timeout=10)
        server.stdout.close()


async def _call(port: int, seconds: float) -> dict[str, Any]:
    from grpc import aio

    async with aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        empty = channel.unary_unary("/raw/Empty")
        for _ in range(20):
            await empty(b"")
        lone_ms = await _lone(lambda: empty(b""), seconds / 4)
        count = 0
        end = time.perf_counter() + seconds

        async def caller() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await empty(b"")
                count += 1

        begun = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
        calls_per_s = count / (time.perf_counter() - begun)

        stream = channel.stream_stream("/raw/Echo")()

        async def echo() -> None:
            await stream.write(b"")
            await stream.read()

        for _ in range(20):
            await echo()
        echo_ms = await _lone(echo, seconds / 4)
        for _ in range(IN_FLIGHT):
            await stream.write(b"")
        count, begun = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begun) < seconds:
            await stream.read()
            await stream.write(b"")
            count += 1
        stream.cancel()
    return {
        "empty_grpc_p50_ms": lone_ms,
        "empty_grpc_calls_per_s": round(calls_per_s, 1),
        "stream_echo_p50_ms": echo_ms,
        "stream_echo_per_s": round(count / elapsed, 1),
    }


async def _lone(call: Any, seconds: float) -> float:
    import statistics  # slow to load, and `danube doctor` only syncs the disk

    taken: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        await call()
        taken.append((time.perf_counter() - begun) * 1000)
    return round(statistics.median(taken), 4)


async def _serve() -> None:
    """Answer calls until stdin ends."""
    import grpc
    from grpc import aio

    async def empty(_request: bytes, _context: Any) -> bytes:
        return b""

    async def echo(requests: Any, _context: Any) -> Any:
        async for request in requests:
            yield request

    server = aio.server()
    handlers = {
        "Empty": grpc.unary_unary_rpc_method_handler(empty),
        "Echo": grpc.stream_stream_rpc_method_handler(echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    if sys.argv[1:] == [SERVE_WORD]:
        asyncio.run(_serve())
    else:
        print(json.dumps(raw_reference(Path(sys.argv[1] if len(sys.argv) > 1 else "."))))
