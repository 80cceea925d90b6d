"""A broker that hangs: it costs one call its silence, later ones little, and it is seen again when it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from pydanube_admin.peers import AGAIN_CONNECT_S, CONNECT_S
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import Unavailable
from pydanube_core.facts import LEASE_S

from tests.support.broker_process import BrokerProcess
from tests.support.etcd import EtcdMembers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
SLACK_S = 1.0  # of the machine
LATE_S = 5.0  # a broker registers again, and the others notice


@pytest.fixture
def brokers(etcd: EtcdMembers, tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    with ExitStack() as stack:
        made = []
        for name in "abc":
            (tmp_path / name).mkdir()
            broker = BrokerProcess(
                tmp_path / name,
                face="broker",
                arguments=["--metadata", etcd.url(f"/{tmp_path.name}")],
                environment={"DANUBE_TIER__URL": str(tmp_path / "objects")},
            )
            stack.callback(broker.close)
            broker.begin()
            made.append(broker)
        for broker in made:
            broker.wait_ready()
        yield made


async def timed(ops: OpsClient, operation: str) -> tuple[float, set[str]]:
    """Return how long a list takes, and the brokers that did not answer it."""
    began = anyio.current_time()
    found = await ops.call(operation, {})
    return anyio.current_time() - began, {each["broker_id"] for each in found.get("not_seen", ())}


async def states(ops: OpsClient) -> dict[str, Any]:
    return {each["broker_id"]: each["state"] for each in (await ops.call("brokers.list", {}))["items"]}


async def test_a_broker_that_hangs_costs_one_call_its_silence(brokers: list[BrokerProcess]) -> None:
    """Each call took four seconds, or five without an open connection, until its lease ended."""
    first, _, third = brokers
    async with OpsClient(first.admin) as ops:
        ids = (await states(ops)).keys()
        assert len(ids) == 3
        await to_thread.run_sync(third.pause)
        try:
            took_s, missing = await timed(ops, "brokers.list")
            assert took_s < CONNECT_S + SLACK_S
            assert len(missing) == 1
            for operation in ("topics.list", "subscriptions.list", "consumers.list", "brokers.list"):
                took_s, still = await timed(ops, operation)
                assert took_s < AGAIN_CONNECT_S + SLACK_S
                assert still == missing
            found = await ops.call("diagnose.cluster", {})
            assert found["verdict"] == "degraded"
            assert [(each["rule"], each["subject"]["broker_id"]) for each in found["findings"]] == [
                ("broker_unreachable", *missing)
            ]
            third.resume()
            with anyio.fail_after(LATE_S):
                while (await states(ops)).keys() != ids:  # noqa: ASYNC110
                    await anyio.sleep(0.1)
        finally:
            third.resume()


async def test_unloading_a_broker_that_hangs_is_refused_with_its_name(brokers: list[BrokerProcess]) -> None:
    first, _, third = brokers
    async with OpsClient(first.admin) as ops:
        assert len(await states(ops)) == 3
        await to_thread.run_sync(third.pause)
        try:
            _, [hung] = await timed(ops, "brokers.list")
            with pytest.raises(Unavailable, match=rf": broker {hung} does not answer at http"):
                await ops.call("brokers.unload", {"broker_id": hung, "plan_only": True})
        finally:
            third.resume()


@pytest.mark.long
async def test_a_broker_that_hung_beyond_its_lease_is_back_when_it_goes_on(
    brokers: list[BrokerProcess],
) -> None:
    first, _, third = brokers
    async with OpsClient(first.admin) as ops:
        ids = (await states(ops)).keys()
        await to_thread.run_sync(third.pause)
        try:
            with anyio.fail_after(3 * LEASE_S):
                while "gone" not in (await states(ops)).values():  # noqa: ASYNC110
                    await anyio.sleep(0.2)
        finally:
            third.resume()
        with anyio.fail_after(LATE_S):
            while set((found := await states(ops)).values()) != {"active"}:  # noqa: ASYNC110
                await anyio.sleep(0.1)
        assert found.keys() == ids
