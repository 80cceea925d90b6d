"""Two brokers, of which one has a namespace, subscriptions, plans, grants and schemas more: a caller who sees none of them
is answered alike by both, whatever operation or method it calls, in each list, count and refusal.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc.aio as aio
import pytest
from google.protobuf.json_format import MessageToJson
from pydanube import connect
from pydanube.wire.ops_channel import OpsChannel
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import ClusterError
from pydanube_core.ops_call import call_request
from pydanube_core.services import Method, MethodKind

from tests.cli import lock_tables as tables
from tests.cli.test_lock_tables import CLIENTS, arguments_of, methods
from tests.cli.test_locks_live import Locked, give, locked_broker

pytestmark = pytest.mark.anyio

#: arguments that name nothing that may be hidden: numbers, times, words of our own, texts, brokers and subjects, which all may see
PLAIN: Final = frozenset(
    {
        "limit", "filter", "page", "sort", "top", "changed_since", "include_closed", "from", "from_seq", "until", "since", "operation",
        "client", "by", "principal_type", "scope", "broker_id", "broker", "lines", "level", "max_moves", "max_bytes",
        "offsets", "fail_on", "face", "reason", "start", "payload", "key", "attributes", "attribute", "contains",
        "policies", "format", "query", "arguments", "limits", "warnings", "compare", "rows", "kind", "expires",
        "permissions", "subject", "schema_type", "schema_definition", "compatibility_mode", "transitive",
        "json_profile", "version", "schema_id", "description", "created_by", "tags", "mode", "type", "status", "count",
        "max_redelivery_count", "ack_timeout_ms", "base_redelivery_delay_ms", "max_redelivery_delay_ms",
        "backoff_strategy", "poison_policy", "keep", "overlap", "partitions", "validation_policy",
        "enable_payload_validation", "dispatch_strategy", "durability", "schema_subject", "to_broker", "before",
    }
)  # fmt: skip
#: they see nothing of the namespace shop, one by its rights, one by its token's, one who may do nothing but publish
SEES_NOTHING: Final = ("tenant", "clerk", "app", "reader")


async def people(locked: Locked) -> None:
    """The same in both worlds. The role `reader` reads on the cluster what names topics only by the way."""
    await give(locked, "admin", "admin")
    await give(locked, "tenant", "admin", "namespace", "other")
    await give(locked, "clerk", "admin", "topic", "/other/orders*")
    await give(locked, "app", "producer", "namespace", "other")
    await locked.call(
        "admin", "roles.create", role="reader", permissions="schemas:read,schemas:delete,changes:undo"
    )
    await give(locked, "reader", "reader")
    await locked.call("admin", "namespaces.create", namespace="other")
    await locked.call("admin", "topics.create", topic="/other/orders")
    await locked.call("admin", "schemas.register", subject="s", schema_type="string", schema_definition="")
    await locked.call(
        "admin", "schemas.register", subject="nothing", schema_type="string", schema_definition=""
    )


async def hidden(locked: Locked, stack: AsyncExitStack) -> dict[str, str]:
    """Fill a namespace that the callers see nothing of; return a name for each argument that names something."""

    async def do(operation: str, /, **arguments: Any) -> dict[str, Any]:
        return await locked.call("admin", operation, **arguments)

    topic, subscription = tables.TOPIC, "s"
    await do("namespaces.create", namespace="shop")
    changed = await do("topics.create", topic=topic)
    await do("topics.create", topic="/shop/parts", partitions=3)
    await do("subscriptions.create", topic=topic, subscription=subscription, type="shared")
    await do("topics.configure_schema", topic=topic, schema_subject="s")
    await do("quotas.set", namespace="shop", limits={"topics": 100})
    await do("roles.create", role="hidden-role", permissions="topics:read")
    await do(
        "bindings.create",
        binding="hidden-one",
        principal="ann",
        roles="hidden-role",
        scope="topic",
        resource=topic,
    )
    token = await do("tokens.create", name="hidden-token", principal="ann")
    revoked = await do("revocations.create", kind="subject", value="eve", expires="30d")
    plan = await do("topics.delete", topic=topic, plan_only=True)
    task = await do("objects.verify", topic=topic, detach=True)
    client = await stack.enter_async_context(connect(locked.broker.broker_url, token=locked.tokens["admin"]))
    await stack.enter_async_context(client.producer(topic, name="hidden-producer"))
    await stack.enter_async_context(client.consumer(topic, subscription, type="shared"))
    (consumer,) = (await do("consumers.list", topic=topic))["items"]
    return {
        "topic": topic, "namespace": "shop", "subscription": subscription, "topics": "/shop/*", "to": topic,
        "into": topic, "dead_letter_topic": topic, "binding": "hidden-one", "token_id": token["token_id"],
        "plan_id": plan["plan_id"], "plan_token": plan["plan_id"] + ".of-no-use", "call_id": changed["call_id"],
        "task_id": task["task_id"], "revocation": revoked["revocation"], "role": "hidden-role", "principal": "ann",
        "id": str(consumer["id"]), "producer": "hidden-producer", "name": "hidden-token", "resource": topic,
        "roles": "hidden-role", "value": "eve", "namespaces": "shop",
        "except_namespaces": "shop",
    }  # fmt: skip


#: what differs between any two brokers and two calls: ids that are drawn, times, numbers of bytes on this disk
DRAWN: Final = re.compile(
    r"\b[pctm]0[0-9a-f]{15,}\b|\b[0-9a-f]{16,}\b|\d{4}-\d\d-\d\dT[\d:.]+Z|\d{10,}|(?<=127.0.0.1:)\d+"
    r'|"(?:trace_id|mark|plan_token)": ?"[^"]+"'
)


def alike(answer: Any) -> str:
    return DRAWN.sub("~", json.dumps(answer, sort_keys=True))


class World:
    """A broker, and a channel of each caller to it."""

    def __init__(self, locked: Locked, stack: AsyncExitStack) -> None:
        self.locked = locked
        self._stack = stack
        self._channels: dict[str, OpsChannel] = {}

    async def call(self, who: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Return the whole answer, or the whole error."""
        if who not in self._channels:
            channel = OpsChannel(self.locked.broker.admin_url, token=self.locked.tokens[who])
            self._stack.push_async_callback(channel.aclose)
            self._channels[who] = channel
        request = call_request(operation, dict(arguments), principal="", face="cli")
        try:
            return json.loads(await self._channels[who].call(request, timeout_s=60))
        except ClusterError as error:
            return json.loads(error.to_json())

    async def method(self, who: str, method: Method, request: Mapping[str, Any]) -> Any:
        broker = self.locked.broker
        url = broker.broker_url if method.service in CLIENTS else broker.admin_url
        metadata = (("authorization", f"Bearer {self.locked.tokens[who]}"),)
        async with aio.insecure_channel(url.removeprefix("http://")) as channel:
            call = getattr(channel, method.kind.value)(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            try:
                if method.kind is MethodKind.UNARY:
                    found = await call(method.request(**request), metadata=metadata, timeout=60)
                elif method.kind is MethodKind.SERVER_STREAM:
                    found = await call(method.request(**request), metadata=metadata, timeout=60).read()
                else:
                    stream = call(metadata=metadata, timeout=60)
                    await stream.write(method.request(**request))
                    found = await stream.read()
                    stream.cancel()
            except aio.AioRpcError as error:
                return [error.code().name, error.details()]
            return found if found is aio.EOF else MessageToJson(found)


def variants(operation: str, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield arguments that name what is hidden: all at once, and each alone beside the caller's own topic."""
    declared = OPERATIONS[operation]
    given = arguments_of(operation)
    every = {each.name for each in declared.arguments} - PLAIN
    required = {each.name for each in declared.arguments if each.required}
    own = {"topic": "/other/orders", "namespace": "other", "subscription": "mine"}
    base = {**given, **{name: own[name] for name in every & own.keys() & (required | given.keys())}}
    yield {**given, **{name: names.get(name, tables.TOPIC) for name in every & (required | given.keys())}}
    for name in sorted(every):
        yield {**base, name: names.get(name, tables.TOPIC)}  # of a new argument, a topic
    if not required:
        yield {"plan_only": True} if declared.planned else {}


def inner(operation: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the call by itself, and inside a plan or a read."""
    yield operation, dict(arguments)
    bare = {
        name: value for name, value in arguments.items() if name not in ("plan_only", "plan_token", "why")
    }
    if OPERATIONS[operation].planned:
        yield "plans.create", {"operation": operation, "arguments": bare}
    if OPERATIONS[operation].reads:
        yield "operations.read", {"operation": operation, "arguments": bare}
    if OPERATIONS[operation].planned and "topic" in bare:
        del bare["topic"]
        yield "plans.create", {"operation": operation, "arguments": bare, "topics": "/shop/*,/shop/nothing"}


@asynccontextmanager
async def two_worlds(path: Path) -> AsyncIterator[tuple[World, World, dict[str, str]]]:
    async with AsyncExitStack() as stack:
        full, bare = [
            World(await stack.enter_async_context(locked_broker(path / name)), stack)
            for name in ("full", "bare")
        ]
        for world in (full, bare):
            await people(world.locked)
        yield full, bare, await hidden(full.locked, stack)


@pytest.mark.timeout(400)
async def test_no_answer_differs_by_what_its_caller_may_not_see(tmp_path: Path) -> None:
    wrong: list[str] = []
    calls = 0
    async with two_worlds(tmp_path) as (full, bare, names):
        for operation in OPERATIONS:
            for arguments in variants(operation, names):
                for name, given in inner(operation, arguments):
                    for who in SEES_NOTHING:
                        calls += 1
                        one = alike(await full.call(who, name, given))
                        two = alike(await bare.call(who, name, given))
                        if one != two:
                            wrong.append(
                                f"{name} {json.dumps(given)} by {who}:\n  {one[:800]}\n  {two[:800]}"
                            )
        for method in methods():
            if method.service == "danube.ops.Ops":
                continue  # the operations above
            line = tables.METHODS[method.path.removeprefix("/")]
            for who in SEES_NOTHING:
                calls += 1
                one = alike(await full.method(who, method, line.request))
                two = alike(await bare.method(who, method, line.request))
                if one != two:
                    wrong.append(f"{method.path} by {who}:\n  {one[:600]}\n  {two[:600]}")
    assert calls > 1000
    assert not wrong, f"{len(wrong)} of {calls}\n" + "\n".join(dict.fromkeys(wrong))


async def test_counts_and_roles_are_told_to_whoever_may_read_them(tmp_path: Path) -> None:
    async with two_worlds(tmp_path) as (full, _, names):
        locked = full.locked
        given = "namespaces:read,namespaces:delete,bindings:create,tokens:create"
        await locked.call("admin", "roles.create", role="clerical", permissions=given)
        await give(locked, "clerical", "clerical")
        (shop,) = (await locked.call("clerical", "namespaces.list", filter="shop"))["items"]
        assert shop["topics"] is None
        (shop,) = (await locked.call("admin", "namespaces.list", filter="shop"))["items"]
        assert shop["topics"] == 2
        refused = await full.call("clerical", "namespaces.delete", {"namespace": "shop"})
        assert (refused["code"], refused["details"]["topics"]) == ("NAMESPACE_NOT_EMPTY", None)
        assert "2" not in refused["message"]
        for operation, name in (("bindings.create", "roles"), ("tokens.create", "role")):
            said = set()
            for role in (names["role"], "absent-role"):
                given = {**arguments_of(operation), name: role}
                if operation == "bindings.create":
                    given |= {"scope": "cluster", "resource": ""}
                error = await full.call("clerical", operation, given)
                assert error["code"] == "PERMISSION_DENIED", error
                said.add(alike(error).replace(role, "ROLE"))
            assert len(said) == 1, said


async def test_a_gateway_sees_of_others_plans_what_it_may_make_itself(tmp_path: Path) -> None:
    """Who may act for others saw all plans, tasks and changes of each."""
    async with locked_broker(tmp_path) as locked:
        await people(locked)
        await locked.call("admin", "roles.create", role="gateway", permissions="security:act_for,plans:apply")
        await give(locked, "gateway", "gateway")
        plan = await locked.call("tenant", "topics.delete", topic="/other/orders", plan_only=True)
        task = await locked.call("tenant", "objects.verify", topic="/other/orders", detach=True)
        made = await locked.call("tenant", "topics.create", topic="/other/more")

        async def seen() -> tuple[str, str, str, int]:
            async def code(operation: str, **arguments: Any) -> str:
                channel = OpsChannel(locked.broker.admin_url, token=locked.tokens["gateway"])
                try:
                    request = call_request(operation, arguments, principal="tenant", face="cli")
                    found = json.loads(await channel.call(request, timeout_s=60))
                    return str(len(found["items"])) if "items" in found else ""
                except ClusterError as error:
                    return error.code
                finally:
                    await channel.aclose()

            return (
                await code("plans.show", plan_id=plan["plan_id"]),
                await code("tasks.get", task_id=task["task_id"]),
                await code("changes.undo", call_id=made["call_id"], plan_only=True),
                int(await code("plans.list")),
            )

        assert await seen() == ("PLAN_NOT_FOUND", "INVALID_ARGUMENT", "PLAN_NOT_FOUND", 0)
        binding = {"binding": "more", "principal": "gateway", "roles": "admin", "scope": "namespace"}
        await locked.call("admin", "bindings.create", **binding, resource="other")
        assert await seen() == ("", "", "", 2)  # the undo is planned, too
