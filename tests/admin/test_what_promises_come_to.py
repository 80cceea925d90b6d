"""Random administration, retention, crashes and hours on a real broker, held against what plans and results promised.

The model is what was seen before a step, and the promises that are open. Each step may only do what it announced:

- a plan's `messages` is what goes, and what goes without a plan is nothing;
- `reversible` means that there is an undo; until its time is over, and unless something later touched the same, it
  brings back every message and every cursor; where something did, it refuses and changes nothing;
- retention takes nothing that a subscription has not read, be it one whose deletion can still be undone, unless
  `drop_unread` says so;
- a crash changes nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from pydanube_broker.subscription.cursor import CursorSnapshot, encode_snapshot
from pydanube_broker.subscription.ranges import normalise, subtract, total
from pydanube_broker.topics import topic as topic_module
from pydanube_core.errors import ClusterError
from pydanube_core.names import TopicName

from tests.admin.crashing_cluster import AHEAD, Cluster, Cursor, Range, State, base_of, now_ms

T = TypeVar("T")

TOPICS: Final = ("a", "p")  # p has two partitions
SUBSCRIPTIONS: Final = ("s", "t")
MOVES: Final = ("subscriptions.seek", "subscriptions.skip", "subscriptions.purge")
GRACE_MS: Final = 86_400_000
HOLES: Final = 8_000  # the image of such a cursor is beyond 160 KiB
REFUSED_UNDO: Final = {
    "CONFLICT", "NAME_REUSED", "PLAN_EXPIRED", "PLAN_NOT_FOUND", "TOPIC_NOT_FOUND", "SUBSCRIPTION_NOT_FOUND",
}  # fmt: skip

POLICIES: Final[list[dict[str, int | None]]] = [
    {"retention_bytes": 1},
    {"retention_bytes": None},
    {"retention_bytes": 1 << 40},
    {"drop_unread": 1},
    {"drop_unread": 0},
    {"retention_age_s": 7200},
    {"retention_age_s": 1_000_000, "retention_bytes": 0},
    {"retention_offset": 20},
    {"drop_unread": None, "retention_age_s": None},
]
KINDS: Final = [
    kind
    for kind, share in {
        "publish": 4,
        "read": 3,
        "read_every_second_of_thousands": 1,
        "crash": 1,
        "hours_pass": 2,
        "files_are_full": 4,
        "create_topic": 2,
        "delete_topic": 1,
        "create_subscription": 3,
        "delete_subscription": 2,
        "seek": 3,
        "purge": 2,
        "skip": 2,
        "set_policies": 5,
        "undo": 7,
    }.items()
    for _ in range(share)
]


@dataclass(kw_only=True)
class Promise:
    """A change that can be undone. `touched`: the calls, and other things, that came in its way since."""

    call_id: str
    operation: str
    arguments: Mapping[str, Any]
    before: State
    until_ms: int
    touches: frozenset[tuple[str, ...]]
    touched: set[str] = field(default_factory=set)


def overlap(ranges: Sequence[Range], taken: Range) -> list[Range]:
    return [(max(a, taken[0]), min(b, taken[1])) for a, b in ranges if max(a, taken[0]) < min(b, taken[1])]


def touches(operation: str, arguments: Mapping[str, Any]) -> frozenset[tuple[str, ...]]:
    """Return the things a change is about, as far as another change can conflict with it."""
    if "policies" in arguments:
        subject = arguments.get("topic") or arguments["namespace"]
        return frozenset(("policy", subject, name) for name in arguments["policies"])
    if "subscription" in arguments:
        return frozenset({("cursor", arguments["topic"], arguments["subscription"])})
    return frozenset({("topic", arguments["topic"])})


class Promises(RuleBasedStateMachine):
    """The promises that the module tests, and whether they are kept."""

    def __init__(self) -> None:
        super().__init__()
        AHEAD.ms = 0
        self.runner = asyncio.Runner()
        self.root = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.cluster = Cluster(self.root)
        self.promises: list[Promise] = []
        self.ghosts: dict[tuple[str, str, str], list[Range]] = {}  # call, log, subscription → unread
        self.wide = False
        self.run(self.cluster.start())
        self.state = self.cluster.observe()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.cluster.stop())
        self.runner.close()
        shutil.rmtree(self.root)

    # -- what comes in the way of promises ---------------------------------------------------------------------

    def interfere(self, by: str, keys: Iterable[tuple[str, ...]]) -> None:
        keys = set(keys)
        for promise in self.promises:
            topics = {key[1] for key in keys if key[0] == "topic"}
            if promise.touches & keys or any(key[1] in topics for key in promise.touches):
                promise.touched.add(by)

    def give_back(self, by: str) -> None:
        for promise in self.promises:
            promise.touched.discard(by)

    # -- the world goes on -------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(KINDS), which=st.integers(0, 11), how=st.integers(0, 47))
    def step(self, kind: str, which: int, how: int) -> None:
        """One thing happens: which topic or subscription, and how, is in the numbers."""
        getattr(self, kind)(which, how)

    def publish(self, which: int, how: int) -> None:
        self.run(self.published(TOPICS[which % 2], how + 1))

    async def published(self, topic: str, count: int) -> None:
        await self.cluster.publish(topic, count)
        for part in self.cluster.parts(topic):
            first, end = self.state.logs[part.name]
            new = (end, end + count)
            self.state.logs[part.name] = (first, end + count)
            for table in (self.state.unread, self.ghosts):
                for key, unread in table.items():
                    if key[-2] == part.name:
                        table[key] = normalise([*unread, new])  # type: ignore[index]
            self.use(topic)
        assert self.cluster.observe() == self.state

    def use(self, topic: str) -> None:
        """What was created is in use: its creation is not simply taken back any more."""
        for promise in self.promises:
            if promise.operation == "topics.create" and promise.arguments["topic"] == topic:
                promise.touched.add("use")

    def read(self, which: int, how: int) -> None:
        """A consumer acknowledges the first messages."""
        if cursor := self.cursor(which):
            self.run(self.acknowledged(cursor["topic"], cursor["subscription"], how + 1))

    async def acknowledged(self, topic: str, subscription: str, count: int) -> None:
        for part in self.cluster.parts(topic):
            if subscription in part.subscriptions:
                await self.cluster.broker.port.skip_messages(part.name, subscription, count)
                left = count
                unread = self.state.unread[part.name, subscription]
                while unread and left:
                    (start, end), rest = unread[0], unread[1:]
                    taken = min(left, end - start)
                    unread = [(start + taken, end), *rest] if start + taken < end else rest
                    left -= taken
                self.state.unread[part.name, subscription] = unread
        assert self.cluster.observe() == self.state

    def read_every_second_of_thousands(self, which: int, how: int) -> None:
        if not self.wide and ("/default/a", "s") in self.state.unread:
            self.wide = True
            self.run(self.hollowed())

    async def hollowed(self) -> None:
        await self.published("a", 2 * HOLES)
        (part,) = self.cluster.parts("a")
        read = [(offset, offset + 1) for offset in range(part.commit - 2 * HOLES + 1, part.commit, 2)]
        unread = subtract(self.state.unread[part.name, "s"], read)
        above = subtract([(unread[0][0], part.commit)], unread)
        cursor = encode_snapshot(CursorSnapshot(floor=unread[0][0], acknowledged=tuple(above)))
        await self.cluster.broker.port.place_cursors(part.name, "s", {part.name: cursor})
        self.state.unread[part.name, "s"] = unread
        assert self.cluster.observe() == self.state

    def crash(self, which: int, how: int) -> None:
        self.run(self.cluster.crash())
        assert self.cluster.observe() == self.state, "a crash changes nothing"

    def hours_pass(self, which: int, how: int) -> None:
        AHEAD.ms += (1, 3, 5, 30)[how % 4] * 3_600_000
        for promise in self.promises:
            if promise.until_ms <= now_ms() + 60_000:
                promise.touched.add("time")
                for key in [key for key in self.ghosts if key[0] == promise.call_id]:
                    del self.ghosts[key]

    def files_are_full(self, which: int, how: int) -> None:
        self.run(self.cluster.seal())
        self.run(self.retained())

    async def retained(self) -> dict[str, int]:
        """A round of retention; how many messages it took of each log."""
        await self.cluster.retain()
        after, taken = self.cluster.observe(), {}
        for log, (first, _) in self.state.logs.items():
            gone = (first, after.logs[log][0])
            if gone[0] == gone[1]:
                continue
            taken[log] = gone[1] - gone[0]
            layers = (self.state.policies[base_of(log)], self.state.policies["default"])
            drops = next((layer["drop_unread"] for layer in layers if "drop_unread" in layer), 0)
            for key, unread in self.state.unread.items():
                if key[0] == log:
                    assert drops or not overlap(unread, gone), f"retention took what {key} has not read"
                    self.state.unread[key] = subtract(unread, [gone])
            for ghost, unread in self.ghosts.items():
                if ghost[1] == log:
                    assert drops or not overlap(unread, gone), (
                        f"retention took what {ghost} has not read, whose deletion can be undone"
                    )
                    self.ghosts[ghost] = subtract(unread, [gone])
            for promise in self.promises:
                if promise.operation in MOVES:
                    then = promise.before.unread.get((log, promise.arguments["subscription"]), [])
                    if overlap(then, gone):
                        promise.touched.add("retention")
            self.state.logs[log] = after.logs[log]
        assert after == self.state, "retention takes messages, and nothing else"
        return taken

    # -- administration ----------------------------------------------------------------------------------------

    def create_topic(self, which: int, how: int) -> None:
        topic = TOPICS[which % 2]
        self.change("topics.create", topic=topic, partitions=2 if topic == "p" else 0)

    def delete_topic(self, which: int, how: int) -> None:
        self.change("topics.delete", topic=TOPICS[which % 2])

    def create_subscription(self, which: int, how: int) -> None:
        start = ("earliest", "latest")[how % 2]
        name = SUBSCRIPTIONS[which // 2 % 2]
        self.change("subscriptions.create", topic=TOPICS[which % 2], subscription=name, start=start)

    def delete_subscription(self, which: int, how: int) -> None:
        if cursor := self.cursor(which):
            self.change("subscriptions.delete", **cursor)

    def seek(self, which: int, how: int) -> None:
        if cursor := self.cursor(which):
            to = ("earliest", "latest", "time:-2h", "offset:7")[how % 4]
            self.change("subscriptions.seek", **cursor, to=to)

    def purge(self, which: int, how: int) -> None:
        if cursor := self.cursor(which):
            self.change("subscriptions.purge", **cursor)

    def skip(self, which: int, how: int) -> None:
        if (cursor := self.cursor(which)) and cursor["topic"] == "a":
            self.change("subscriptions.skip", **cursor, count=how % 20 + 1)

    def set_policies(self, which: int, how: int) -> None:
        policies = POLICIES[how % len(POLICIES)]
        subject = (*TOPICS, "default")[which % 3]
        if subject == "default":
            self.change("namespaces.set_policies", namespace=subject, policies=policies)
        else:
            self.change("topics.set_policies", topic=subject, policies=policies)

    def undo(self, which: int, how: int) -> None:
        """Mostly the newest that nothing came in the way of."""
        sound = [promise for promise in self.promises if not promise.touched]
        chosen = self.promises if how % 4 == 0 else sound
        if chosen:
            self.run(self.undone(chosen[-1 - which % min(3, len(chosen))]))

    def cursor(self, which: int) -> dict[str, str]:
        """One of the subscriptions there are."""
        found = sorted({(TopicName.parse(base_of(log)).name, name) for log, name in self.state.unread})
        return (
            {} if not found else dict(zip(("topic", "subscription"), found[which % len(found)], strict=True))
        )

    def change(self, operation: str, **arguments: Any) -> None:
        self.run(self.changed(operation, arguments))

    async def changed(self, operation: str, arguments: dict[str, Any]) -> None:
        before, made = await self.made(operation, arguments, of=operation)
        if isinstance(made, ClusterError):
            return
        about = touches(operation, arguments)
        self.interfere(made["call_id"], about)
        if operation == "subscriptions.create":
            self.use(arguments["topic"])
        if operation == "subscriptions.delete":
            for (log, name), unread in before.unread.items():
                if (
                    name == arguments["subscription"]
                    and TopicName.parse(base_of(log)).name == arguments["topic"]
                ):
                    self.ghosts[made["call_id"], log, name] = unread
        if made["undo_until"] is not None:
            self.promises.append(
                Promise(
                    call_id=made["call_id"],
                    operation=operation,
                    arguments=arguments,
                    before=before,
                    until_ms=now_ms() + GRACE_MS,
                    touches=about,
                )
            )

    async def made(self, operation: str, arguments: dict[str, Any], *, of: str) -> tuple[State, Any]:
        """Make a change with the plan it wants, and hold what it does against the plan. `of`: what it is or undoes."""
        await self.retained()  # what retention was to take anyway is not the change's
        before = self.cluster.observe()
        planned = await self.cluster.call(operation, **arguments, plan_only=True)
        if isinstance(planned, ClusterError):
            assert planned.code != "INTERNAL", planned
            assert self.cluster.observe() == before, "what is refused changes nothing"
            return before, planned
        plan = planned.model_dump()
        token = {"plan_token": plan["plan_token"]} if plan["effect"] == "destroy" else {}
        outcome = await self.cluster.call(operation, **arguments, **token)
        if isinstance(outcome, ClusterError):
            assert outcome.code not in ("INTERNAL", "PLAN_STALE"), outcome
            assert self.cluster.observe() == before, "what is refused changes nothing"
            return before, outcome
        self.state = self.cluster.observe()
        gone = self.lost(before, self.state)
        if of.endswith(".set_policies"):
            gone += sum((await self.retained()).values())
        if token:
            assert plan["blast_radius"]["messages"] == gone, f"{operation} of {of}: the plan counts what goes"
        else:
            assert gone == 0, f"{operation} of {of} destroyed {gone} messages without a plan"
        made = outcome.model_dump()
        assert plan["reversible"] is (made["undo_until"] is not None), (
            f"{operation}: reversible, then no undo"
        )
        return before, made

    @staticmethod
    def lost(before: State, after: State) -> int:
        """Messages of topics that went, and those that subscriptions had not read and do not get any more."""
        stored = sum(end - first for log, (first, end) in before.logs.items() if log not in after.logs)
        unread = (
            total(subtract(ranges, after.unread.get(key, [])))
            for key, ranges in before.unread.items()
            if key[0] in after.logs
        )
        return stored + sum(unread)

    async def undone(self, promise: Promise) -> None:
        before, made = await self.made("changes.undo", {"call_id": promise.call_id}, of=promise.operation)
        if isinstance(made, ClusterError):
            assert made.code in REFUSED_UNDO, made
            assert promise.touched, f"{promise.operation} can be undone, it was said: {made}"
            return
        assert "time" not in promise.touched
        self.promises.remove(promise)
        self.give_back(promise.call_id)
        self.check_undone(promise, before)
        for key in [key for key in self.ghosts if key[0] == promise.call_id]:
            del self.ghosts[key]
        if promise.operation.endswith(".create"):
            self.interfere("gone", promise.touches)

    def check_undone(self, promise: Promise, before: State) -> None:
        now, then = self.state, promise.before
        name = f"/default/{promise.arguments.get('topic')}"
        mine = [log for log in {*now.logs, *then.logs} if base_of(log) == name]
        match promise.operation:
            case "topics.delete":
                for log in mine:
                    assert now.logs[log] == then.logs[log], "every message comes back"
                assert self.cursors_of(now, mine) == self.cursors_of(then, mine), "every cursor comes back"
            case "topics.create":
                assert not any(log in now.logs for log in mine)
            case "subscriptions.create":
                assert not any(
                    key[1] == promise.arguments["subscription"] for key in self.cursors_of(now, mine)
                )
            case "subscriptions.delete":
                for (call_id, log, subscription), unread in self.ghosts.items():
                    if call_id == promise.call_id:
                        assert now.unread[log, subscription] == unread, "its cursor stands where it stood"
            case operation if operation in MOVES:
                assert not promise.touched, f"taken back over {promise.touched}"
                for log in mine:
                    key = (log, promise.arguments["subscription"])
                    since = (then.logs[log][1], now.logs[log][1])
                    whole = normalise([*then.unread[key], *([since] if since[0] < since[1] else [])])
                    assert now.unread[key] == whole, "the cursor stands where it stood"
            case _:
                subject = promise.arguments.get("namespace") or name
                for policy in promise.arguments["policies"]:
                    assert now.policies[subject].get(policy) == then.policies[subject].get(policy)

    @staticmethod
    def cursors_of(state: State, logs: Iterable[str]) -> dict[Cursor, list[Range]]:
        logs = set(logs)
        return {key: unread for key, unread in state.unread.items() if key[0] in logs}

    @initialize()
    def begin(self) -> None:
        """Most stories need something that is there."""
        self.create_topic(0, 0)
        self.create_subscription(0, 0)
        self.publish(0, 29)

    @invariant()
    def nothing_else_happens(self) -> None:
        assert self.cluster.observe() == self.state


def walk(examples: int, steps: int, *phases: Phase) -> None:
    run_state_machine_as_test(
        Promises,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=phases,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    topic_module.WallClock.__init__(topic_module.CLOCK)  # without the witnesses that other tests had
    monkeypatch.setattr(topic_module.WallClock, "now_ms", lambda _: now_ms())


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clock")
def test_what_was_promised_is_what_happens() -> None:
    # To look for a shorter example takes minutes here, and looks like a test that hangs.
    walk(8, 50, Phase.generate)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("clock")
def test_what_was_promised_is_what_happens_over_thousands_of_steps() -> None:
    walk(80, 60, Phase.generate, Phase.shrink)
