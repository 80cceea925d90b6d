"""After a restart the broker's run before is read from telemetry: for verdicts, and for charts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import anyio
import anyio.lowlevel
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.observation.tracks import CursorTrack, LogTrack
from pydanube_broker.topics.topic import now_ms
from pydanube_core.diagnosis import LagStatus
from pydanube_core.names import TopicName

from tests.support.waiting import until

pytestmark = pytest.mark.anyio

Opener = Callable[..., AbstractAsyncContextManager[Broker]]
#: Samples every 100 ms of a window of 20 s, so that a run of seconds shows a pace, and this start's own shows none yet
OFTEN = {
    "diagnosis__sample_interval": "100ms",
    "diagnosis__window": "20s",
    "telemetry__sample_interval": "100ms",
}

RUN_MS = 4000


async def test_a_subscription_that_fell_behind_is_not_unknown_after_a_restart(opened: Opener) -> None:
    with anyio.fail_after(60):
        async with opened(**OFTEN) as broker, connect(broker.broker_url) as client:
            async with client.producer("t") as producer, client.consumer("t", "s", type="shared") as consumer:

                async def status() -> LagStatus:
                    await producer.send_many([b"x"] * 20)
                    for message in await consumer.receive(max_messages=2, max_wait_s=0.05):
                        await message.ack()
                    [facts] = await broker.port.lag_facts(await broker.port.lag_index("/default/t", "s"))
                    return facts.status

                begun_ms = now_ms()
                # Long enough that telemetry has the rounds that a status takes, on a quick machine too
                while await status() is not LagStatus.FALLING_BEHIND or now_ms() - begun_ms < RUN_MS:
                    await anyio.lowlevel.checkpoint()
            assert broker.telemetry is not None
            await broker.telemetry.flush()
            before_ms = broker.observation.sampler.started_ms
        async with opened(**OFTEN | {"diagnosis__window": "300s"}) as broker:
            started_ms = broker.observation.sampler.started_ms
            await until(lambda: broker.observation.sampler.past.times)  # read in the background
            topic = broker.registry.find(TopicName.parse("/default/t"))
            assert topic is not None
            pump, now = topic.subscriptions["s"], now_ms()
            # As of the first look, because rounds of this run have come meanwhile.
            tracks = LogTrack(topic.name, topic.commit, 0, now), CursorTrack(pump.subscription_id, now)
            found = broker.observation.viewer.judgement(topic, pump, *tracks, pump.cursor_state(now))
            # SLOW if the last rounds saw that the consumer had left
            assert found.status in (LagStatus.FALLING_BEHIND, LagStatus.SLOW)
            assert found.measured_until_ms is not None
            assert before_ms < found.measured_until_ms < started_ms
            assert found.settles_at_ms is not None
            chart = await broker.port.topic_history("/default/t", None, most=2)
            assert chart.times_ms[0] < started_ms
            lags = [lag for lag in chart.cursors["s"].lag_messages if lag is not None]
            assert len(lags) > 1
            assert lags[0] < lags[-1] == found.lag_messages
            assert next(one for one in chart.published if one is not None) < chart.published[-1]  # type: ignore[operator]
