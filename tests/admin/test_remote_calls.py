"""The client of danube.ops against a real gRPC server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
from pydanube.principal import default_principal
from pydanube.wire.http2_call import MESSAGE_BYTES
from pydanube_admin.core import AdminCore
from pydanube_admin.remote import OpsClient, call_sync
from pydanube_core.errors import (
    ClusterError,
    DeadlineExceeded,
    InvalidArgument,
    MessageTooLarge,
    NotImplementedYet,
    PermissionDenied,
    TopicNotFound,
    Unauthenticated,
    Unavailable,
)
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse
from pydanube_core.ops_call import call_target

from tests.admin.test_calls_between_brokers import slow_broker
from tests.support.filled_cluster import serve_ops

pytestmark = pytest.mark.anyio


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that was free a moment ago; held open without listening, so nobody else gets it by chance."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


async def test_a_result_and_an_error_come_over_whole(ops: OpsClient) -> None:
    with anyio.fail_after(60):
        lag = await ops.call("subscriptions.lag", {"topic": "orders", "subscription": "billing"})
        assert lag["items"][0]["lag_messages"] == 35
        with pytest.raises(TopicNotFound) as caught:
            await ops.call("topics.describe", {"topic": "ordres"})
    assert caught.value.details["did_you_mean"] == ["/default/orders"]
    assert caught.value.next[0]["tool"] == "describe_topic"


async def test_a_command_calls_without_asyncio(admin_url: str) -> None:
    with anyio.fail_after(60):
        listed = await anyio.to_thread.run_sync(lambda: call_sync(admin_url, "topics.list"))
    assert listed["total"] == 2


async def test_who_asks_and_where_travels_with_the_call() -> None:
    seen: list[CallRequest] = []

    async def record(request: bytes) -> bytes:
        seen.append(CallRequest.FromString(request))
        return CallResponse(result=b"{}").SerializeToString()

    with anyio.fail_after(60):
        async with serve_ops(record) as url, OpsClient(url, principal="ann@ops", face="mcp") as ops:
            await ops.call("topics.list", {"limit": 1}, plan_token="t")
            await ops.call("topics.list", principal="bob@ops")
    assert (seen[0].principal, seen[0].face, seen[0].plan_token) == ("ann@ops", "mcp", "t")
    assert json.loads(seen[0].arguments) == {"limit": 1}
    assert seen[1].principal == "bob@ops"


async def test_nobody_there_is_unavailable_and_names_address_and_remedy(free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    with anyio.fail_after(60):
        async with OpsClient(url) as ops:
            with pytest.raises(Unavailable) as caught:
                await ops.call("topics.list")
        with pytest.raises(Unavailable):
            await anyio.to_thread.run_sync(lambda: call_sync(url, "topics.list", timeout_s=5))
    assert url in caught.value.message
    assert "danube up" in caught.value.message
    assert caught.value.next[0]["command"] == "danube up"
    assert caught.value.exit_code == 3


async def test_a_broker_that_comes_up_later_is_found_soon(core: AdminCore) -> None:
    with anyio.fail_after(30):
        async with serve_ops(core.serve_call) as url:
            port = int(url.rpartition(":")[2])
        async with OpsClient(url) as ops:
            for _ in range(4):
                with pytest.raises(Unavailable):
                    await ops.call("topics.list")
            async with serve_ops(core.serve_call, port=port):
                with anyio.fail_after(60):
                    while True:
                        try:
                            listed = await ops.call("topics.list")
                            break
                        except Unavailable:
                            await anyio.sleep(0.05)
    assert listed["total"] == 2


async def test_no_answer_in_time_is_deadline_exceeded_and_says_what_is_uncertain() -> None:
    asked = anyio.Event()

    async def never(request: bytes) -> bytes:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(60):
        async with serve_ops(never) as url, OpsClient(url, timeout_s=0.3) as ops:
            with pytest.raises(DeadlineExceeded) as caught:
                await ops.call("topics.create", {"topic": "x"})
            with pytest.raises(DeadlineExceeded) as read:
                await ops.call("topics.list")
    assert "may have been made or not" in caught.value.message
    assert (caught.value.details["outcome"], caught.value.retryable) == ("unknown", False)
    assert read.value.retryable
    assert "Repeat it" in read.value.message
    assert "change" not in read.value.message


async def test_a_connection_that_is_lost_within_a_change_leaves_its_outcome_unknown_and_says_where_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with anyio.fail_after(60):
        async with slow_broker(monkeypatch) as (broker, _), OpsClient(broker.url) as ops:
            broker.hangs_up = True
            with pytest.raises(Unavailable) as caught:
                await ops.call("topics.create", {"topic": "x"})
            with pytest.raises(Unavailable) as plan:
                await ops.call("plans.apply", {"plan_token": "p"})
            with pytest.raises(Unavailable) as read:
                await ops.call("topics.list")
    assert broker.calls == 3, "it had the changes"
    assert (caught.value.details["outcome"], caught.value.retryable) == ("unknown", False)
    assert "A change may have been made or not: look before you repeat it" in caught.value.message
    assert [each["command"] for each in caught.value.next] == [
        "danube changes list",
        "danube audit query --operation topics.create",
    ]
    # what a plan carried out is recorded under its own name
    assert plan.value.next[1]["command"] == "danube audit query --effect change"
    assert ("outcome" in read.value.details, read.value.retryable) == (False, True)


@pytest.mark.parametrize("status", ["502", "503", "504", "500", "301", "200"])
async def test_a_change_that_a_proxy_did_not_answer_is_not_to_be_repeated(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy had passed it on and gave up. A status of 200 is followed by bytes that are no answer."""
    with anyio.fail_after(60):
        async with slow_broker(monkeypatch) as (broker, _), OpsClient(broker.url) as ops:
            broker.status, broker.body = status, b"\2" + bytes(8)
            with pytest.raises(Unavailable) as change:
                await ops.call("topics.truncate", {"topic": "x", "all": True})
            with pytest.raises(Unavailable) as read:
                await ops.call("topics.list")
    assert broker.calls == 2
    assert (change.value.details["outcome"], change.value.retryable) == ("unknown", False)
    assert ("outcome" in read.value.details, read.value.retryable) == (False, status != "301")
    for error in (change.value, read.value):
        assert broker.url in error.message
        assert "danube up" not in error.message
        assert error.details.get("http_status") == (None if status == "200" else int(status))
        assert (f"HTTP status {status}" in error.message) == (status != "200")
        assert ("without an answer of its broker" in error.message) == (status[0] == "5")
        assert ("or another server" in error.message) == (status == "301")


@pytest.mark.parametrize(("status", "expected"), [("401", Unauthenticated), ("403", PermissionDenied)])
async def test_a_call_that_a_proxy_refused_is_refused(
    status: str, expected: type[ClusterError], monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(60):
        async with slow_broker(monkeypatch) as (broker, _), OpsClient(broker.url) as ops:
            broker.status = status
            with pytest.raises(expected) as refused:
                await ops.call("topics.list")
    assert (refused.value.details, refused.value.retryable) == ({"url": broker.url}, False)


async def test_an_answer_above_the_limit_is_named_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with anyio.fail_after(60):
        async with slow_broker(monkeypatch) as (broker, _), OpsClient(broker.url) as ops:
            broker.body = b"\0" + (MESSAGE_BYTES + 1).to_bytes(4, "big")
            with pytest.raises(MessageTooLarge) as read:
                await ops.call("topics.list")
            with pytest.raises(Unavailable) as change:
                await ops.call("topics.create", {"topic": "x"})
    assert (read.value.retryable, read.value.details["limit_bytes"]) == (False, MESSAGE_BYTES)
    assert f"larger than {MESSAGE_BYTES} bytes" in read.value.message
    assert "read in pages" in read.value.message
    assert f"larger than {MESSAGE_BYTES} bytes" in change.value.message
    assert (change.value.details["outcome"], change.value.retryable) == ("unknown", False)


def without_times(result: Any) -> Any:
    """What does not depend on the moment of the call."""
    if isinstance(result, dict):
        moments = ("as_of", "mark", "oldest_unread_age_s")
        return {key: without_times(value) for key, value in result.items() if key not in moments}
    return [without_times(each) for each in result] if isinstance(result, list) else result


async def test_in_the_same_process_a_call_is_what_it_is_over_the_port(
    core: AdminCore, ops: OpsClient
) -> None:
    here = OpsClient(ops.admin_url, principal="tester@here", face="cli", entry=core.serve_call)
    for operation, arguments in (
        ("subscriptions.lag", {"topic": "orders", "subscription": "billing"}),
        ("topics.describe", {"topic": "ordres"}),
        ("topics.describe", {"topic": "\ud800"}),
        ("topics.nothing", {}),
    ):
        outcomes = []
        for client in (ops, here):
            try:
                outcomes.append(without_times(await client.call(operation, arguments)))
            except ClusterError as error:
                outcomes.append(error.to_dict())
        assert outcomes[0] == outcomes[1]


async def test_in_the_same_process_a_call_has_a_deadline_too() -> None:
    cancelled = False

    async def never(request: bytes) -> bytes:
        nonlocal cancelled
        try:
            await anyio.sleep_forever()
        finally:
            cancelled = True
        raise AssertionError

    async def late(request: bytes) -> bytes:
        raise TimeoutError("of its own")

    with pytest.raises(DeadlineExceeded, match=r"within 0\.05 s\. A change may have been made"):
        await OpsClient(timeout_s=0.05, entry=never).call("topics.create", {"topic": "x"})
    assert cancelled
    with pytest.raises(TimeoutError, match="of its own"):
        await OpsClient(entry=late).call("topics.list")


async def test_a_server_without_operations_is_told_apart() -> None:
    from grpc import aio

    server = aio.server(options=(("grpc.so_reuseport", 0),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with anyio.fail_after(60):
            async with OpsClient(f"http://127.0.0.1:{port}") as ops:
                with pytest.raises(NotImplementedYet, match="admin port"):
                    await ops.call("topics.list")
    finally:
        await server.stop(grace=None)


async def test_text_that_cannot_travel_is_still_answered(ops: OpsClient) -> None:
    with anyio.fail_after(60):
        for operation, arguments in (
            ("topics.describe", {"topic": "\ud800"}),
            ("topics.\udfff", {}),
            ("topics.list", {"\ud800": 1}),
        ):
            with pytest.raises(ClusterError) as caught:
                await ops.call(operation, arguments)
            assert caught.value.code == "INVALID_ARGUMENT"
        with pytest.raises(InvalidArgument):
            await ops.call("topics.list", {"limit": object()})


async def test_a_request_that_is_no_protobuf_is_answered(core: AdminCore) -> None:
    response = CallResponse.FromString(await core.serve_call(b"\xff\xff"))
    assert json.loads(response.error)["code"] == "INVALID_ARGUMENT"


def test_admin_addresses() -> None:
    assert call_target("http://127.0.0.1:50051") == ("127.0.0.1:50051", False)
    assert call_target("http://[::1]:50051/") == ("[::1]:50051", False)
    assert call_target("localhost:50051") == ("localhost:50051", False)
    assert call_target("danube://127.0.0.1:6650") == ("127.0.0.1:6650", False)
    assert call_target("danubes://127.0.0.1:6650") == ("127.0.0.1:6650", True)
    for bad in ("http://127.0.0.1", "ftp://x:1", "http://x:99999", "http://x:1/path", ""):
        with pytest.raises(InvalidArgument) as caught:
            call_target(bad)
        assert caught.value.details["field"] == "admin"


def test_the_principal_is_claimed_or_user_at_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_PRINCIPAL", "ann@ops")
    assert default_principal() == "ann@ops"
    monkeypatch.delenv("DANUBE_PRINCIPAL")
    assert default_principal().endswith("@" + socket.gethostname())
