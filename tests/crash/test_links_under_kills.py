"""SIGKILL of either side of a link under load: the mirror has the source's batches, byte for byte, and nothing else."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial

import anyio
import pytest
from anyio import to_thread
from pydanube import connect

from tests.crash.test_sigkill_under_load import ENVIRONMENT, ORDERS, PARTS
from tests.support.broker_process import BrokerProcess
from tests.support.history import History
from tests.support.load import PATIENCE, Load, read_topic
from tests.support.mirrors import check_equal_bytes, described, link_to, until, until_copied

Make = Callable[..., BrokerProcess]


class _Progress:
    """Counts answers to producers, and lets them send until `ROUND` were given since the last kill.

    So a run has as many messages on a slow machine as on a quick one, where restarts are short.
    """

    def __init__(self) -> None:
        self._left, self._reached = 0, anyio.Event()
        self._allowed, self._more = ROUND, anyio.Event()

    def progressed(self) -> None:
        self._allowed -= 1
        self._left -= 1
        if self._left <= 0:
            self._reached.set()

    async def room(self) -> None:
        """Wait until a producer may send."""
        while self._allowed <= 0:
            await self._more.wait()

    async def wait(self, answers: int) -> None:
        self.allow(ROUND)
        self._left, self._reached = answers, anyio.Event()
        await self._reached.wait()

    def allow(self, answers: int) -> None:
        self._allowed = answers
        self._more.set()
        self._more = anyio.Event()


ROUND = 250  # answers to producers from one kill to the next, some 40 KiB each
#: with the first, all stays in the journals, as far as eight segments hold it, and batches are compared. With the second,
#: objects are flushed under the link's feet, with other batches, and messages are compared
STAYS = {
    **ENVIRONMENT,
    "DANUBE_TIER__FLUSH_AGE": "1h",
    "DANUBE_TIER__FLUSH_BYTES": "1GiB",
    "DANUBE_JOURNAL__SEGMENT_BYTES": "16MiB",
}
ALL_STAYS = 8  # rounds, after which every segment is still there
FLUSHED = {**ENVIRONMENT, "DANUBE_TIER__FLUSH_AGE": "300ms"}


async def run(
    source: BrokerProcess, here: BrokerProcess, seed: object, rounds: int, *, bytes_too: bool
) -> None:
    rng, history, progress = random.Random(f"{seed}"), History(seed), _Progress()
    for broker in (source, here):
        await to_thread.run_sync(broker.start)
    await to_thread.run_sync(lambda: source.ask("topics.create", topic=PARTS, partitions=3))
    await to_thread.run_sync(lambda: link_to(here, source))
    load = Load(source.url, history, progress.progressed, room=progress.room)
    async with anyio.create_task_group() as producing:
        producing.start_soon(lambda: load.lone("lone", ORDERS, seed))
        producing.start_soon(lambda: load.bursts("bursts", ORDERS, seed, compression="lz4"))
        producing.start_soon(lambda: load.batches("plain", ORDERS, seed))
        producing.start_soon(lambda: load.batches("parted", PARTS, seed, style="keyed", partitions=3))
        for _ in range(rounds):
            await progress.wait(rng.choice((5, 20, 80, 200)))  # the others of `ROUND` while a mirror is away
            victim = rng.choice((source, here))
            # A random moment between two answers: the point of the exercise, nothing depends on its length.
            await anyio.sleep(rng.random() * 0.05)
            await to_thread.run_sync(victim.kill)
            await to_thread.run_sync(victim.start)
        load.stop()
        progress.allow(ROUND)
    await to_thread.run_sync(until_copied, source, here, ORDERS, PARTS)
    link = await to_thread.run_sync(described, here)
    assert [each["gap"] for each in link["mirrors"]] == [None] * 4
    async with connect(here.url, retry=PATIENCE) as mirror, connect(source.url, retry=PATIENCE) as original:
        for topic in (ORDERS, PARTS):
            rows = await read_topic(mirror, topic)
            history.check_log(topic, rows)
            assert rows == await read_topic(original, topic)
    history.check_no_failures()
    if bytes_too:
        # Each start begins with small segments, and more than eight that are sealed are flushed and deleted.
        all_stay = rounds <= ALL_STAYS
        check = partial(check_equal_bytes, source, here, ORDERS, PARTS, all_stay=all_stay)
        assert await to_thread.run_sync(check) > 10 * min(rounds, ALL_STAYS)
    else:
        await to_thread.run_sync(source.kill)
        await to_thread.run_sync(here.kill)
    await to_thread.run_sync(here.start)  # the source is gone: what is here is served
    await to_thread.run_sync(
        lambda: until("the state", lambda: described(here)["state"] == "source_unreachable")
    )
    done = await to_thread.run_sync(lambda: here.ask("links.fail_over", link="eu"))
    assert {each["topic"] for each in done["topics"]} == {ORDERS, PARTS}
    await to_thread.run_sync(lambda: here.publish(ORDERS, [b"goes on"]))


@pytest.mark.anyio
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("environment", [STAYS, FLUSHED], ids=["journal", "objects"])
async def test_kills_of_either_side_leave_the_mirror_the_same(
    make_broker: Make, environment: dict[str, str]
) -> None:
    brokers = [make_broker(environment=environment) for _ in range(2)]
    with anyio.fail_after(1150):
        await run(brokers[0], brokers[1], seed=1, rounds=8, bytes_too=environment is STAYS)
    brokers[1].check_log()


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("environment", [STAYS, FLUSHED], ids=["journal", "objects"])
async def test_sixty_kills_of_either_side_leave_the_mirror_the_same(
    make_broker: Make, environment: dict[str, str]
) -> None:
    seed = os.environ.get("CRASH_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"CRASH_SEED={seed}")
    brokers = [make_broker(environment=environment) for _ in range(2)]
    with anyio.fail_after(3500):
        await run(brokers[0], brokers[1], seed, rounds=60, bytes_too=environment is STAYS)
