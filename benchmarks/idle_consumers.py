"""Official consumers (grpcio's client) with an open stream each and a health check every 5 s; `idle_connections` measures them.

Run as a program this is the clients' process.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from pydanube_core.generated import danube_pb2 as pb

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import processor_s, resident_bytes
from tests.support.broker_process import BrokerProcess

TOPIC = "/default/bench"
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


def channel(address: str) -> Any:
    return grpc.aio.insecure_channel(address, options=OPTIONS)


def unary(connection: Any, path: str, response: Any = None) -> Any:
    return connection.unary_unary(
        path,
        request_serializer=None,
        response_deserializer=None if response is None else response.FromString,
    )


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


def idle_costs(broker: BrokerProcess, options: argparse.Namespace) -> dict[str, Any]:
    words = [
        sys.executable, __file__, "--address", broker.url.removeprefix("http://"), "--idle", str(options.idle),
        "--connections", str(options.connections),
    ]  # fmt: skip
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as clients:
        assert clients.stdout is not None
        assert clients.stdout.readline() == b"ready\n", "the idle consumers could not attach"
        time.sleep(6)  # one whole round of health checks
        before, begun = processor_s(broker.pid), time.monotonic()
        time.sleep(15)
        share = (processor_s(broker.pid) - before) / (time.monotonic() - begun)
        rss_mib = resident_bytes(broker.pid) / (1 << 20)
        clients.communicate()
    return {
        "consumers": options.idle,
        "cpu_percent_of_a_core": round(100 * share, 1),
        "rss_mib": round(rss_mib),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--address")
    parser.add_argument("--idle", type=int)
    parser.add_argument("--connections", type=int)
    options = parser.parse_args()
    asyncio.run(idle(options.address, options))
