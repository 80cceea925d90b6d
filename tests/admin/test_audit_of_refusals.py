"""What a face refuses is in the audit too, and neither refusals nor reads fill it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp import Client
from pydanube_admin.engine.audit.audit_log import (
    MOST_ALIKE,
    READS_APART_MS,
    REFUSALS_A_SECOND,
    AuditReads,
    ReadSampling,
    RefusalBound,
)
from pydanube_admin.engine.context import AdminOptions
from pydanube_admin.jsonrpc import JsonRpc
from pydanube_admin.remote import OpsClient
from pydanube_mcp import build_server

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio


async def refused(cluster: Administered) -> list[tuple[str, str, str]]:
    records = (await cluster("audit.query", limit=1000))["items"]
    return [
        (each["operation"], each["face"], each["code"])
        for each in records
        if each["phase"] == "outcome" and each["decision"] == "refused"
    ]


@pytest.mark.parametrize(
    ("method", "params", "code", "recorded"),
    [
        ("topics.create", {"topic": "a b"}, -32000, "INVALID_NAME"),
        ("topics.create", {"colour": "red"}, -32602, "INVALID_ARGUMENT"),
        ("topics.create", ["orders"], -32602, "INVALID_ARGUMENT"),
        ("topics.destroy", {}, -32601, "INVALID_ARGUMENT"),
        ("topics.describe", {"topic": "nowhere"}, -32000, "TOPIC_NOT_FOUND"),
    ],
)
async def test_what_jsonrpc_refuses_is_recorded(method: str, params: Any, code: int, recorded: str) -> None:
    async with administered() as cluster, OpsClient(cluster.url, face="jsonrpc") as ops:
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = json.loads(await JsonRpc(ops).handle(json.dumps(call).encode()) or b"")
        assert answer["error"]["code"] == code
        assert (method, "jsonrpc", recorded) in await refused(cluster)


async def test_what_a_server_that_only_reads_refuses_is_recorded() -> None:
    async with administered() as cluster:
        await cluster("topics.create", topic="orders")
        async with build_server(cluster.url, read_only=True) as server, Client(server) as client:
            for tool in ("delete_topic", "create_topic"):
                result = await client.call_tool(tool, {"topic": "orders"})
                assert result.is_error
                assert result.structured_content is not None
                assert result.structured_content["error"]["code"] == "READ_ONLY"
        assert await refused(cluster) == [
            ("topics.create", "mcp", "READ_ONLY"),
            ("topics.delete", "mcp", "READ_ONLY"),
        ]


async def test_a_server_that_only_reads_refuses_without_a_broker_too() -> None:
    async with build_server("http://127.0.0.1:1", read_only=True) as server, Client(server) as client:
        result = await client.call_tool("delete_topic", {"topic": "orders"})
        assert result.structured_content is not None
        assert result.structured_content["error"]["code"] == "READ_ONLY"


async def test_refusals_in_a_loop_are_counted_and_not_written_one_by_one() -> None:
    async with administered() as cluster:
        for number in range(20 * REFUSALS_A_SECOND):
            await cluster.refused("topics.create", topic=f"a b {number}")
        for _ in range(2):  # the next second says what was left out
            await cluster.refused("topics.create", topic="a b")
        records = (await cluster("audit.query", limit=1000, operation="topics.create"))["items"]
        left_out = [
            each["arguments"]["left_out"]
            for each in (await cluster("audit.query", limit=1000, filter="refusals"))["items"]
        ]
        assert len(records) < 20 * REFUSALS_A_SECOND
        # Of the last second nothing need be said yet.
        assert sum(left_out) + len(records) <= 20 * REFUSALS_A_SECOND + 2
        assert (await cluster("audit.verify"))["intact"]


@pytest.mark.parametrize(("which", "recorded"), [("sampled", 1), ("all", 5), ("none", 0)])
async def test_reads_that_are_alike_do_not_fill_the_audit(which: str, recorded: int) -> None:
    async with administered(options=AdminOptions(audit_reads=AuditReads(which))) as cluster:
        for _ in range(5):
            await cluster("topics.list")
        records = (await cluster("audit.query", operation="topics.list"))["items"]
        assert len(records) == recorded


def test_a_read_is_recorded_again_after_a_while_and_others_at_once() -> None:
    sampling = ReadSampling(AuditReads.SAMPLED)
    assert sampling.takes("ann", "cli", "topics.list", 0)
    assert not sampling.takes("ann", "cli", "topics.list", READS_APART_MS - 1)
    assert sampling.takes("bob", "cli", "topics.list", 1)
    assert sampling.takes("ann", "mcp", "topics.list", 1)
    assert sampling.takes("ann", "cli", "topics.list", READS_APART_MS)
    for number in range(3 * MOST_ALIKE):
        sampling.takes(f"p{number}", "cli", "topics.list", READS_APART_MS)
    kept = 2 * MOST_ALIKE
    assert not sampling.takes(f"p{kept}", "cli", "topics.list", READS_APART_MS)
    assert sampling.takes(f"p{kept - 1}", "cli", "topics.list", READS_APART_MS), "so many are remembered"


def test_of_many_refusals_the_first_of_each_second_are_recorded() -> None:
    bound = RefusalBound()
    taken = [bound.takes(ms) for ms in range(0, 3000, 10)]
    assert sum(taken) == 3 * REFUSALS_A_SECOND
    assert bound.left_out() == len(taken) - sum(taken)
    assert bound.left_out() == 0
