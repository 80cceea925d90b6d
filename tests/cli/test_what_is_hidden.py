"""What a caller may not see is not told: not in lists, not by errors, and not by the tools that are offered to him."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio as aio
import httpx
import pytest
from google.protobuf.message import Message
from pydanube import connect
from pydanube.wire.ops_channel import OpsChannel
from pydanube_admin.registry import OPERATIONS
from pydanube_broker.services.official.ids import consumer_id, producer_id
from pydanube_core.errors import ClusterError
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.ops_call import call_request

from tests.cli.test_locks_live import META, Locked, give, locked_broker, people, without_spark

pytestmark = pytest.mark.anyio


async def filled(locked: Locked) -> None:
    """Two tenants; `invoices` is the other's alone, and has a subscription."""
    await people(locked)
    await give(locked, "clerk", "admin", "topic", "/shop/orders*")
    for namespace in ("shop", "other"):
        await locked.call("admin", "namespaces.create", namespace=namespace)
    for topic in ("/shop/orders", "/shop/wages", "/other/orders", "/other/invoices"):
        await locked.call("admin", "topics.create", topic=topic)
    for topic, name in (
        ("/shop/orders", "billing"),
        ("/shop/wages", "payroll"),
        ("/other/invoices", "dunning"),
    ):
        await locked.call("admin", "subscriptions.create", topic=topic, subscription=name, type="shared")


async def error_of(locked: Locked, who: str, operation: str, /, **arguments: Any) -> dict[str, Any]:
    """The whole error, as it comes, without what differs from call to call."""
    channel = OpsChannel(locked.broker.admin_url, token=locked.tokens[who])
    try:
        await channel.call(call_request(operation, arguments, principal="", face="cli"), timeout_s=60)
    except ClusterError as error:
        found: dict[str, Any] = json.loads(error.to_json())
        return {key: value for key, value in found.items() if key != "trace_id"}
    finally:
        await channel.aclose()
    raise AssertionError("it was done")


async def test_lists_show_what_the_caller_may_see(tmp_path: Path) -> None:
    async with locked_broker(tmp_path) as locked:
        await filled(locked)

        async def listed(who: str, operation: str, field: str, **arguments: Any) -> list[str]:
            page = await locked.call(who, operation, **arguments)
            assert page["total"] == len(page["items"])
            return [item[field] for item in page["items"]]

        shop = ["/shop/orders", "/shop/wages"]
        other = ["/other/invoices", "/other/orders"]
        assert await listed("admin", "topics.list", "topic") == [*other, *shop]
        assert await listed("viewer", "topics.list", "topic") == [*other, *shop]
        assert await listed("owner", "topics.list", "topic") == shop
        assert await listed("tenant", "topics.list", "topic") == other
        assert await listed("clerk", "topics.list", "topic") == ["/shop/orders"]
        assert await listed("clerk", "topics.list", "topic", namespace="shop") == ["/shop/orders"]
        assert await listed("owner", "namespaces.list", "namespace") == ["shop"]
        assert await listed("owner", "subscriptions.list", "subscription") == ["billing", "payroll"]
        assert await listed("clerk", "subscriptions.lag", "subscription") == ["billing"]
        assert await listed("tenant", "subscriptions.lag", "subscription") == ["dunning"]
        await give(locked, "app", "producer")
        assert await locked.code("app", "topics.list", {}) == "PERMISSION_DENIED"
        assert await locked.code("owner", "topics.list", {"namespace": "other"}) == "PERMISSION_DENIED"
        assert await locked.code("owner", "topics.list", {"namespace": "system"}) == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    ("operation", "there", "not_there", "more"),
    [
        ("topics.describe", "/other/invoices", "/other/invoicez", {}),
        ("topics.list", "other", "othex", {}),
        ("namespaces.get_policies", "other", "othex", {}),
        ("subscriptions.lag", "dunning", "dunninx", {}),
        ("subscriptions.lag", "dunning", "dunninx", {"status": "STUCK"}),
        ("messages.peek", "/other/invoices", "/other/invoicez", {}),
    ],
)
async def test_an_error_does_not_tell_whether_what_is_hidden_exists(
    tmp_path: Path, operation: str, there: str, not_there: str, more: dict[str, Any]
) -> None:
    field = {
        "subscriptions.lag": "subscription",
        "topics.list": "namespace",
        "namespaces.get_policies": "namespace",
    }
    name = field.get(operation, "topic")
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        for who in ("owner", "clerk"):
            one = await error_of(locked, who, operation, **{name: there}, **more)
            two = await error_of(locked, who, operation, **{name: not_there}, **more)
            assert json.dumps(one).replace(there, "?") == json.dumps(two).replace(not_there, "?")


async def test_an_error_proposes_nothing_that_is_hidden(tmp_path: Path) -> None:
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        near = await error_of(locked, "owner", "topics.describe", topic="/shop/order")
        assert near["details"]["did_you_mean"] == ["/shop/orders"]
        far = await error_of(locked, "owner", "topics.describe", topic="/shop/invoices")
        assert "/other" not in json.dumps(far)
        mine = await error_of(locked, "clerk", "topics.describe", topic="/shop/orders-wages")
        assert "/shop/wages" not in json.dumps(mine)
        async with connect(locked.broker.broker_url, token=locked.tokens["clerk"]) as client:
            with pytest.raises(ClusterError) as caught:
                async with client.reader("/shop/orders-wage"):
                    pass
        assert "wages" not in caught.value.to_json()


async def test_ids_of_official_clients_tell_nothing_to_whoever_made_them_up(tmp_path: Path) -> None:
    """They are made from names: whoever guessed topic, subscription and name was told whether there is such a consumer."""
    topic = "/other/invoices"
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        address = locked.broker.broker_url.removeprefix("http://")
        async with aio.insecure_channel(address) as channel:

            async def health(who: str, client: int, number: int) -> str:
                request = pb.HealthCheckRequest(client=client, id=number)  # type: ignore[arg-type]
                return str(await call("HealthCheck/HealthCheck", who, request, pb.HealthCheckResponse))

            async def call(method: str, who: str, request: Message, answer: type[Message]) -> Message:
                made = channel.unary_unary(
                    f"/danube.{method}",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=answer.FromString,
                )
                found: Message = await made(
                    request, metadata=(("authorization", f"Bearer {locked.tokens[who]}"),)
                )
                return found

            async def receive(who: str, number: int) -> str:
                made = channel.unary_stream("/danube.ConsumerService/ReceiveMessages")
                request = pb.ReceiveRequest(consumer_id=number).SerializeToString()
                with pytest.raises(grpc.RpcError) as refused:
                    await made(request, metadata=(("authorization", f"Bearer {locked.tokens[who]}"),)).read()
                return f"{refused.value.code()} {refused.value.details()}".replace(str(number), "?")

            producer = pb.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy="Reliable")
            await call("ProducerService/CreateProducer", "tenant", producer, pb.ProducerResponse)
            consumer = pb.ConsumerRequest(topic_name=topic, consumer_name="c", subscription="dunning")
            await call("ConsumerService/Subscribe", "tenant", consumer, pb.ConsumerResponse)
            for client, number in ((0, producer_id(topic, "p")), (1, consumer_id(topic, "dunning", "c"))):
                nothing = await health("owner", client, 7)
                assert await health("owner", client, number) == nothing
                assert await health("tenant", client, number) != nothing
            known = consumer_id(topic, "dunning", "c")
            assert await receive("owner", known) == await receive("owner", 7)


async def test_tools_are_those_that_the_caller_may_use(tmp_path: Path) -> None:
    async with (
        locked_broker(tmp_path, **{"mcp.profile": "full", "mcp.toolsets": "connectors,docs,links"}) as locked,
        httpx.AsyncClient(trust_env=False, timeout=120) as web,
    ):
        await people(locked)
        await give(locked, "app", "producer")

        async def tools(who: str) -> set[str]:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
            headers = {
                "authorization": f"Bearer {locked.tokens[who]}",
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": "2026-07-28",
                "mcp-method": "tools/list",
            }
            answer = (await web.post(f"{locked.http}/mcp", json=body, headers=headers)).json()["result"]
            assert (who, answer["cacheScope"]) == (who, "private")
            return {tool["name"] for tool in answer["tools"]}

        everything = {operation.tool for operation in OPERATIONS.values()}
        assert await tools("admin") == everything
        assert await tools("tenant") == everything  # of his own namespace
        seen = await tools("viewer")
        assert {"list_topics", "whoami", "peek_messages"} <= seen
        assert not {"delete_topic", "create_token", "publish_message"} & seen
        assert not {"list_topics", "delete_topic", "create_token"} & await tools("app")
        assert "whoami" in await tools("app")


async def test_plans_and_tasks_are_their_principals(tmp_path: Path) -> None:
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        plan = await locked.call("owner", "topics.delete", topic="/shop/wages", plan_only=True)
        task = await locked.call("owner", "objects.verify", topic="/shop/orders", detach=True)
        one, run = {"plan_id": plan["plan_id"]}, {"task_id": task["task_id"]}
        for who in ("owner", "admin", "viewer"):  # who made it, and who may read all of them
            assert (await locked.call(who, "plans.show", **one))["operation"] == "topics.delete"
            assert (await locked.call(who, "tasks.get", **run))["operation"] == "objects.verify"
            assert len((await locked.call(who, "plans.list"))["items"]) == 1
            assert len((await locked.call(who, "tasks.list"))["items"]) == 1
        assert (await locked.call("tenant", "plans.list"))["items"] == []
        assert (await locked.call("tenant", "tasks.list"))["items"] == []
        assert await locked.code("tenant", "plans.show", one) == "PLAN_NOT_FOUND"
        assert await locked.code("tenant", "plans.discard", one) == "PLAN_NOT_FOUND"
        assert await locked.code("viewer", "plans.discard", one) == "PLAN_NOT_FOUND"
        hidden = await error_of(locked, "tenant", "tasks.get", **run)
        absent = await error_of(locked, "tenant", "tasks.get", task_id="t019b0c1d2e3f4a5b6c7d8e9f")
        assert json.dumps(hidden).replace(run["task_id"], "t019b0c1d2e3f4a5b6c7d8e9f") == json.dumps(absent)
        made = await locked.call(
            "owner", "plans.create", operation="topics.delete", arguments={"topic": "/shop/wages"}
        )
        gone = await locked.call("owner", "plans.apply", plan_token=made["plan_token"])
        assert await locked.code("tenant", "changes.undo", {"call_id": gone["call_id"]}) == "PLAN_NOT_FOUND"
        assert await locked.code("viewer", "changes.undo", {"call_id": gone["call_id"]}) == "PLAN_NOT_FOUND"
        await locked.call("owner", "changes.undo", call_id=gone["call_id"])
        assert await locked.code("owner", "topics.describe", {"topic": "/shop/wages"}) == ""


async def test_a_plan_for_many_topics_does_not_tell_which_there_are(tmp_path: Path) -> None:
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        said = []
        for globs in ("/other/invoices", "/other/nothing!", "/other/*", "/none/*"):
            error = await error_of(locked, "clerk", "plans.create", operation="topics.delete", topics=globs)
            said.append(json.dumps(error).replace(globs, "GLOBS"))
        assert len(set(said)) == 1, said
        plan = await locked.call("clerk", "plans.create", operation="topics.delete", topics="/*/*")
        assert "invoices" not in json.dumps(plan)
        assert "/shop/orders" in json.dumps(plan)


async def test_schemas_name_only_topics_that_the_caller_sees(tmp_path: Path) -> None:
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        await locked.call("admin", "roles.create", role="reader", permissions="schemas:read,schemas:delete")
        await give(locked, "reader", "reader")
        text = '{"type": "string"}'
        for version in (text, '["string", "null"]'):
            made = await locked.call(
                "admin", "schemas.register", subject="s", schema_type="avro", schema_definition=version
            )
        await locked.call("admin", "topics.configure_schema", topic="/other/invoices", schema_subject="s")
        (known,) = (await locked.call("admin", "schemas.list"))["items"]
        assert known["topics"] == ["/other/invoices"]
        (known,) = (await locked.call("reader", "schemas.list"))["items"]
        assert known["topics"] == []
        plan = await locked.call(
            "reader", "schemas.delete_version", subject="s", version=made["version"], plan_only=True
        )
        assert "invoices" not in json.dumps(plan)


async def test_who_may_only_produce_does_not_set_the_schema_of_a_topic_that_exists(tmp_path: Path) -> None:
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        await locked.call(
            "admin",
            "schemas.register",
            subject="s",
            schema_type="avro",
            schema_definition='{"type": "string"}',
        )
        await locked.call("admin", "roles.create", role="writer", permissions="data:produce")
        await give(locked, "writer", "writer")
        async with connect(locked.broker.broker_url, token=locked.tokens["writer"]) as client:
            with pytest.raises(ClusterError) as caught:
                async with client.producer("/shop/orders", schema="s"):
                    pass
            assert caught.value.code == "PERMISSION_DENIED"
            async with client.producer("/shop/made", schema="s"):
                pass
        config = await locked.call("admin", "topics.get_schema_config", topic="/shop/orders")
        assert config["schema_subject"] is None
        config = await locked.call("admin", "topics.get_schema_config", topic="/shop/made")
        assert config["schema_subject"] == "s"
        url = locked.broker.broker_url.removeprefix("http://")
        async with aio.insecure_channel(url) as channel:
            create = channel.unary_unary(
                "/danube.ProducerService/CreateProducer",
                request_serializer=pb.ProducerRequest.SerializeToString,
                response_deserializer=pb.ProducerResponse.FromString,
            )
            reference = pb.SchemaReference(subject="s", use_latest=True)
            bearer = (("authorization", f"Bearer {locked.tokens['writer']}"),)

            async def produce(topic: str) -> None:
                request = pb.ProducerRequest(
                    topic_name=topic, producer_name="p", dispatch_strategy=1, schema_ref=reference
                )
                await create(request, metadata=bearer)

            with pytest.raises(aio.AioRpcError) as refused:
                await produce("/shop/wages")
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            await produce("/shop/new")
        config = await locked.call("admin", "topics.get_schema_config", topic="/shop/new")
        assert config["schema_subject"] == "s"


async def test_what_copies_messages_needs_the_right_to_read_them(tmp_path: Path) -> None:
    """A replay into a topic of one's own, or a list of dead letters, was as good as reading."""
    calls: dict[str, dict[str, Any]] = {
        "topics.replay": {"topic": "/shop/orders", "from": "earliest", "to": "/mine/copy"},
        "dead_letters.list": {"topic": "/shop/orders", "subscription": "billing"},
        "dead_letters.replay": {"topic": "/shop/orders", "subscription": "billing"},
    }
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        copying = "topics:replay,dead_letters:*,objects:*,topics:read,subscriptions:read"
        await locked.call("admin", "roles.create", role="copier", permissions=copying)
        await locked.call("admin", "roles.create", role="reader", permissions="messages:read")
        await locked.call("admin", "namespaces.create", namespace="mine")
        await give(locked, "mallory", "copier", "topic", "/shop/*")
        mine = {"binding": "mine", "principal": "mallory", "roles": "admin", "scope": "namespace"}
        await locked.call("admin", "bindings.create", **mine, resource="mine")
        export = {"topic": "/shop/orders", "to": "copy.parquet"}
        for operation, arguments in {**calls, "objects.export": export}.items():
            refused = await error_of(locked, "mallory", operation, **arguments)
            assert refused["details"].get("permission") == "messages:read", (operation, refused)
            for nested in ("plans.create", "operations.read"):
                inner = {"operation": operation, "arguments": arguments}
                if nested == "plans.create" or operation == "dead_letters.list":
                    assert await locked.code("mallory", nested, inner) in (
                        "PERMISSION_DENIED",
                        "INVALID_ARGUMENT",
                    )
        for role in ("reader", "consumer"):
            more = {"binding": "more", "principal": "mallory", "roles": role, "scope": "topic"}
            await locked.call("admin", "bindings.create", **more, resource="/shop/orders")
            for operation, arguments in calls.items():
                plan = {} if operation == "dead_letters.list" else {"plan_only": True}
                assert await locked.code("mallory", operation, arguments | plan) == ""
            for operation, arguments in calls.items():
                elsewhere = arguments | {"topic": "/shop/wages", "subscription": "payroll"}
                if operation == "topics.replay":
                    del elsewhere["subscription"]
                assert await locked.code("mallory", operation, elsewhere) == "PERMISSION_DENIED"


async def test_a_report_of_a_glob_needs_the_right_on_all_that_the_glob_may_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`orders` matched the topics of that name in all namespaces, with the right on /default/orders alone."""
    without_spark(monkeypatch)
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        await give(locked, "default", "admin", "namespace", "default")
        for report in ("reports.lag", "reports.traffic"):
            for glob in ("orders", "*", "/*/orders", "/other/*", "/other/orders"):
                denied = await locked.code("owner", report, {"topic": glob})
                assert (report, glob, denied) == (report, glob, "PERMISSION_DENIED")
                assert await locked.code("default", report, {"topic": glob}) == "PERMISSION_DENIED"
            for who, glob in (
                ("owner", "/shop/*"),
                ("owner", "/shop/orders"),
                ("viewer", "orders*"),
                ("viewer", "*"),
            ):
                code = await locked.code(who, report, {"topic": glob})
                assert code not in ("PERMISSION_DENIED", "INVALID_NAME"), (who, glob)
        assert await locked.code("owner", "reports.balance", {"topic": "/shop/orders"}) == "PERMISSION_DENIED"


async def test_who_declares_a_connector_needs_the_rights_of_what_it_does(tmp_path: Path) -> None:
    """Its worker has rights of its own: a sink of a topic of others was as good as reading it."""
    sink = 'connector = "http-sink"\ntopic = "/shop/%s"'
    source = 'connector = "mqtt-source"\ntopic = "/shop/orders"%s'
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        await locked.call("admin", "roles.create", role="connecting", permissions="connectors:*")
        connecting = {"binding": "c", "principal": "mallory", "roles": "connecting", "scope": "cluster"}
        await locked.call("admin", "bindings.create", **connecting)
        await give(locked, "mallory", "consumer", "topic", "/shop/orders")

        async def permission(name: str, definition: str, operation: str = "connectors.create") -> str | None:
            refused = await error_of(locked, "mallory", operation, connector=name, definition=definition)
            return refused["details"].get("permission")  # type: ignore[no-any-return]

        assert await permission("wages", sink % "wages") == "data:consume"
        assert (
            await permission("own", 'connector = "my_sinks:Http"\ntopic = "/shop/orders"') == "data:produce"
        )
        assert await permission("any", 'connector = "kafka-source"') == "data:produce"
        assert await permission("in", source % "") == "data:produce"
        made = {"connector": "orders", "definition": sink % "orders"}
        assert await locked.code("mallory", "connectors.create", made) == ""
        assert await permission("orders", sink % "wages", "connectors.set") == "data:consume"
        await give(locked, "mallory", "producer", "topic", "/shop/orders")
        assert (
            await locked.code("mallory", "connectors.create", {"connector": "in", "definition": source % ""})
            == ""
        )
        kafka = 'connector = "kafka-source"\ntopic = "/shop/orders"'
        assert await permission("kafka", kafka) == "schemas:create"
        assert await permission("spread", source % '\n[shape]\ntopic = "x-{a}"') == "data:produce"


async def test_who_makes_a_link_needs_the_rights_of_what_it_writes(tmp_path: Path) -> None:
    """The brokers write its mirrors: a link of one's own cluster was as good as the right to write any topic here."""
    async with locked_broker(tmp_path) as locked:
        await filled(locked)
        await locked.call("admin", "roles.create", role="linking", permissions="links:*")
        await locked.call(
            "admin",
            "roles.create",
            role="making",
            permissions="topics:create,subscriptions:create,data:produce",
        )
        linking = {"binding": "l", "principal": "mallory", "roles": "linking", "scope": "cluster"}
        await locked.call("admin", "bindings.create", **linking)
        await give(locked, "mallory", "consumer", "topic", "/shop/orders")

        async def permission(topics: str, **more: str) -> str | None:
            asked = {"link": "eu", "source": "danube://127.0.0.1:1", "topics": topics, **more}
            refused = await error_of(locked, "mallory", "links.create", **asked)
            return refused["details"].get("permission")  # type: ignore[no-any-return]

        assert await permission("/shop/*") == "topics:create"
        await give(locked, "mallory", "making", "topic", "/shop/eu-orders")
        assert await permission("/shop/orders") == "topics:create"
        assert await permission("/shop/eu-orders,/shop/wages") == "topics:create"
        assert await permission("/shop/*", rename="eu-") == "topics:create"
        assert await permission("/shop/orders", rename="eu-") == "schemas:create"
        await locked.call("admin", "roles.create", role="schemas", permissions="schemas:create")
        subjects = {"binding": "s", "principal": "mallory", "roles": "schemas", "scope": "cluster"}
        await locked.call("admin", "bindings.create", **subjects)
        assert await permission("/shop/orders", rename="eu-") == "schemas:change"
        await locked.call("admin", "roles.create", role="modes", permissions="schemas:change")
        await locked.call("admin", "bindings.create", **subjects | {"binding": "m", "roles": "modes"})
        made = {"link": "eu", "source": "danube://127.0.0.1:1", "topics": "/shop/orders", "rename": "eu-"}
        assert await locked.code("mallory", "links.create", made) == ""
        await give(locked, "mallory", "making", "namespace", "elsewhere")
        assert await permission("/elsewhere/*", link="us") == "namespaces:create", "the brokers would make it"
        await locked.call("admin", "namespaces.create", namespace="elsewhere")
        made = {"link": "us", "source": "danube://127.0.0.1:1", "topics": "/elsewhere/*"}
        assert await locked.code("mallory", "links.create", made) == ""
