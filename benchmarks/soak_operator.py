"""The operator of `soak.py`: changes that are made and taken back, between deaths of the broker, and what was promised of them.

Turn after turn: a topic is filled and read in part; deletions, seeks, skips and policies are planned, applied and undone; after
each the topic must have every message that was acknowledged, and its subscription the lag that it had. At the end the audit
must be whole.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydanube import ClusterError, Message, Retry, connect
from pydanube.admin import Admin, Plan, connect_admin

PATIENCE: Final = Retry(max_elapsed_s=600, initial_s=0.05, max_delay_s=1.0)
TOO_LATE: Final = "PLAN_EXPIRED"  # the grace is one minute, and the soak sets the clock an hour ahead
VERIFY_S: Final = 300.0  # 50 000 records on a machine with ten times the load that it has cores for
NOTHING_BEGUN: Final = "PLAN_NOT_FOUND"
ALREADY: Final = "PLAN_USED"
ResultT = TypeVar("ResultT")


@dataclass
class Operator:
    """Makes changes and takes them back; `broken` names every promise that was not kept."""

    url: str
    admin_url: str
    admin: Admin
    stopping: asyncio.Event
    done: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    _turn: int = 0
    _rng: random.Random = field(default_factory=lambda: random.Random("operator"))

    async def run(self) -> None:
        while not self.stopping.is_set():
            self._turn += 1
            await self._topic(f"/default/operated-{self._turn}")
            await asyncio.sleep(1)

    async def verify(self) -> None:
        async with connect_admin(self.admin_url, timeout_s=VERIFY_S) as admin:
            found = await self._asked(admin.audit.verify)
        self.done["audit records"] = found.records
        if not found.intact:
            self.broken.append(f"audit: record {found.first_bad_seq}: {found.reason}")

    async def _topic(self, topic: str) -> None:
        count = self._rng.randrange(20, 400)
        read = self._rng.randrange(count)
        wanted = [b"%s|%d" % (topic.encode(), number) for number in range(count)]
        async with connect(self.url, retry=PATIENCE) as client:
            async with client.consumer(topic, "s", create=True):
                pass
            async with client.producer(topic, name="operator") as producer:
                await producer.send_many([Message.new(payload) for payload in wanted])
            async with client.consumer(topic, "s") as consumer:
                left = read
                while left:
                    messages = await consumer.receive(max_messages=left, max_wait_s=5)
                    for message in messages:
                        await message.ack()
                    left -= len(messages)
        acts: list[Callable[[str], Awaitable[Plan[Any]]]] = [
            self._delete_topic, self._delete_subscription, self._seek_latest, self._seek_earliest, self._skip,
            self._longer_retention, self._policy,
        ]  # fmt: skip
        before = await self._lag(topic)
        for act in self._rng.sample(acts, 4):
            call_id = await self._made(topic, act)
            if call_id is None:
                self.done["not made"] += 1
            elif not await self._undone(topic, act.__name__, call_id):
                return  # its time was over: what it did stays, and the next topic begins
            await self._hold(topic, act.__name__, wanted, before)
            if self.stopping.is_set():
                break
        await self._made(topic, self._delete_topic)

    # -- changes ---------------------------------------------------------------------------------------------

    async def _delete_topic(self, topic: str) -> Plan[Any]:
        return await self.admin.topics.plan_delete(topic)

    async def _delete_subscription(self, topic: str) -> Plan[Any]:
        return await self.admin.subscriptions.plan_delete(topic, "s")

    async def _seek_latest(self, topic: str) -> Plan[Any]:
        return await self.admin.subscriptions.plan_seek(topic, "s", to="latest")

    async def _seek_earliest(self, topic: str) -> Plan[Any]:
        return await self.admin.subscriptions.plan_seek(topic, "s", to="earliest")

    async def _skip(self, topic: str) -> Plan[Any]:
        return await self.admin.subscriptions.plan_skip(topic, "s", count=1)

    async def _longer_retention(self, topic: str) -> Plan[Any]:
        return await self.admin.topics.plan_set_policies(topic, policies={"retention_age_s": 864_000})

    async def _policy(self, topic: str) -> Plan[Any]:
        return await self.admin.subscriptions.plan_set_failure_policy(topic, "s", max_redelivery_count=7)

    async def _made(self, topic: str, act: Callable[[str], Awaitable[Plan[Any]]]) -> str | None:
        """The change's call; None: it was not begun. A broker that died meanwhile is asked what it wrote of it."""
        plan = await self._asked(lambda: act(topic))
        self.done[act.__name__.strip("_")] += 1
        try:
            return str((await plan.apply()).call_id)
        except ClusterError as error:
            if not _unknown(error):
                self.broken.append(f"{topic} {act.__name__}: {error.code}: {error.message}")
                return None
        self.done["answers lost"] += 1
        operation = plan.operation
        records = await self._asked(
            lambda: self.admin.audit.query(operation=operation, topic=topic, limit=20)
        )
        return next((one.call_id for one in records.items if one.plan_id == plan.plan_id), None)

    async def _undone(self, topic: str, act: str, call_id: str) -> bool:
        """Whether things are as before; False: the time for it was over."""
        until = time.monotonic() + 240
        while True:
            try:
                plan = await self._asked(lambda: self.admin.changes.plan_undo(call_id))
                await plan.apply()
            except ClusterError as error:
                if error.code == TOO_LATE:
                    self.done["undone too late"] += 1
                    return False
                if error.code in (ALREADY, NOTHING_BEGUN):
                    return True
                if _unknown(error) and time.monotonic() < until:
                    await asyncio.sleep(0.5)
                    continue
                self.broken.append(f"{topic} undo of {act}: {error.code}: {error.message}")
                return False
            self.done["undone"] += 1
            return True

    # -- what must hold --------------------------------------------------------------------------------------

    async def _hold(self, topic: str, act: str, wanted: list[bytes], lag: int) -> None:
        async with (
            connect(self.url, retry=PATIENCE) as client,
            client.reader(topic, start="earliest", stop="head") as reader,
        ):
            found = [message.payload async for message in reader]
        if found != wanted:
            lost = len(set(wanted) - set(found))
            self.broken.append(
                f"{topic} after undo of {act}: {len(found)} messages, {len(wanted)} wanted, {lost} lost"
            )
        if (now := await self._lag(topic)) != lag:
            self.broken.append(f"{topic} after undo of {act}: lag {now}, it was {lag}")

    async def _lag(self, topic: str) -> int:
        page = await self._asked(lambda: self.admin.subscriptions.lag(topic=topic, subscription="s"))
        return sum(one.lag_messages for one in page.items)

    async def _asked(self, ask: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """The answer of a question that changes nothing, through the broker's deaths."""
        until = time.monotonic() + 240
        while True:
            try:
                return await ask()
            except ClusterError as error:
                if not _unknown(error) or time.monotonic() > until:
                    raise
                await asyncio.sleep(0.5)


def _unknown(error: ClusterError) -> bool:
    """Whether the answer was lost, or the broker is not there yet."""
    return error.retryable or error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "PLAN_STALE")
