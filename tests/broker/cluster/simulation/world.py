"""Virtual time, one seed's chance, etcd and the object store as a network shows them: late, twice, or not at all.

etcd is the real engine of the metadata store behind requests that a seed delays, loses, doubles, or answers too late;
what a caller learns then is "unknown". Nothing here looks at a real clock.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.move_record import Stage
from pydanube_core.errors import ClusterError
from pydanube_storage.metadata import GuardFailed, Revision
from pydanube_storage.metadata.engine import Engine

from tests.support.memory_store import MemoryRows

DEADLINE_MS: Final = 2_000  # of a call to etcd
_FAULTY: Final = 0.12  # of the calls to etcd, while faults happen


class Violation(AssertionError):
    """An invariant of the simulated cluster was broken."""


def require(holds: bool, why: str, *facts: object) -> None:
    if not holds:
        raise Violation(" ".join([why, *map(str, facts)]))


@dataclass(frozen=True, slots=True)
class Unknown:
    """A call to etcd that was not answered in time: it may have happened, or may happen yet."""


#: the value, the guard that failed, or nothing known
Outcome = Any


class World:
    """Everything that happens, in its order. `trace`: what happened, for a seed that failed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.faults = True
        self.coverage: Counter[tuple[str, str]] = Counter()
        self.trace: list[str] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._made = 0

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._made, act))

    def run(self, until_ms: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= until_ms:
            self.now_ms, _, act = heapq.heappop(queue)
            act()
        self.now_ms = until_ms

    def chance(self, share: float) -> bool:
        return self.faults and self.random.random() < share

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms:>7} {text}")


class SimEtcd:
    """See the module. `on_change`: told of every assignment that was written, at that moment."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.engine = Engine(MemoryRows(), now_ms=0)
        self._known: dict[TopicId, tuple[Assignment, Revision]] = {}
        self.on_change: Callable[[TopicId, Assignment, Revision], None] = lambda *_: None

    def assignment(self, topic_id: TopicId) -> tuple[Assignment, Revision]:
        """Return the assignment that holds now."""
        item = self.engine.get(keys.assignment_key(topic_id))
        assert item is not None
        known = self._known.get(topic_id)
        if known is None or known[1] != item.mod_revision:
            known = self._known[topic_id] = (Assignment.of(item.key, item.value), item.mod_revision)
        return known

    def call(
        self, work: Callable[[], Any], done: Callable[[Outcome], None], *, topic: TopicId | None = None
    ) -> None:
        """Ask etcd. `work` runs when the request arrives; `done` is called once, with what it returned or raised."""
        world, random = self.world, self.world.random
        answered = False

        def answer(outcome: Outcome) -> None:
            nonlocal answered
            if not answered:
                answered = True
                done(outcome)

        def arrive() -> None:
            outcome = self._carry_out(work)
            if fault != "answer lost":
                world.after(random.randint(1, 30), lambda: answer(outcome))

        fault = (
            random.choice(("request lost", "answer lost", "doubled", "late")) if world.chance(_FAULTY) else ""
        )
        if fault and topic is not None:
            world.coverage[fault, stage_of(self.assignment(topic)[0])] += 1
            world.note(f"etcd: {fault}")
        delay = random.randint(1, 30)
        match fault:
            case "request lost":
                pass
            case "late":
                world.after(DEADLINE_MS + random.randint(1, 3_000), arrive)
            case "doubled":
                world.after(delay, arrive)
                world.after(random.randint(delay, 4_000), arrive)
            case _:
                world.after(delay, arrive)
        world.after(DEADLINE_MS, lambda: answer(Unknown()))

    def _carry_out(self, work: Callable[[], Any]) -> Outcome:
        self.engine.expire(self.world.now_ms)
        try:
            outcome = work()
        except GuardFailed as error:
            outcome = error
        except ClusterError as error:  # a lease that is gone
            outcome = error
        for change in self.engine.take_changes():
            for key in change.keys:
                if key in keys.ASSIGNMENTS:
                    topic_id = TopicId(keys.number_in_key(key))
                    record, revision = self.assignment(topic_id)
                    self.on_change(topic_id, record, revision)
        return outcome


class SimStore:
    """The object store. `blind`: brokers for which it does not answer; `down`: nobody gets an answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects: dict[str, bytes] = {}
        self.blind: set[int] = set()
        self.down = False

    def put(self, broker: int, key: str, data: bytes, done: Callable[[bool], None]) -> None:
        world = self.world
        fails = self.down or broker in self.blind or world.chance(0.05)

        def arrive() -> None:
            if not fails or world.random.random() < 0.5:  # what failed may have happened
                self.objects[key] = data
            done(not fails)

        world.after(world.random.randint(5, 200), arrive)

    def get(self, broker: int, key: str, done: Callable[[bytes | None], None]) -> None:
        world = self.world

        def arrive() -> None:
            fails = self.down or broker in self.blind or world.chance(0.05)
            done(None if fails else self.objects.get(key))

        world.after(world.random.randint(5, 100), arrive)


STAGES: Final = ("serving", "moving", "ready", "sealed", "assigned")


def stage_of(record: Assignment) -> str:
    """The stage; of `moving` apart: whether the target is ready."""
    if record.stage is Stage.MOVING and record.move is not None and record.move.ready is not None:
        return "ready"
    return record.stage.value
