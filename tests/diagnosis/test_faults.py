"""A broker broken in fifteen ways says which it is, with the injector's own numbers; a healthy one says nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from pydanube_admin.remote import OpsClient

from tests.diagnosis.faults import (
    FAULTS,
    noisy_neighbour,
    publish_over_quota,
    reconnect_storm,
    slow_sync,
    sync_helper_slow,
)
from tests.diagnosis.injector import (
    FAST,
    Expected,
    Fault,
    Found,
    World,
    diagnosed,
    injected,
    kill_helper,
    no_consumers,
    poison_message,
    publish_throttled,
    schema_rejections,
    world_of,
)
from tests.support.broker_process import BrokerProcess, broker_process_fixture
from tests.support.s3_server import BUCKET, running_s3_server, s3_environment
from tests.support.small_disk import small_disk as mounted
from tests.support.waiting import until

Make = Callable[..., BrokerProcess]
DEADLINE_S = 240
ALONE_DEADLINE_S = 900  # of all faults one after another, up to 30 s each
# Share of a deadline: tests/conftest.py ends a test at three quarters of its limit, and this must be later
LIMIT_SHARE = 1.5
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(LIMIT_SHARE * DEADLINE_S)]
#: one of them where every test runs, all in the long ones: starting a broker costs seconds
SEEDS = pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 6))])


async def started(make_broker: Make, **options: Any) -> BrokerProcess:
    environment = FAST | options.pop("environment", {})
    broker = make_broker(environment=environment, **options)
    await to_thread.run_sync(broker.start)
    return broker


#: of the tests whose faults one broker can have at once
fast_broker = broker_process_fixture(scope="module", environment=FAST)


async def test_thirty_faults_side_by_side_are_each_found_with_their_numbers(
    fast_broker: BrokerProcess,
) -> None:
    with anyio.fail_after(DEADLINE_S):
        broker = fast_broker
        room = asyncio.Semaphore(12)  # of all of them, so that a busy machine can keep up with their clients

        async def one_of(name: str) -> Found:
            async with room:
                return await injected(broker.url, broker.admin, name, FAULTS[name], seed=1)

        found = await asyncio.gather(*map(one_of, FAULTS))
    wrong = {
        fault: (one.rule, one.evidence_wrong)
        for fault, one in zip(FAULTS, found, strict=True)
        if not one.right
    }
    assert wrong == {}
    assert all(one.took_ms < 5000 for one in found)


@pytest.mark.long
@pytest.mark.timeout(10 * LIMIT_SHARE * DEADLINE_S)
async def test_ten_seeds_of_every_fault_have_their_cause_first(
    make_broker: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """All faults side by side, on a new broker for each seed; the seed chooses counts, names and moments."""
    wrong: dict[str, tuple[str, Any]] = {}
    seeds = range(2, 12)
    for seed in seeds:
        with anyio.fail_after(DEADLINE_S):
            broker = await started(make_broker)
            room = asyncio.Semaphore(12)

            async def one_of(
                name: str, broker: BrokerProcess = broker, room: Any = room, seed: int = seed
            ) -> Found:
                async with room:
                    return await injected(broker.url, broker.admin, name, FAULTS[name], seed=seed)

            found = await asyncio.gather(*map(one_of, FAULTS))
            await to_thread.run_sync(broker.close)
        for fault, one in zip(FAULTS, found, strict=True):
            if not one.right:
                wrong[f"{fault} {seed}"] = (one.rule, one.evidence_wrong)
    all_of_them = len(FAULTS) * len(seeds)
    with capsys.disabled():
        print(f"\nthe cause first: {all_of_them - len(wrong)} of {all_of_them}; not: {wrong}")
    assert len(FAULTS) >= 30
    assert len(wrong) <= 0.03 * all_of_them, wrong


@pytest.mark.long
@pytest.mark.timeout(LIMIT_SHARE * ALONE_DEADLINE_S)
@pytest.mark.parametrize("seed", range(2, 12))
async def test_each_fault_alone_is_found(
    make_broker: Make, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after another on one broker: what was broken before is in its findings too, and must not mislead."""
    wrong = {}
    with anyio.fail_after(ALONE_DEADLINE_S):
        broker = await started(make_broker)
        for fault, inject in FAULTS.items():
            one = await injected(broker.url, broker.admin, fault, inject, seed=seed)
            with capsys.disabled():
                print(f"\nseed {seed} {fault:22} {one.rule:22} {one.seconds:5.1f} s {one.evidence_wrong}")
            if not one.right:
                wrong[fault] = (one.rule, one.evidence_wrong)
    assert wrong == {}


async def test_two_faults_at_once_are_both_named(fast_broker: BrokerProcess) -> None:
    with anyio.fail_after(DEADLINE_S):
        await asyncio.gather(
            _both(fast_broker, publish_throttled, no_consumers),
            _both(fast_broker, schema_rejections, poison_message),
        )


async def _both(broker: BrokerProcess, first: Fault, second: Fault) -> None:
    name = f"{first.__name__}-{second.__name__}"
    async with (
        world_of(broker.url, broker.admin, 1, name) as world,
        first(world) as one,
        second(world) as other,
    ):
        for fault in (one, other):
            named: set[tuple[str, str]] = set()
            while (fault.rule, _name(fault.topic)) not in named:
                await asyncio.sleep(0.25)
                answer = await world.call("diagnose.topic", topic=fault.topic)
                named = {(finding["rule"], finding["subject"].get("topic")) for finding in answer["findings"]}
        told: set[str] = set()
        while not {one.rule, other.rule} <= told:
            await asyncio.sleep(0.25)
            answer = await world.call("diagnose.cluster")
            told = set(answer["counts"])
        assert answer["verdict"] in ("degraded", "failing")
        assert len(json.dumps(answer)) <= 8192, "whatever is wrong is told in one call"


async def test_two_refusals_of_one_topic_are_both_named_with_their_own_counts(
    fast_broker: BrokerProcess,
) -> None:
    broker = fast_broker
    with anyio.fail_after(DEADLINE_S):
        async with (
            world_of(broker.url, broker.admin, 1, "refusals") as world,
            publish_over_quota(world, too_large=4) as quota,
        ):
            counted: dict[str, int] = {}
            while "publish_over_quota" not in counted:
                await asyncio.sleep(0.25)
                answer = await world.call("diagnose.topic", topic=quota.topic)
                counted = {
                    one["rule"]: one["evidence"]["refused_publishes_in_window"]
                    for one in answer["findings"]
                    if "refused_publishes_in_window" in one["evidence"]
                }
            [count] = [value for name, value in quota.evidence().items() if name.startswith("refused")]
            assert counted == {"publish_too_large": 4, "publish_over_quota": count}


def _name(topic: str | None) -> str | None:
    return None if topic is None else topic if topic.startswith("/") else f"/default/{topic}"


# -- the broker itself -------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "96m") as disk:
        yield disk


@SEEDS
async def test_a_disk_that_fills_is_found_before_and_when_it_refuses(
    make_broker: Make, small_disk: Path, seed: int
) -> None:
    with anyio.fail_after(DEADLINE_S):
        guard = random.Random(seed).randint(10, 16) << 20
        broker = await started(
            make_broker,
            data_dir=small_disk / "data",
            environment={"DANUBE_JOURNAL__SEGMENT_BYTES": "4MiB", "DANUBE_DATA__MIN_FREE_BYTES": str(guard)},
        )

        def free() -> int:
            stat = os.statvfs(small_disk)
            return stat.f_bavail * stat.f_frsize

        async with world_of(broker.url, broker.admin, seed, "disk") as world:
            await world.publish("before", world.random.randint(1, 500))
            assert (await world.call("diagnose.cluster"))["findings"] == []
            await _fill_until(
                world, small_disk, free, guard + (world.random.randint(3, 8) << 20), guard, "warning"
            )
            await _fill_until(
                world, small_disk, free, guard - (world.random.randint(1, 4) << 20), guard, "critical"
            )
    broker.check_log(allow=["disk"])


async def _fill_until(
    world: World, disk: Path, free: Callable[[], int], left: int, guard: int, severity: str
) -> None:
    with (disk / f"ballast-{severity}").open("wb") as ballast:
        ballast.write(bytes(max(0, free() - left)))
    page = 64 << 10  # the broker's own files may grow by some pages meanwhile

    def evidence() -> dict[str, Any]:
        return {
            "guard_bytes": guard,
            "free_bytes": (free() - page, free() + page),
            "refuses_publishes": severity == "critical",
        }

    found = await diagnosed(world, Expected("disk_nearly_full", None, None, evidence))
    assert found.evidence_wrong == []
    assert found.finding["severity"] == severity


@SEEDS
async def test_what_weighs_on_the_whole_broker_is_found(make_broker: Make, seed: int) -> None:
    with anyio.fail_after(DEADLINE_S):
        broker = await started(make_broker)
        helper = broker.helper_running()[0]
        for fault in (
            reconnect_storm,
            partial(sync_helper_slow, helper=helper),
            partial(slow_sync, helper=helper),
            noisy_neighbour,
        ):
            async with world_of(broker.url, broker.admin, seed, "whole") as world, fault(world) as expected:
                found = await diagnosed(world, expected, patience_s=60)
            assert found.evidence_wrong == []


@SEEDS
async def test_a_journal_whose_helper_was_killed_is_read_only(make_broker: Make, seed: int) -> None:
    with anyio.fail_after(DEADLINE_S):
        broker = await started(make_broker)
        async with world_of(broker.url, broker.admin, seed, "journal") as world:
            await world.publish("before", world.random.randint(1, 500))
            kill_helper(broker.helper_running()[0])
            found = await diagnosed(world, Expected("journal_read_only", None))
            assert found.evidence_wrong == []
            assert found.finding["severity"] == "critical"
            assert (await world.call("diagnose.cluster"))["verdict"] == "failing"
    broker.check_log(allow=["journal_read_only", "journal_failed", "audit_records_dropped"])


@pytest.mark.long  # the process that writes objects waits for every other one on a busy machine
@pytest.mark.parametrize("seed", range(1, 6))
async def test_a_store_that_stopped_is_unreachable(
    make_broker: Make, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with anyio.fail_after(DEADLINE_S):
        with running_s3_server(tmp_path / "s3") as server:
            broker = await started(
                make_broker,
                environment={
                    **s3_environment(),
                    "DANUBE_TIER__URL": f"s3://{BUCKET}/x",
                    "DANUBE_TIER__ENDPOINT": server.endpoint,
                    "DANUBE_TIER__REGION": "us-east-1",
                    "DANUBE_TIER__PATH_STYLE": "true",
                    "DANUBE_TIER__FLUSH_AGE": "200ms",
                    "DANUBE_TIER__TIMEOUT": "3s",
                },
            )
            async with world_of(broker.url, broker.admin, seed, "store") as world:
                await world.publish("t", world.random.randint(1, 500))
                # its process is the nicest there is
                await until(lambda: broker.status()["tier"]["objects_written"] > 0)
                assert (await world.call("diagnose.cluster"))["findings"] == []
        async with world_of(broker.url, broker.admin, seed, "store") as world:
            await world.publish("t", world.random.randint(1, 500))
            wanted = Expected("object_store_unreachable", None, None, lambda: {"store": f"s3://{BUCKET}/x"})
            found = await diagnosed(world, wanted, patience_s=90)
            with capsys.disabled():
                print(f"\nobject_store_unreachable {found.seconds:.1f} s after the store had stopped")
            assert found.evidence_wrong == []
            assert found.finding["evidence"]["errors"] >= 1


@pytest.mark.parametrize("damage", ["missing", "damaged"])
async def test_an_object_that_is_lost_or_damaged_is_found_before_anybody_reads_it(
    make_broker: Make, tmp_path: Path, damage: str
) -> None:
    with anyio.fail_after(DEADLINE_S):
        broker = await started(
            make_broker,
            data_dir=tmp_path / "data",
            environment={"DANUBE_TIER__FLUSH_AGE": "200ms", "DANUBE_TIER__CHECK_INTERVAL": "200ms"},
        )
        async with world_of(broker.url, broker.admin, 1, "objects") as world:
            count = world.random.randint(5, 500)
            for topic in ("whole", "t"):
                await world.publish(topic, count)
                await world.call("objects.flush", topic=topic)
            await until(lambda: broker.status()["tier"]["objects_written"] >= 2)
            assert (await world.call("diagnose.cluster"))["findings"] == []
            [path] = (tmp_path / "data" / "objects").glob("**/default/t/**/*.parquet")
            if damage == "missing":
                path.unlink()
            else:
                data = bytearray(path.read_bytes())
                data[-20] ^= 1
                path.write_bytes(data)
            found = await diagnosed(
                world,
                Expected("object_damaged", None, None, lambda: {"messages_offsets": count}),
                patience_s=60,
            )
            assert found.evidence_wrong == []
            [bad] = found.finding["evidence"]["objects"]
            assert (bad["topic"], bad["start_offset"], bad["end_offset"], bad["state"], bad["by_reader"]) == (
                "/default/t",
                0,
                count,
                damage,
                False,
            )
            assert found.finding["severity"] == "critical"
    broker.check_log(allow=["object_damaged"])


# -- healthy shapes ----------------------------------------------------------------------------------------------


async def test_healthy_shapes_raise_nothing(make_broker: Make) -> None:
    """Twelve shapes of honest work side by side, watched for three windows: no finding of warning, no alert."""
    from tests.diagnosis.healthy import SHAPES

    with anyio.fail_after(DEADLINE_S):
        broker = await started(make_broker, environment={"DANUBE_DIAGNOSIS__STUCK_AFTER": "4s"})
        seen: list[Any] = []

        async def watch() -> None:
            async with OpsClient(broker.admin, timeout_s=30.0) as ops:
                for _ in range(24):
                    await asyncio.sleep(0.5)
                    answer = await ops.call("diagnose.cluster", {})
                    seen.extend(
                        (f["rule"], f["subject"], f["severity"], f["evidence"]) for f in answer["findings"]
                    )
                    seen.extend(
                        (a["rule"], a["subject"], "alert")
                        for a in (await ops.call("alerts.list", {}))["items"]
                    )

        async with world_of(broker.url, broker.admin, 1, "healthy") as world:
            shapes = [asyncio.create_task(shape(world)) for shape in SHAPES]
            try:
                await watch()
            finally:
                for shape in shapes:
                    shape.cancel()
                outcomes = await asyncio.gather(*shapes, return_exceptions=True)
        assert len(SHAPES) == 12
        failed = [
            one
            for one in outcomes
            if isinstance(one, Exception) and not isinstance(one, asyncio.CancelledError)
        ]
        assert failed == []
        assert [one for one in seen if one[2] != "info"] == []
