"""The typed admin client against a real broker, with and without await."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import pytest
from pydanube import PlanRequired, PlanUsed, TopicNotFound, Unavailable
from pydanube.admin import Admin, connect_admin
from pydanube.sync import connect_admin as connect_admin_sync
from pydanube_admin.registry import OPERATIONS

from tests.admin.real_broker import administered

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with administered() as cluster:
        yield cluster.url


async def test_results_are_objects(url: str) -> None:
    async with connect_admin(url, principal="ann") as admin:
        made = await admin.topics.create("orders", partitions=2)
        assert made.topic == "/default/orders"
        page = await admin.topics.list(filter="*orders*")
        assert [(item.topic, item.partitions) for item in page.items] == [("/default/orders", 2)]
        assert page.next_page is None
        described = await admin.topics.describe("orders")
        assert len(described.parts) == 2
        assert described.topic_schema is None
        records = await admin.audit.query(operation="topics.create")
        assert {(record.principal, record.face) for record in records.items} == {("ann", "python")}


async def test_plans_are_objects_that_can_be_applied_once(url: str) -> None:
    async with connect_admin(url) as admin:
        await admin.topics.create("orders")
        with pytest.raises(PlanRequired) as required:
            await admin.topics.delete("orders")
        assert required.value.details["plan"]["plan_token"]
        plan = await admin.topics.plan_delete("orders")
        assert plan.blast_radius["topics"] == 1
        assert plan.diff[0]["after"] is None
        assert (await admin.topics.list()).items, "a plan changes nothing"
        deleted = await plan.apply()
        assert deleted.topic == "/default/orders"
        with pytest.raises(PlanUsed):
            await plan.apply()
        await admin.changes.undo(deleted.call_id)
        assert (await admin.topics.describe("orders")).topic == "/default/orders"
        other = await admin.topics.plan_delete("orders")
        await other.discard()
        assert {item.state for item in (await admin.plans.list()).items} >= {"used", "discarded"}


async def test_errors_have_their_types(url: str) -> None:
    async with connect_admin(url) as admin:
        with pytest.raises(TopicNotFound) as missing:
            await admin.topics.describe("nowhere")
        assert missing.value.next
    async with connect_admin("http://127.0.0.1:1", timeout_s=2) as admin:
        with pytest.raises(Unavailable):
            await admin.brokers.status()


async def test_without_await(url: str) -> None:
    def work() -> list[str]:
        with connect_admin_sync(url) as admin:
            admin.topics.create("orders")
            plan = admin.topics.plan_delete("orders")
            assert plan.reversible
            return [item.topic for item in admin.topics.list().items]

    assert await anyio.to_thread.run_sync(work) == ["/default/orders"]


def test_every_operation_has_its_method() -> None:
    admin = Admin(None)  # type: ignore[arg-type]  # nothing is called
    for operation in OPERATIONS.values():
        group, _, verb = operation.name.partition(".")
        methods = getattr(admin, group)
        assert callable(getattr(methods, verb))
        assert hasattr(methods, f"plan_{verb}") == operation.planned
        found = [getattr(methods, name) for name in (verb, f"plan_{verb}") if hasattr(methods, name)]
        assert all(("why" in inspect.signature(each).parameters) == operation.takes_why for each in found)


def test_what_is_committed_is_what_is_generated() -> None:
    done = subprocess.run(
        [sys.executable, "tools/gen_admin_client.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
