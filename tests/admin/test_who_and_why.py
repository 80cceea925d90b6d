"""Audit records name the program that called, whether a person or an agent decided, and why, and none of it permits anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import httpx
import pytest
from pydanube.admin import connect_admin
from pydanube_admin.http import HttpFace
from pydanube_admin.jsonrpc import JsonRpc
from pydanube_admin.remote import OpsClient
from pydanube_core.calling_program import AGENT, PERSON, CallingProgram, current_program, package_version
from pydanube_core.errors import ClusterError

from tests.admin.real_broker import Administered, administered
from tests.support.broker_process import run_danube

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        yield cluster


@contextmanager
def called_by(name: str, version: str = "1.0", by: str = AGENT) -> Iterator[None]:
    before = current_program.set(CallingProgram(name=name, version=version, by=by))
    try:
        yield
    finally:
        current_program.reset(before)


async def records(cluster: Administered, **asked: Any) -> list[dict[str, Any]]:
    found = await cluster.call("audit.query", asked, "ann")
    assert not isinstance(found, ClusterError), found
    return list(found.model_dump(mode="json")["items"])


async def test_a_change_is_recorded_with_program_person_and_reason(cluster: Administered) -> None:
    async with OpsClient(cluster.url, face="mcp") as ops:
        with called_by("claude-code", "2.1"):
            await ops.call("topics.create", {"topic": "orders", "why": "the shop opens on Monday"})
        with called_by("\x1b[31mevil\n" + "x" * 100, "", by="president"):
            await ops.call("topics.create", {"topic": "bills"})
    for record in await records(cluster, topic="orders"):
        assert record["client"] == {"name": "claude-code", "version": "2.1"}
        assert (record["by"], record["untrusted"]) == ("agent", {"why": "the shop opens on Monday"})
        assert "why" not in record["arguments"]
    for record in await records(cluster, topic="bills"):
        assert record["client"]["name"].startswith("[31mevil xxx")
        assert len(record["client"]["name"]) == 64
        assert (record["by"], record["untrusted"]) == (None, None)
    assert (await cluster("audit.verify"))["intact"]


async def test_a_plan_shows_its_reason_and_the_change_that_applies_it_has_it_too(
    cluster: Administered,
) -> None:
    await cluster("topics.create", topic="orders")
    plan = await cluster("topics.delete", topic="orders", plan_only=True, why="it was a test")
    assert plan["untrusted"] == {"why": "it was a test"}
    assert (await cluster("plans.show", plan_id=plan["plan_id"]))["untrusted"] == {"why": "it was a test"}
    done = await cluster("plans.apply", plan_token=plan["plan_token"])
    (told,) = await records(cluster, call_id=done["call_id"])
    assert (told["phase"], told["untrusted"]) == ("outcome", {"why": "it was a test"})
    undone = await cluster("changes.undo", call_id=done["call_id"], why="it was no test")
    assert {each["untrusted"]["why"] for each in await records(cluster, call_id=undone["call_id"])} == {
        "it was no test"
    }


async def test_the_reason_of_the_call_comes_before_that_of_the_plan(cluster: Administered) -> None:
    await cluster("topics.create", topic="orders")
    plan = await cluster("topics.delete", topic="orders", plan_only=True, why="first")
    token = plan["plan_token"]
    done = await cluster("topics.delete", topic="orders", plan_token=token, why="second")
    assert {each["untrusted"]["why"] for each in await records(cluster, call_id=done["call_id"])} == {
        "second"
    }


@pytest.mark.parametrize(
    "why", ["x" * 301, "x" * 10_000, "two\nlines", "\x1b[2J", 7, ["a"], "\u202eright to left"]
)
async def test_a_reason_that_is_no_line_is_refused_before_anything_changes(
    cluster: Administered, why: Any
) -> None:
    error = await cluster.refused("topics.create", topic="orders", why=why)
    assert (error.code, error.details["field"]) == ("INVALID_ARGUMENT", "why")
    assert "300 characters" in error.message
    assert (await cluster("topics.list"))["items"] == []
    await cluster("topics.create", topic="orders", why="x" * 300)


async def test_a_read_takes_no_reason(cluster: Administered) -> None:
    error = await cluster.refused("topics.list", why="because")
    assert error.details["field"] == "why"


async def test_a_change_over_mcp_without_the_name_of_a_program_is_refused_and_recorded(
    cluster: Administered,
) -> None:
    async with OpsClient(cluster.url, face="mcp") as ops:
        with called_by(""):
            await ops.call("topics.list")
            with pytest.raises(ClusterError, match="clientInfo") as refused:
                await ops.call("topics.create", {"topic": "orders"})
    assert refused.value.code == "INVALID_ARGUMENT"
    assert (await cluster("topics.list"))["items"] == []
    assert {each["decision"] for each in await records(cluster, operation="topics.create")} == {"refused"}


async def test_records_are_found_by_program_and_by_who_decided(cluster: Administered) -> None:
    async with OpsClient(cluster.url, face="mcp") as ops:
        for name, by in (("cursor", AGENT), ("claude-code", AGENT), ("danube", PERSON)):
            with called_by(name, by=by):
                await ops.call("topics.create", {"topic": f"of-{name}"})
    assert {each["arguments"]["topic"] for each in await records(cluster, client="cursor")} == {"of-cursor"}
    assert {each["client"]["name"] for each in await records(cluster, by="agent")} == {
        "cursor",
        "claude-code",
    }
    assert {
        each["client"]["name"] for each in await records(cluster, by="person", operation="topics.create")
    } == {"danube"}
    assert await records(cluster, client="nobody") == []


async def test_clients_of_ours_and_of_http_name_themselves(cluster: Administered) -> None:
    async with OpsClient(cluster.url, face="cli") as ops, OpsClient(cluster.url, face="jsonrpc") as rpc:
        await ops.call("topics.create", {"topic": "one"})
        app = httpx.ASGITransport(HttpFace(JsonRpc(rpc)))
        async with httpx.AsyncClient(transport=app, base_url="http://localhost") as web:
            for number, agent in enumerate(("deployer/3.1 (linux)", "")):
                params = {"topic": f"by-http-{number}", "why": "a release"}
                call = {"jsonrpc": "2.0", "id": 1, "method": "topics.create", "params": params}
                answer = await web.post("/rpc", json=call, headers={"user-agent": agent})
                assert "error" not in answer.json()
    async with connect_admin(cluster.url) as admin:
        await admin.topics.create("two", why="a trial")
        plan = await admin.topics.plan_create("three", why="the trial went well")
        await plan.apply()
    command = ["rpc", "topics.create", "--params", '{"topic": "four"}', "--admin", cluster.url]
    assert (await anyio.to_thread.run_sync(lambda: run_danube(*command))).returncode == 0
    reasons = {
        each["arguments"]["topic"]: each["untrusted"]
        for each in await records(cluster, operation="topics.create")
        if each["client"] == {"name": "pydanube", "version": package_version()}
    }
    assert reasons == {"two": {"why": "a trial"}, "three": {"why": "the trial went well"}}
    named = {
        each["arguments"]["topic"]: each["client"]
        for each in await records(cluster, operation="topics.create")
    }
    assert named["one"]["name"] == "danube"
    assert named["two"]["name"] == "pydanube"
    assert named["four"]["name"] == "danube"
    assert named["by-http-0"] == {"name": "deployer", "version": "3.1"}
    assert named["by-http-1"] is None
