"""The load of `soak.py`: producers and consumers of every kind; what they were told and given is in `soak_account.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydanube import Client, ClusterError, Consumer, Message, Retry, connect
from pydanube.admin import Admin, connect_admin

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.soak_account import SHOWN, Account, Bits, identity
from benchmarks.soak_operator import Operator

PATIENCE: Final = Retry(max_elapsed_s=600, initial_s=0.05, max_delay_s=1.0)
PLAIN, PARTS, POISON, LIVE = "/default/plain", "/default/parts", "/default/poison", "/default/live"
DEAD: Final = "/default/poison-dlq-work"
POISONED: Final = 50  # every so manieth message of POISON cannot be handled
CHURN_NAMES: Final = 5


@dataclass
class Load:
    url: str
    admin_url: str
    seconds: float
    scale: float
    account: Account = field(default_factory=Account)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)  # producers end
    draining: asyncio.Event = field(default_factory=asyncio.Event)  # nobody sleeps or makes trouble any more
    finished: asyncio.Event = field(default_factory=asyncio.Event)  # consumers end

    async def pause(self, seconds: float, until: asyncio.Event | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for((until or self.stopping).wait(), seconds)

    async def repeat(self, name: str, work: Callable[[], Awaitable[None]], end: asyncio.Event) -> None:
        """A task that is begun again whatever happens to it; what happened is counted."""
        while not end.is_set():
            try:
                await work()
            except (ClusterError, OSError, TimeoutError, ValueError, KeyError, AssertionError) as error:
                self.account.error(name, error)
                await self.pause(1, end)

    # -- producers -------------------------------------------------------------------------------------------

    async def lone(self, name: str, topic: str, rate: float) -> None:
        """One at a time, each awaited."""
        rng = random.Random(name)
        async with connect(self.url, retry=PATIENCE) as client, client.producer(topic, name=name) as producer:
            while not self.stopping.is_set():
                number, payload, key = self.account.stamp(name, rng)
                begun = time.monotonic()
                try:
                    await producer.send(payload, key=key)
                except ClusterError as error:
                    self.account.error(name, error)
                    continue
                self.account.acked(topic, name, [number])
                took = (time.monotonic() - begun) * 1000
                self.account.slowest_send_ms = max(self.account.slowest_send_ms, took)
                await self.pause(1 / rate / self.scale)

    async def bursts(self, name: str, topic: str, size: int, every: float, **options: Any) -> None:
        """Send bursts by `send_nowait`, and await their receipts together."""
        rng = random.Random(name)
        async with (
            connect(self.url, retry=PATIENCE) as client,
            client.producer(topic, name=name, **options) as producer,
        ):
            while not self.stopping.is_set():
                waiting = []
                for _ in range(size):
                    number, payload, key = self.account.stamp(name, rng)
                    waiting.append((number, producer.send_nowait(payload, key=key)))
                for number, handle in waiting:
                    try:
                        await handle
                    except ClusterError as error:
                        self.account.error(name, error)
                        continue
                    self.account.acked(topic, name, [number])
                await self.pause(every / self.scale)

    async def comer(self, name: str, topic: str, count: int, every: float, **options: Any) -> None:
        """A producer that connects, sends a list, and goes; its name stays, so its session is taken up or begun."""
        rng = random.Random(name)
        while not self.stopping.is_set():
            async with (
                connect(self.url, retry=PATIENCE) as client,
                client.producer(topic, name=name if rng.random() < 0.7 else None, **options) as producer,
            ):
                stamps = [self.account.stamp(name, rng) for _ in range(count)]
                await producer.send_many([Message.new(payload, key=key) for _, payload, key in stamps])
                self.account.acked(topic, name, [number for number, _, _ in stamps])
            await self.pause(every / self.scale)

    async def live_producer(self) -> None:
        async with (
            connect(self.url, retry=PATIENCE) as client,
            client.producer(LIVE, name="live", dispatch_strategy="non_reliable") as producer,
        ):
            number = 0
            while not self.stopping.is_set():
                await producer.send(b"live|%d|" % number)
                number += 1
                self.account.live["sent"] += 1
                await self.pause(0.05 / self.scale)

    # -- consumers -------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def consumer(self, topic: str, subscription: str, **options: Any) -> AsyncIterator[Consumer]:
        async with (
            connect(self.url, retry=PATIENCE) as client,
            client.consumer(topic, subscription, create=True, **options) as consumer,
        ):
            yield consumer

    async def batches(self, topic: str, name: str, ordered: str | None) -> None:
        """Consume by batch, and acknowledge each."""
        seen = self.account.subscription(topic, name, ordered)
        async with self.consumer(topic, name) as consumer:
            while not self.finished.is_set():
                for message in await consumer.receive(max_messages=500, max_wait_s=0.5):
                    seen.note(message.payload)
                    await message.ack()

    async def worker(
        self, topic: str, name: str, worker: str, kind: str, ordered: str | None, *,
        stay_s: float = 1e9, away_s: float = 0.0, slow_s: float = 0.0, nacks: float = 0.0, leaves: bool = False,
        poison: bool = False, seeks: bool = False,
    ) -> None:  # fmt: skip
        """One of several consumers: slow, refusing, coming and going, leaving with messages in its hands."""
        rng = random.Random(worker)
        seen = self.account.subscription(topic, name, ordered)
        while not self.finished.is_set():
            async with self.consumer(topic, name, type=kind, name=worker) as consumer:
                until = time.monotonic() + stay_s * rng.uniform(0.7, 1.3)
                while not self.finished.is_set() and (time.monotonic() < until or self.draining.is_set()):
                    messages = await consumer.receive(max_messages=50, max_wait_s=0.5)
                    for message in messages:
                        if slow_s and not self.draining.is_set():
                            await asyncio.sleep(slow_s)
                        if poison and identity(message.payload)[1] % POISONED == 0:
                            await message.nack(reason="cannot be handled")
                            continue
                        if rng.random() < nacks:
                            await message.nack(delay_ms=rng.randrange(500), reason="not now")
                            continue
                        seen.note(message.payload)
                        if leaves and rng.random() < 0.01:
                            continue  # neither one nor the other: it goes back when this worker leaves
                        await message.ack()
                if seeks and not self.draining.is_set():
                    await consumer.seek("time:-30s")
            if not self.draining.is_set():
                await self.pause(away_s * rng.uniform(0.7, 1.3), self.draining)

    async def live_consumer(self) -> None:
        last = -1
        async with self.consumer(LIVE, "live") as consumer:
            while not self.finished.is_set():
                for message in await consumer.receive(max_messages=500, max_wait_s=0.5):
                    number = identity(message.payload)[1]
                    if number <= last and number != 0:
                        self.account.error("live", f"{number} after {last}")
                    last = number
                    self.account.live["received"] += 1
                    await message.ack()

    async def reader(self) -> None:
        """Every message below the head must be there, in each partition, one offset after the other."""
        while not self.draining.is_set():
            await self.pause(45, self.draining)
            for topic in (PLAIN, PARTS):
                expected: dict[int | None, int] = {}
                async with (
                    connect(self.url, retry=PATIENCE) as client,
                    client.reader(topic, start="time:-2m", stop="head") as reader,
                ):
                    async for message in reader:
                        wanted = expected.get(message.partition, message.offset)
                        if message.offset != wanted:
                            self.account.error(
                                "reader", f"{topic} {message.partition}: {message.offset}, not {wanted}"
                            )
                        expected[message.partition] = message.offset + 1
                        self.account.read_back += 1

    # -- topics that are made and deleted --------------------------------------------------------------------

    async def churn(self, admin: Admin) -> None:
        """Under a few names, topic after topic: what is sent to one comes from it, and nothing of the one before."""
        rng = random.Random("churn")
        turn = 0
        while not self.stopping.is_set():
            topic = f"/default/churn-{turn % CHURN_NAMES}"
            partitions = rng.choice((None, None, 2))
            count = rng.randrange(20, 300)
            wanted = {b"churn%d|%d|" % (turn, number) for number in range(count)}
            async with connect(self.url, retry=PATIENCE) as client:
                async with client.producer(topic, name="churner", partitions=partitions) as producer:
                    for chunk in range(0, count, 25):
                        await producer.send_many(
                            [
                                b"churn%d|%d|" % (turn, number)
                                for number in range(chunk, min(chunk + 25, count))
                            ]
                        )
                        await self.pause(0.2)
                found = await self.all_of(client, topic, len(wanted))
            if found != wanted:
                self.account.error(
                    "churn",
                    f"{topic} turn {turn}: missing {len(wanted - found)}, foreign {sorted(found - wanted)[:3]}",
                )
            await self.delete(admin, topic)
            turn += 1
            self.account.churned += 1
            await self.pause(4)

    async def all_of(self, client: Client, topic: str, count: int) -> set[bytes]:
        found: set[bytes] = set()
        async with client.consumer(topic, "all") as consumer:
            until = time.monotonic() + 120
            while len(found) < count and time.monotonic() < until:
                for message in await consumer.receive(max_messages=100, max_wait_s=1):
                    found.add(message.payload)
                    await message.ack()
        return found

    async def delete(self, admin: Admin, topic: str) -> None:
        for _ in range(100):
            try:
                plan = await admin.topics.plan_delete(topic)
                await plan.apply()
                return
            except ClusterError as error:
                if error.code == "TOPIC_NOT_FOUND":
                    return  # it was deleted, and the answer was lost
                if not error.retryable and error.code not in (
                    "PLAN_STALE",
                    "DEADLINE_EXCEEDED",
                    "UNAVAILABLE",
                ):
                    raise
                await self.pause(1)
        raise AssertionError(f"{topic} could not be deleted")

    # -- the hour --------------------------------------------------------------------------------------------

    async def prepare(self, admin: Admin) -> None:
        """Topics with retention, the subscriptions before the first message, the policy of dead letters."""
        async with connect(self.url, retry=PATIENCE) as client:
            async with client.producer(LIVE, dispatch_strategy="non_reliable"):
                pass
            for topic, partitions in ((PLAIN, None), (PARTS, 3), (POISON, None), (DEAD, None)):
                async with client.producer(topic, partitions=partitions):
                    pass
                plan = await admin.topics.plan_set_policies(topic, policies={"retention_age_s": 180})
                await plan.apply()
        for topic, name, kind in (
            (PLAIN, "exclusive", "exclusive"), (PLAIN, "failover", "failover"), (PLAIN, "shared", "shared"),
            (PLAIN, "keys", "key-shared"), (PLAIN, "sleeper", "exclusive"), (PLAIN, "seeker", "exclusive"),
            (PARTS, "exclusive", "exclusive"), (PARTS, "keys", "key-shared"), (POISON, "work", "shared"),
            (DEAD, "dead", "exclusive"),
        ):  # fmt: skip
            async with self.consumer(topic, name, type=kind):
                pass
        await admin.subscriptions.set_failure_policy(
            POISON, "work", max_redelivery_count=2, base_redelivery_delay_ms=100, max_redelivery_delay_ms=500,
            poison_policy="dead_letter",
        )  # fmt: skip

    def tasks(self, admin: Admin) -> list[tuple[str, Callable[[], Awaitable[None]], asyncio.Event]]:
        stopping, finished = self.stopping, self.finished
        worker = self.worker
        return [
            ("lone", lambda: self.lone("lone", PLAIN, 12), stopping),
            ("bursts", lambda: self.bursts("bursts", PLAIN, 25, 0.5), stopping),
            ("bursts-zstd", lambda: self.bursts("zstd", PLAIN, 60, 3.0, compression="zstd"), stopping),
            ("comer", lambda: self.comer("comer", PLAIN, 20, 2.0), stopping),
            ("parts", lambda: self.bursts("parts", PARTS, 40, 1.0, partitions=3), stopping),
            ("parts-comer", lambda: self.comer("parts-comer", PARTS, 30, 4.0, partitions=3), stopping),
            ("poison", lambda: self.bursts("poison", POISON, 10, 1.0), stopping),
            ("live-producer", self.live_producer, stopping),
            ("live-consumer", self.live_consumer, finished),
            ("exclusive", lambda: self.batches(PLAIN, "exclusive", "producer"), finished),
            ("failover-a", lambda: worker(PLAIN, "failover", "a", "failover", "producer", stay_s=50, away_s=5), finished),
            ("failover-b", lambda: worker(PLAIN, "failover", "b", "failover", "producer", stay_s=70, away_s=8), finished),
            ("shared-a", lambda: worker(PLAIN, "shared", "sa", "shared", None, nacks=0.01), finished),
            ("shared-slow", lambda: worker(PLAIN, "shared", "slow", "shared", None, slow_s=0.05), finished),
            ("shared-c", lambda: worker(PLAIN, "shared", "sc", "shared", None, stay_s=30, away_s=3, leaves=True), finished),
            ("keys-a", lambda: worker(PLAIN, "keys", "ka", "key-shared", "key"), finished),
            ("keys-b", lambda: worker(PLAIN, "keys", "kb", "key-shared", "key", slow_s=0.005), finished),
            ("keys-c", lambda: worker(PLAIN, "keys", "kc", "key-shared", "key", stay_s=20, away_s=10), finished),
            ("sleeper", lambda: worker(PLAIN, "sleeper", "sleeper", "exclusive", "producer", stay_s=20, away_s=120), finished),
            ("seeker", lambda: worker(PLAIN, "seeker", "seeker", "exclusive", None, stay_s=60, seeks=True), finished),
            ("parts-exclusive", lambda: self.batches(PARTS, "exclusive", "key"), finished),
            ("parts-keys-a", lambda: worker(PARTS, "keys", "pa", "key-shared", "key", stay_s=45, away_s=5), finished),
            ("parts-keys-b", lambda: worker(PARTS, "keys", "pb", "key-shared", "key"), finished),
            ("poison-a", lambda: worker(POISON, "work", "xa", "shared", None, poison=True), finished),
            ("poison-b", lambda: worker(POISON, "work", "xb", "shared", None, poison=True, stay_s=30, away_s=2), finished),
            ("dead", lambda: self.batches(DEAD, "dead", None), finished),
            ("reader", self.reader, self.draining),
            ("churn", lambda: self.churn(admin), stopping),
        ]  # fmt: skip

    def missing(self) -> dict[str, dict[str, list[int]]]:
        """Return the missing numbers of the account; those of poisoned messages are looked for among the dead letters."""
        found = self.account.missing()
        poisoned = Bits()
        for number in range(0, self.account.next_number["poison"], POISONED):
            if number in self.account.acknowledged.get(POISON, {}).get("poison", Bits()):
                poisoned.add(number)
        work = found.get(f"{POISON} work", {})
        work["poison"] = [number for number in work.get("poison", []) if number not in poisoned]
        dead = (
            self.account.seen[f"{DEAD} dead"].numbers.get("poison", Bits())
            if f"{DEAD} dead" in self.account.seen
            else Bits()
        )
        found[f"{POISON} work"] = work
        found[f"{DEAD} dead"] = {"poison": poisoned.missing_in(dead)}
        return {
            name: {who: lost for who, lost in each.items() if lost}
            for name, each in found.items()
            if any(each.values())
        }

    async def watch(self, progress: Path) -> None:
        """A line every five seconds; the longest delay of this loop in between."""
        with progress.open("a") as lines:
            while not self.finished.is_set():
                until = time.monotonic() + 5
                while time.monotonic() < until:
                    asked = time.monotonic()
                    await asyncio.sleep(0.02)
                    late = (time.monotonic() - asked - 0.02) * 1000
                    self.account.loop_delay_ms = max(self.account.loop_delay_ms, late)
                line = {
                    "time": time.time(), "loop_delay_ms": round(self.account.loop_delay_ms, 1),
                    "slowest_send_ms": round(self.account.slowest_send_ms, 1), **self.account.totals(),
                }  # fmt: skip
                self.account.loop_delay_ms = self.account.slowest_send_ms = 0.0
                lines.write(json.dumps(line) + "\n")
                lines.flush()

    async def run(self, folder: Path) -> None:
        async with connect_admin(self.admin_url) as admin:
            await self.prepare(admin)
            async with asyncio.TaskGroup() as group:
                group.create_task(self.watch(folder / "progress.jsonl"))
                operator = Operator(self.url, self.admin_url, admin, self.stopping)
                for name, work, end in [*self.tasks(admin), ("operator", operator.run, self.stopping)]:
                    group.create_task(self.repeat(name, work, end), name=name)
                await asyncio.sleep(self.seconds)
                self.stopping.set()
                self.draining.set()
                until = time.monotonic() + 300
                await asyncio.sleep(5)
                while self.missing() and time.monotonic() < until:  # noqa: ASYNC110
                    await asyncio.sleep(1)
                await asyncio.sleep(5)
                await operator.verify()
                self.finished.set()
        lost = self.missing()
        account = self.account
        result = {
            **account.totals(),
            "missing_count": sum(len(numbers) for each in lost.values() for numbers in each.values()),
            "missing": {name: {who: numbers[:SHOWN] for who, numbers in each.items()} for name, each in lost.items()},
            "subscriptions": {
                name: {
                    "received": sum(bits.count for bits in seen.numbers.values()), "duplicates": seen.duplicates,
                    "unordered": seen.unordered_count, "unordered_examples": seen.unordered,
                }
                for name, seen in account.seen.items()
            },
            "administration": dict(operator.done), "promises_broken": operator.broken,
            "error_examples": dict(account.errors.most_common(60)),
        }  # fmt: skip
        (folder / "result.json").write_text(json.dumps(result, indent=2))


def main() -> None:
    spec = json.loads(sys.argv[1])
    asyncio.run(Load(spec["url"], spec["admin"], spec["seconds"], spec["scale"]).run(Path(spec["folder"])))


if __name__ == "__main__":
    main()
