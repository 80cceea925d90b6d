"""What official clients get from a broker: one message a call, beside an empty call on the same server in the same run.

    python benchmarks/official_unary.py [--seconds 5] [--producers 4] [--idle 1000] [--connections 100] [--json]

Starts a broker of its own (data on disk, fsynced) and load generators in processes of their own, all on this machine:
the numbers are of all of them together. Measured, in this order:

* echo: `grpc.health.v1.Health/Check`, an empty unary call, from as many callers as there are producers, one in flight each;
* send: `SendMessage` on a reliable topic, one in flight each, as Rust and Go have; the share of echo beside it;
* consume: `ReceiveMessages` + `Ack`, one ack in flight, of what was sent, by one exclusive consumer;
* idle: so many consumers with an open stream and a health check every 5 s: the broker's processor and memory.

Goals (issue 5): send at least half of echo and 1 500/s; consume 1 000/s; idle < 8 % of a core, < 200 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
from pydanube_core.generated import danube_pb2 as pb

TOPIC = "/default/bench"
PAYLOAD = bytes(128)
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


def channel(address: str) -> Any:
    return grpc.aio.insecure_channel(address, options=OPTIONS)


def unary(connection: Any, path: str, response: Any = None) -> Any:
    return connection.unary_unary(
        path,
        request_serializer=None,
        response_deserializer=None if response is None else response.FromString,
    )


# -- load generators: each a process of its own ----------------------------------------------------------------


async def rate(calls: list[Any], seconds: float) -> dict[str, Any]:
    """Call each of them again and again, one in flight each; calls/s and latencies."""
    latencies: list[float] = []
    begun = time.perf_counter()
    until = begun + seconds

    async def caller(call: Any) -> None:
        while (start := time.perf_counter()) < until:
            await call()
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*map(caller, calls))
    elapsed = time.perf_counter() - begun
    latencies.sort()
    return {
        "calls": len(latencies),
        "per_s": round(len(latencies) / elapsed),
        "p50_ms": round(latencies[len(latencies) // 2] * 1000, 3),
        "p99_ms": round(latencies[len(latencies) * 99 // 100] * 1000, 3),
    }


async def echo(address: str, options: argparse.Namespace) -> dict[str, Any]:
    connections = [channel(address) for _ in range(options.producers)]
    methods = [unary(connection, "/grpc.health.v1.Health/Check") for connection in connections]
    calls = [lambda method=method: method(b"") for method in methods]
    await rate(calls, 0.5)
    result = await rate(calls, options.seconds)
    for connection in connections:
        await connection.close()
    return result


async def send(address: str, options: argparse.Namespace) -> dict[str, Any]:
    connections, calls = [], []
    for number in range(options.producers):
        connection = channel(address)
        connections.append(connection)
        producer_id = await produce(connection, f"p{number}")
        message = pb.StreamMessage(
            request_id=1,
            msg_id=pb.MsgID(producer_id=producer_id, topic_name=TOPIC, broker_addr=f"http://{address}"),
            payload=PAYLOAD,
            publish_time=1_700_000_000_000,
            producer_name=f"p{number}",
        ).SerializeToString()
        method = unary(connection, "/danube.ProducerService/SendMessage")
        calls.append(lambda method=method, message=message: method(message))
    await subscribe(connections[0])  # a new subscription begins at the end: before the first message
    result = await rate(calls, options.seconds)
    for connection in connections:
        await connection.close()
    return result


async def produce(connection: Any, name: str) -> int:
    """A producer's id; the first one makes the topic."""
    call = unary(connection, "/danube.ProducerService/CreateProducer", pb.ProducerResponse)
    request = pb.ProducerRequest(
        request_id=1,
        producer_name=name,
        topic_name=TOPIC,
        dispatch_strategy=1,  # type: ignore[arg-type]
    )
    response = await call(request.SerializeToString())
    return int(response.producer_id)


async def subscribe(connection: Any, name: str = "c", subscription: str = "s", kind: int = 0) -> int:
    call = unary(connection, "/danube.ConsumerService/Subscribe", pb.ConsumerResponse)
    request = pb.ConsumerRequest(
        request_id=1,
        topic_name=TOPIC,
        consumer_name=name,
        subscription=subscription,
        subscription_type=kind,  # type: ignore[arg-type]
    )
    response = await call(request.SerializeToString())
    return int(response.consumer_id)


def receive(connection: Any, consumer_id: int) -> Any:
    stream = connection.unary_stream(
        "/danube.ConsumerService/ReceiveMessages",
        request_serializer=None,
        response_deserializer=pb.StreamMessage.FromString,
    )
    return stream(pb.ReceiveRequest(consumer_id=consumer_id).SerializeToString())


async def consume(address: str, options: argparse.Namespace) -> dict[str, Any]:
    connection = channel(address)
    stream = receive(connection, await subscribe(connection))
    ack = unary(connection, "/danube.ConsumerService/Ack")
    begun, count, previous = time.perf_counter(), 0, -1
    while count < options.count and time.perf_counter() - begun < 4 * options.seconds:
        message = await stream.read()
        assert message.msg_id.topic_offset == previous + 1, "first deliveries are in order, without a gap"
        previous += 1
        await ack(
            pb.AckRequest(
                request_id=message.request_id, msg_id=message.msg_id, subscription_name="s"
            ).SerializeToString()
        )
        count += 1
    elapsed = time.perf_counter() - begun
    await connection.close()
    return {"messages": count, "per_s": round(count / elapsed)}


async def idle(address: str, options: argparse.Namespace) -> None:
    """Attach, say `ready`, and check health every 5 s until stdin ends."""
    connections = [channel(address) for _ in range(options.connections)]
    await produce(connections[0], "idle")
    consumers: list[tuple[Any, int]] = []
    streams = []
    for number in range(options.idle):
        connection = connections[number % len(connections)]
        consumer_id = await subscribe(connection, f"idle-{number}", "idle", 1)
        stream = receive(connection, consumer_id)
        await stream.initial_metadata()
        streams.append(stream)
        consumers.append(
            (
                unary(connection, "/danube.HealthCheck/HealthCheck"),
                pb.HealthCheckRequest(client=1, id=consumer_id).SerializeToString(),  # type: ignore[arg-type]
            )
        )

    async def check(number: int) -> None:
        await asyncio.sleep(5.0 * number / len(consumers))
        method, request = consumers[number]
        while True:
            assert await method(request) == b"", "an idle consumer is OK"
            await asyncio.sleep(5.0)

    checks = [asyncio.create_task(check(number)) for number in range(len(consumers))]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    assert not any(task.done() for task in checks), "a health check failed"
    for task in checks:
        task.cancel()


# -- the run -----------------------------------------------------------------------------------------------------


def generate(work: str, address: str, options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    words = [sys.executable, __file__, "--work", work, "--address", address]
    for name, value in {**vars(options), **more}.items():
        if name in ("seconds", "producers", "idle", "connections", "count"):
            words += [f"--{name}", str(value)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{work} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def start_broker(folder: Path, runtime: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    command = [
        str(Path(sys.executable).with_name("danube")), "broker", "--data-dir", str(folder), "--json",
        "--grpc-port", "0", "--admin-port", "0", "--metrics-port", "0", "--log-level", "warning",
        "--grpc-runtime", runtime,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def run(options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {
        "config": {
            "producers": options.producers,
            "payload_bytes": len(PAYLOAD),
            "idle": options.idle,
            "connections": options.connections,
        },
        "machine": {
            "cpus": os.cpu_count(),
            "load_before": os.getloadavg()[0],
            "python": sys.version.split()[0],
        },
    }
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        process, info = start_broker(Path(folder, "data"), options.runtime)
        broker = psutil.Process(process.pid)
        address = info["grpc"].removeprefix("http://")
        try:
            used = cpu_s(broker)
            result["echo"] = generate("echo", address, options)
            result["echo"]["server_us_per_call"] = per_call_us(broker, used, result["echo"])
            used = cpu_s(broker)
            result["send"] = generate("send", address, options)
            result["send"]["server_us_per_call"] = per_call_us(broker, used, result["send"])
            result["send"]["durability"] = info["durability"]
            result["send"]["share_of_echo"] = round(result["send"]["per_s"] / result["echo"]["per_s"], 3)
            result["consume"] = generate("consume", address, options, count=result["send"]["calls"])
            if options.idle:
                result["idle"] = idle_costs(broker, address, options)
        finally:
            process.terminate()
            process.wait()
    return result


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def per_call_us(broker: psutil.Process, used_before: float, measured: dict[str, Any]) -> int:
    return round((cpu_s(broker) - used_before) / measured["calls"] * 1e6)


def idle_costs(broker: psutil.Process, address: str, options: argparse.Namespace) -> dict[str, Any]:
    words = [
        sys.executable, __file__, "--work", "idle", "--address", address, "--idle", str(options.idle),
        "--connections", str(options.connections),
    ]  # fmt: skip
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as clients:
        assert clients.stdout is not None
        assert clients.stdout.readline() == b"ready\n", "the idle consumers could not attach"
        time.sleep(6)  # one whole round of health checks
        before, begun = cpu_s(broker), time.monotonic()
        time.sleep(15)
        share = (cpu_s(broker) - before) / (time.monotonic() - begun)
        rss_mib = broker.memory_info().rss / (1 << 20)
        clients.communicate()
    return {
        "consumers": options.idle,
        "cpu_percent_of_a_core": round(100 * share, 1),
        "rss_mib": round(rss_mib),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runtime", choices=["own", "grpcio"], default="own")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument(
        "--dir", default=None, help="where the broker's data goes; the disk is part of what is measured"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", choices=["echo", "send", "consume", "idle"], help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        result = asyncio.run(globals()[options.work](options.address, options))
        if result is not None:
            print(json.dumps(result))
        return
    result = run(options)
    if options.json:
        print(json.dumps(result))
        return
    for name in ("machine", "echo", "send", "consume", "idle"):
        if name in result:
            print(f"{name:8}", ", ".join(f"{key} {value}" for key, value in result[name].items()))


if __name__ == "__main__":
    main()
