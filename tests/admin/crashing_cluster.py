"""A real broker in a folder that may crash at any step, the admin core before it, and a clock that a test sets ahead."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from pydanube_admin.core import AdminCore
from pydanube_broker.broker import Broker
from pydanube_broker.settings.load import load_settings
from pydanube_broker.subscription.ranges import subtract
from pydanube_broker.topics import topic as topic_module
from pydanube_broker.topics.stored_messages import append_durably
from pydanube_broker.topics.topic import Topic
from pydanube_core.errors import Overloaded
from pydanube_core.names import TopicName

Range = tuple[int, int]
Cursor = tuple[str, str]  # log, subscription

FILLER: Final = TopicName.parse("/elsewhere/filler")
AHEAD: Final = SimpleNamespace(ms=0)  # of the real clock
_real_now_ms = topic_module.WallClock.now_ms


def now_ms() -> int:
    """The clock of broker and admin core: a step sets it ahead."""
    return _real_now_ms(topic_module.CLOCK) + AHEAD.ms


@dataclass
class State:
    """The state of a cluster: [first, end) of each log, the unread messages of each subscription, the policies."""

    logs: dict[str, Range] = field(default_factory=dict)
    unread: dict[Cursor, list[Range]] = field(default_factory=dict)
    policies: dict[str, dict[str, int]] = field(default_factory=dict)


def base_of(log: str) -> str:
    return str(TopicName.parse(log).base)


def copied(source: str, target: str) -> None:
    """Copy a file, if it is there: the next journal file gets its name when it is made."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


async def append(topic: Topic, payloads: Sequence[bytes]) -> None:
    while True:
        try:
            await append_durably(topic, payloads, producer="test")
        except Overloaded:  # the next journal file is being made
            await asyncio.sleep(0.005)
        else:
            return


class Cluster:
    """A real broker in a folder, and the admin core before it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lives = 0
        self.folder = root / "0"

    async def start(self) -> None:
        free = {f"server.{name}": 0 for name in ("grpc_port", "admin_port", "metrics_port")}
        given = {
            "data.dir": str(self.folder),
            "data.min_free_bytes": "1MiB",
            "journal.segment_bytes": "256KiB",
            "telemetry.enabled": False,
            **free,
        }
        loaded = load_settings(None, {"DANUBE_TEST_SMALL_SEGMENTS": "1"}, given)
        begun: asyncio.Future[Broker] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()

        async def live() -> None:  # one task for its begin and its end
            async with Broker(loaded) as broker:
                begun.set_result(broker)
                await self._over.wait()
                await self.core.aclose()

        self._life = asyncio.create_task(live())
        await asyncio.wait({self._life, begun}, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            await self._life  # raises why it did not start
        self.broker = begun.result()
        self.broker.hub.tiering = False  # as without pyarrow: retention takes files of the journal
        self.apply_retention = self.broker.retention.apply
        self.broker.retention.apply = lambda: None  # type: ignore[method-assign]  # a step does it, and not a timer
        self.core = AdminCore(self.broker.port, now_ms=now_ms)

    async def stop(self) -> None:
        self._over.set()
        # pytest's limit strikes once, and this is called again after it: a wait that ends leaves the broker's task alone
        done, _ = await asyncio.wait({self._life}, timeout=60)
        assert done, "the broker did not end within 60 s"
        await self._life

    async def crash(self) -> None:
        """Go on from what is on the disk now; what the old life does at its end is seen by nobody."""
        await self.broker.hub.settled()
        self._lives += 1
        after = self._root / str(self._lives)
        shutil.copytree(self.folder, after, copy_function=copied)
        await self.stop()
        shutil.rmtree(self.folder)
        self.folder = after
        await self.start()

    async def call(self, operation: str, **arguments: Any) -> Any:
        return await self.core.call(operation, arguments, principal="ann", face="cli")

    def parts(self, topic: str) -> Sequence[Topic]:
        return self.broker.registry.parts(TopicName.parse(topic))[1]

    async def publish(self, topic: str, count: int) -> None:
        for part in self.parts(topic):
            first = part.commit
            for start in range(first, first + count, 2000):
                payloads = [b"%d" % offset for offset in range(start, min(first + count, start + 2000))]
                await append(part, payloads)

    async def seal(self) -> None:
        """What was published so far lies in files that are not written any more."""
        if not self.parts(str(FILLER)):
            await self.broker.port.create_namespace(FILLER.namespace, {})
            await self.broker.registry.create(FILLER, partitions=0, dispatch_strategy="reliable")
        (filler,) = self.parts(str(FILLER))
        sealed = self.broker.journal.sealed()[-1:]
        while self.broker.journal.sealed()[-1:] == sealed:
            await append(filler, [bytes(60_000)])

    async def retain(self) -> None:
        self.apply_retention()
        await self.broker.hub.settled()
        self.broker.hub.collect()

    def observe(self) -> State:
        state = State()
        index = self.broker.registry.catalog.index
        for topic in self.broker.registry.topics:
            if topic.options.topic.namespace != "default":
                continue
            state.logs[topic.name] = (topic.start_offset, topic.commit)
            parent = index.partitioned(TopicName.parse(base_of(topic.name)))
            own = (topic.options if parent is None else parent.spec).settings.policies
            state.policies[base_of(topic.name)] = dict(own)
            for pump in topic.subscriptions.values():
                begin = max(topic.start_offset, pump.cursor.floor)
                whole = [(begin, topic.commit)] if begin < topic.commit else []
                state.unread[topic.name, pump.name] = subtract(whole, pump.cursor.acknowledged)
        state.policies["default"] = dict(index.namespace("default").spec.policies)
        return state
