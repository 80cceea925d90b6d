"""What TLS and permissions cost: one decision, and messages from end to end beside a plain broker in the same run.

    python benchmarks/locks.py [--runs 3] [--messages 200000] [--bindings 1000] [--principals 10000] [--storm 5000] [--json]

* decision: nanoseconds of `Grants.decide` among so many bindings and principals, asked for the first time and again;
* end to end: `danube bench e2e` against a broker as it starts, and against one that `danube security init` has locked
  (TLS 1.3, a token with a role on the topic's namespace), taking turns; medians, and the median share that the locks leave;
* official sends: `SendMessage`, one by one, many under way, to both of these, taking turns;
* a storm: what is left of official sends to the locked broker while so many connections shake hands and stay, from a process
  of its own, which takes as much of the processors as the broker's side does; and how many of those who were in were refused.

Data is on the disk of the temporary folder, and fsynced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio
import grpc
from grpc import aio
from pydanube_broker.rpc.places import raise_limit
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.security.permissions import Binding, Grants, Principal, Resource, Scope
from pydanube_core.services import PRODUCER_SERVICE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import USUAL, danube, end_to_end_per_s, parser_of
from tests.support.broker_process import BrokerProcess

UNDER_WAY: Final = 50
SEND_S: Final = 3.0  # of each turn

#: name → a broker, and the environment of its clients
Sides = dict[str, tuple[BrokerProcess, dict[str, str]]]


def decisions(bindings: int, principals: int) -> dict[str, float]:
    """Nanoseconds of one decision, the first time and again."""
    dice = random.Random(7)
    grants = Grants.of(
        (),
        [
            Binding(
                id=f"b{number}", principal=Principal(f"p{dice.randrange(principals)}"), roles=("producer",),
                scope=Scope.TOPIC, resource=f"/n{number % 50}/t{number}*",
            )
            for number in range(bindings)
        ],
    )  # fmt: skip
    asked = [
        (Principal(f"p{number}"), Resource(f"n{number % 50}", f"t{dice.randrange(bindings)}"))
        for number in range(principals)
    ]
    found: dict[str, float] = {}
    for name in ("first", "again"):
        began = time.perf_counter()
        for principal, resource in asked:
            grants.decide(principal, "data:produce", resource)
        found[f"{name}_ns"] = round((time.perf_counter() - began) / len(asked) * 1e9)
    return found


def locked(folder: Path, stack: ExitStack) -> tuple[BrokerProcess, dict[str, str]]:
    """A locked broker, and the environment of a client with a token for the namespace default."""
    made = danube("security", "init", "--data-dir", str(folder / "data"), "--dir", str(folder / "keys"))
    broker = stack.enter_context(BrokerProcess(folder, environment=USUAL))
    socket = ("--admin", f"unix:{folder}/data/admin.sock")
    danube(
        "bindings", "create", "load", "load", "--roles", "admin", "--scope", "namespace", "--resource", "default", *socket
    )  # fmt: skip
    token = danube("tokens", "create", "load", *socket)["token"]
    return broker, {"DANUBE_CA": made["ca"], "DANUBE_TOKEN": token}


class Sender:
    """Official sends to one broker."""

    def __init__(self, channel: aio.Channel, environment: Mapping[str, str]) -> None:
        token = environment.get("DANUBE_TOKEN")
        self._metadata = None if token is None else (("authorization", f"Bearer {token}"),)
        self._send = channel.unary_unary(
            PRODUCER_SERVICE["SendMessage"].path,
            pb.StreamMessage.SerializeToString,
            pb.MessageResponse.FromString,
        )
        self._create = channel.unary_unary(
            PRODUCER_SERVICE["CreateProducer"].path,
            pb.ProducerRequest.SerializeToString,
            pb.ProducerResponse.FromString,
        )
        self.sent = self.refused = 0

    async def open(self) -> None:
        request = pb.ProducerRequest(
            request_id=1, producer_name="p", topic_name="/default/official",
            dispatch_strategy=pb.DispatchStrategy.Reliable,
        )  # fmt: skip
        made = await self._create(request, metadata=self._metadata)
        self._message = pb.StreamMessage(
            msg_id=pb.MsgID(producer_id=made.producer_id, topic_name="/default/official"),
            payload=bytes(200),
            producer_name="p",
        )

    async def go_on(self) -> None:
        """Send messages until the task is cancelled."""
        while True:
            try:
                await self._send(self._message, metadata=self._metadata)
                self.sent += 1
            except aio.AioRpcError:
                self.refused += 1

    async def rate(self, until: Awaitable[Any]) -> float:
        """Messages a second, until something is over."""
        before, began = self.sent, time.perf_counter()
        tasks = [asyncio.ensure_future(self.go_on()) for _ in range(UNDER_WAY)]
        await until
        found = (self.sent - before) / (time.perf_counter() - began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found


@asynccontextmanager
async def sender(broker: BrokerProcess, environment: Mapping[str, str]) -> AsyncIterator[Sender]:
    target = broker.url.partition("://")[2]
    if "DANUBE_CA" in environment:
        authority = await anyio.Path(environment["DANUBE_CA"]).read_bytes()
        trusted = grpc.ssl_channel_credentials(authority)
        channel = aio.secure_channel(target, trusted)
    else:
        channel = aio.insecure_channel(target)
    async with channel:
        made = Sender(channel, environment)
        await made.open()
        yield made


async def official(sides: Sides, runs: int, storm: int) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        senders = {name: await stack.enter_async_context(sender(*side)) for name, side in sides.items()}
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(2 * runs):
            for name, each in senders.items():
                found[name].append(await each.rate(asyncio.sleep(SEND_S)))
        locked = senders["locked"]
        broker, environment = sides["locked"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--be-the-storm", broker.url, environment["DANUBE_CA"], str(storm),
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        began = time.perf_counter()
        during = await locked.rate(process.stdout.readline())
        stormed_s = time.perf_counter() - began
        process.terminate()
        await process.wait()
    return {
        **shares(found),
        "storm": {
            "connections": storm,
            "seconds": round(stormed_s, 1),
            "left_percent": round(100 * during / median(found["locked"]), 1),
            "refused": locked.refused,
        },
    }


async def be_the_storm(url: str, ca: str, count: int) -> None:
    """Connections that shake hands side by side and stay; says `done` when all did."""
    raise_limit()
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    host, _, port = url.partition("://")[2].rpartition(":")
    turns, kept = asyncio.Semaphore(100), []

    async def one() -> None:
        async with turns:
            _, writer = await asyncio.open_connection(host, int(port), ssl=context)
            kept.append(writer)

    await asyncio.gather(*(one() for _ in range(count)))
    print("done", flush=True)
    await asyncio.sleep(60)


def shares(found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians, and the median of what the locks left in each turn."""
    left = [locked / plain for plain, locked in zip(found["plain"], found["locked"], strict=True)]
    shown = {f"{name}_messages_per_s": round(median(values)) for name, values in found.items()}
    return {**shown, "left_percent": round(100 * median(left), 1)}


def end_to_end(sides: Sides, runs: int, messages: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs):
        for name, (broker, environment) in sides.items():
            where = broker.client_arguments()
            found[name].append(end_to_end_per_s(messages, *where, environment=environment))
    return shares(found)


def both(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    (folder / "plain").mkdir()
    (folder / "locked").mkdir()
    with ExitStack() as stack:
        sides: Sides = {
            "plain": (stack.enter_context(BrokerProcess(folder / "plain", environment=USUAL)), {}),
            "locked": locked(folder / "locked", stack),
        }
        return {
            "end_to_end": end_to_end(sides, given.runs, given.messages),
            "official_sends": asyncio.run(official(sides, given.runs, given.storm)),
        }


def main(words: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--bindings", type=int, default=1000)
    parser.add_argument("--principals", type=int, default=10_000)
    parser.add_argument("--storm", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--be-the-storm", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.be_the_storm is not None:
        url, ca, count = given.be_the_storm
        asyncio.run(be_the_storm(url, ca, int(count)))
        return
    found: dict[str, Any] = {
        "decision": decisions(given.bindings, given.principals),
        "load": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory(prefix="danube-locks-") as folder:
        found |= both(Path(folder), given)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    decision, sends = found["decision"], found["official_sends"]
    print(f"a decision: {decision['first_ns']} ns the first time, {decision['again_ns']} ns again")
    for name, each in (("end to end", found["end_to_end"]), ("official sends", sends)):
        print(
            f"{name}: {each['plain_messages_per_s']:,} messages/s plain, {each['locked_messages_per_s']:,} locked: "
            f"{each['left_percent']} % are left (load {found['load']:.1f} when it began)"
        )
    storm = sends["storm"]
    print(
        f"{storm['connections']:,} handshakes in {storm['seconds']} s: {storm['left_percent']} % of official sends go on, "
        f"{storm['refused']} were refused"
    )


if __name__ == "__main__":
    main()
