"""A broker looks at itself: rounds for observers, marks that tell the truth, answers over the port."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_broker.delivery import pump as pump_module
from pydanube_broker.topics import topic as topic_module
from pydanube_broker.topics.topic import Topic
from pydanube_broker.wall_clock import WallClock
from pydanube_core.diagnosis import LagStatus
from pydanube_core.diagnosis.findings import Verdict
from pydanube_core.names import TopicName
from pydanube_core.observation import Round
from pydanube_core.positions import Position

from tests.broker.delivery.waiting import STEP_S
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

Opener = Callable[..., AbstractAsyncContextManager[Broker]]
EARLIEST = Position.parse("earliest", now_ms=0)


async def look_again(broker: Broker) -> None:
    """One round, and a turn for everybody else: a round alone may end without giving the loop away."""
    await anyio.sleep(STEP_S)
    await broker.observation.look_once()


async def make(broker: Broker, count: int) -> list[Topic]:
    found = []
    for index in range(count):
        topic = (
            await broker.registry.create(
                TopicName.parse(f"t{index}"), partitions=0, dispatch_strategy="reliable"
            )
        )[0]
        await broker.registry.subscribe(topic, "s", type="shared", start=EARLIEST, start_given=False)
        found.append(topic)
    return found


async def publish(client: Client, topic: str, count: int) -> None:
    async with client.producer(topic) as producer:
        await producer.send_many([b"x"] * count)


async def test_bytes_that_leave_are_counted_where_they_leave_and_stay_counted(
    broker: Broker, client: Client
) -> None:
    """Small messages, then large ones, to a consumer and a reader: no mean, and no fall when a topic is deleted."""
    topic, _ = await make(broker, 2)
    rounds: list[Round] = []
    broker.observation.observe(rounds.append)
    async with client.consumer("t0", "s", type="shared") as consumer:
        async with client.producer("t0") as producer:
            await producer.send_many([b"x"] * 500)
            first = len(await consumer.receive(max_messages=500, max_wait_s=5))
            small = topic.bytes_out
            await producer.send_many([b"x" * 10_000] * 50)
        got = first
        while got < 550:
            got += len(await consumer.receive(max_messages=550, max_wait_s=5))
    assert topic.messages_out == 550
    assert topic.bytes_out == topic.bytes_in, "each batch left once, whole"
    assert topic.bytes_out - small >= 50 * 10_000
    async with client.reader("t0", stop="head") as reader:
        assert len([m async for m in reader]) == 550
    assert (topic.messages_out, topic.bytes_out) == (1100, 2 * topic.bytes_in)
    await broker.observation.look_once()
    before = rounds[-1].broker
    assert (before.messages_out, before.bytes_out) == (1100, topic.bytes_out)
    await broker.registry.delete(TopicName.parse("t0"))
    await broker.observation.look_once()
    after = rounds[-1].broker
    assert after.messages_in >= before.messages_in
    assert (after.messages_out, after.bytes_out) == (before.messages_out, before.bytes_out)


async def test_an_observer_is_told_of_everything_once_and_then_of_what_changed(
    broker: Broker, client: Client
) -> None:
    await make(broker, 3)
    rounds: list[Round] = []
    end = broker.observation.observe(rounds.append)
    await broker.observation.look_once()
    assert {sample.topic for sample in rounds[-1].cursors} == {"/default/t0", "/default/t1", "/default/t2"}
    assert len(rounds[-1].heads) == 3
    await publish(client, "t1", 7)
    await broker.observation.look_once()
    [cursor] = rounds[-1].cursors
    assert (cursor.topic, cursor.state.next_offset, cursor.state.lag_messages) == ("/default/t1", 7, 7)
    assert cursor.oldest_unread_append_ms is not None
    await broker.observation.look_once()
    assert rounds[-1].cursors == []
    await broker.registry.delete(TopicName.parse("t2"))
    await broker.observation.look_once()
    assert len(rounds[-1].gone_topics) == 1
    end()
    count = len(rounds)
    await broker.observation.look_once()
    assert len(rounds) == count


async def test_a_threshold_of_a_policy_opens_an_alert_and_another_one_closes_it(
    broker: Broker, client: Client
) -> None:
    """Of mail that nothing else would be said of yet: it is seconds old, and nobody has ever read."""
    at_rest, _ = await make(broker, 2)
    await publish(client, "t0", 5)
    await publish(client, "t1", 5)

    async def policies(**changes: int | None) -> None:
        await broker.port.set_topic_policies(at_rest.name, changes)

    async def alerts() -> list[tuple[str, Any]]:
        for _ in range(broker.observation.options.close_after):
            await look_again(broker)
        return [(one.rule, one.subject["topic"]) for one in broker.observation.alerts.open()]

    assert await alerts() == []
    await policies(alert_unread_messages=5)
    assert await alerts() == [], "not more than the threshold"
    await policies(alert_unread_messages=4)
    assert await alerts() == [("threshold_exceeded", "/default/t0")]
    await policies(alert_unread_messages=None)
    assert await alerts() == []
    await policies(alert_unread_age_s=3600)
    assert await alerts() == []
    await policies(alert_unread_age_s=1)
    with anyio.fail_after(30):
        while await alerts() != [("threshold_exceeded", "/default/t0")]:
            pass


async def test_what_an_operation_passed_over_is_told_and_what_it_restored_is_unread_again(
    broker: Broker, client: Client
) -> None:
    """Skip, purge, and the undo of both: nobody ever read these messages."""
    port = broker.port
    topic = (await make(broker, 1))[0].name
    await publish(client, "t0", 300)
    for change, passed, to in (
        (partial(port.skip_messages, topic, "s", 7), 7, 7),
        (partial(port.purge_subscription, topic, "s"), 293, 300),
    ):
        before = await port.cursors(topic, "s")
        await change()
        findings = (await port.diagnose_subscription(topic, "s")).findings
        [found] = [one for one in findings if one.rule == "cursor_moved_forward"]
        assert found.evidence["passed_over_messages"] == passed
        assert found.evidence["to_offset"] == to
        operation = found.evidence["operation"]
        assert operation in found.summary
        assert found.next[0].arguments == {"topic": topic, "operation": operation}
    await port.place_cursors(topic, "s", before)
    rewound = (await port.diagnose_subscription(topic, "s")).findings[0]
    assert rewound.rule == "cursor_rewound"
    assert "293 messages are unread again" in rewound.summary


async def test_bytes_behind_the_cursor_that_are_acknowledged_are_not_counted_as_lag(
    broker: Broker, client: Client
) -> None:
    topic = (await make(broker, 1))[0]
    async with client.consumer("t0", "s", type="shared") as consumer:
        await publish(client, "t0", 100)
        _, *others = await consumer.receive(max_messages=100, max_wait_s=5)
        while len(others) < 99:
            others += await consumer.receive(max_messages=100, max_wait_s=5)

        async def lag() -> tuple[int, int | None]:
            [facts] = await broker.port.subscriptions(topic.name, "s")
            return facts.state.lag_messages, facts.lag_bytes

        messages, whole = await lag()
        assert messages == 100
        assert whole
        for message in others:
            await message.ack()
        with anyio.fail_after(30):
            while (await lag())[0] > 1:
                await look_again(broker)
        assert await lag() == (1, whole // 100)


async def test_an_observer_that_raises_does_not_end_the_rounds(broker: Broker) -> None:
    def broken(found: Round) -> None:
        raise RuntimeError("not mine")

    seen: list[int] = []
    broker.observation.observe(broken)
    broker.observation.observe(lambda found: seen.append(found.number))
    await broker.observation.look_once()
    assert seen


async def test_rows_tell_what_the_cursor_says(broker: Broker, client: Client) -> None:
    topic = (await make(broker, 1))[0]
    await publish(client, "t0", 20)
    async with client.consumer("t0", "s", type="shared") as consumer:
        messages = await consumer.receive(max_messages=20, max_wait_s=5)
        for message in messages:
            if message.offset in (0, 1, 5, 9):
                await message.ack()
        await messages[2].nack(delay_ms=60_000)
        pump = topic.subscriptions["s"]
        await broker.observation.look_once()
        await until(lambda: pump.marks().failed == 1 and pump.marks().acknowledged == 4)
        row = broker.observation.sampler.tracks[topic.topic_id].cursors["s"]
        await broker.observation.look_once()
        assert row.last is not None
        assert row.last[1:7] == (0, 20, 2, 2, 15, 1)
        assert (row.last.acknowledged, row.last.failed, row.last.lag_messages) == (4, 1, 16)
        assert row.last.acked_above == sum(end - start for start, end in pump.cursor.acknowledged)


async def test_a_consumer_that_leaves_says_so_and_one_that_breaks_does_not(broker: Broker) -> None:
    topic = (await make(broker, 1))[0]
    pump = topic.subscriptions["s"]
    async with connect(broker.broker_url) as client, client.consumer("t0", "s", type="shared", name="polite"):
        pass
    assert (pump.attendance.departure.name, pump.attendance.departure.abrupt) == ("polite", False)
    async with connect(broker.broker_url) as client, client.producer("t0", name="p"):
        pass
    assert topic.producer_left is not None
    assert not topic.producer_left.abrupt


async def test_a_visit_of_several_consumers_ends_when_the_last_one_leaves(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = (await make(broker, 1))[0]
    now = SimpleNamespace(ms=1_000)
    monkeypatch.setattr(pump_module, "now_ms", lambda: now.ms)
    for _ in range(2):
        async with AsyncExitStack() as stack:
            for number in range(3):
                await stack.enter_async_context(client.consumer("t0", "s", type="shared", name=f"c{number}"))
            now.ms += 900
        now.ms += 10
    await broker.observation.look_once()
    pump, track = topic.subscriptions["s"], broker.observation.sampler.tracks[topic.topic_id]
    view = broker.observation.viewer.subscription(topic, pump, track, track.cursors["s"], keys=False)
    assert [(one.at_ms, one.back_at_ms) for one in view.visits] == [(1_900, 1_910), (2_810, None)]


async def test_what_a_round_costs_with_many_topics(opened: Opener) -> None:
    """A guard against a look that has become ten times as dear, not a measurement; nothing blocks the loop for long."""
    async with opened(data__dir=":memory:", diagnosis__sample_interval="1h") as broker:
        topics = await make(broker, 300)
        for topic in topics:
            topic.state.next_offset += 5
            topic.commit += 5
        gc.collect()
        took_s = []
        for _ in range(4):
            await broker.observation.look_once()
            took_s.append(broker.observation.sampler.took_s)
        assert min(took_s) < 0.3, (
            "a thousandth of a second for a topic at rest, in a round that nothing disturbed"
        )
        index = await broker.port.lag_index(None, None)
        assert len(index) == 300
        facts = await broker.port.lag_facts(index[:50])
        assert [found.facts.state.lag_messages for found in facts] == [5] * 50


async def test_lag_and_diagnosis_over_the_port(opened: Opener) -> None:
    settings: dict[str, Any] = {
        "diagnosis__sample_interval": "100ms",
        "diagnosis__window": "1s",
        "diagnosis__stuck_after": "500ms",
    }
    async with opened(**settings) as broker, connect(broker.broker_url) as client:
        await make(broker, 1)
        await publish(client, "t0", 12)
        port = broker.port
        subject = (await port.diagnose_cluster()).subject
        assert subject == {"brokers": 1, "topics": 1}  # at once, and without the audit's topic
        found = await port.diagnose_subscription("t0", "s")
        assert found.verdict is Verdict.HEALTHY, "whoever is to read may be on the way"
        while (found := await port.diagnose_subscription("t0", "s")).verdict is Verdict.HEALTHY:
            await look_again(broker)
        assert [one.rule for one in found.findings] == ["no_consumers"]
        assert found.findings[0].evidence["lag_messages"] == 12
        # Unasked it is said once it has lasted, and an alert opens.
        while not (await port.alerts())[0]:
            await look_again(broker)
        [alert] = (await port.alerts())[0]
        assert (alert.rule, alert.subject) == ("no_consumers", {"topic": "/default/t0", "subscription": "s"})
        assert [one.rule for one in (await port.diagnose_cluster()).findings] == ["no_consumers"]
        async with client.consumer("t0", "s", type="shared") as consumer:
            for message in await consumer.receive(max_messages=12, max_wait_s=5):
                await message.ack()
            while (await port.alerts())[0]:
                await look_again(broker)
            assert [one.rule for one in (await port.alerts())[1]] == ["no_consumers"]
            assert (await port.diagnose_subscription("t0", "s")).findings == ()


async def test_what_nobody_ever_read_is_not_called_caught_up_until_it_is_stuck(opened: Opener) -> None:
    """Rounds pass over it to save work; whoever asks is told what the messages show."""
    settings: dict[str, Any] = {"diagnosis__sample_interval": "100ms", "diagnosis__window": "1s"}
    async with opened(**settings) as broker, connect(broker.broker_url) as client:
        [topic] = await make(broker, 1)
        await publish(client, "t0", 12)
        key = (await broker.port.lag_index("t0", "s"))[0]
        while (facts := (await broker.port.lag_facts([key]))[0]).status is LagStatus.UNKNOWN:
            await look_again(broker)
        while not facts.judgement.age.age_s or facts.judgement.age.age_s < 1.2:  # no longer young
            await look_again(broker)
            [facts] = await broker.port.lag_facts([key])
        assert (facts.status, facts.judgement.lag_messages) == (facts.judgement.status, 12)
        assert facts.status is not LagStatus.CAUGHT_UP
        pump = topic.subscriptions["s"]
        assert broker.observation.status_of(topic, pump)[0] is not LagStatus.CAUGHT_UP


async def test_a_subscription_is_judged_again_when_the_clock_was_set_back(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at by a clock an hour ahead, and then not for an hour."""
    hour_ms = 3_600_000
    monkeypatch.setattr(
        topic_module, "CLOCK", WallClock(wall_ms=lambda: time.time_ns() // 1_000_000 + hour_ms)
    )
    await make(broker, 1)
    await publish(client, "t0", 5)
    for _ in range(3):
        await look_again(broker)
    (track,) = broker.observation.sampler.tracks.values()
    cursor = track.cursors["s"]
    assert cursor.look_at_ms > time.time() * 1000 + hour_ms, "it waits for a time of the wrong clock"
    monkeypatch.setattr(topic_module, "CLOCK", WallClock())  # it has followed the machine's clock back
    await look_again(broker)
    assert cursor.look_at_ms < time.time() * 1000 + hour_ms / 2
