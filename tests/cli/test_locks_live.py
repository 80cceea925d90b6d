"""A real broker with its locks on: every face, by everybody; what is revoked; what is prepared."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio as aio
import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pydanube import connect
from pydanube.wire.ops_channel import OpsChannel
from pydanube_admin.operations import reports
from pydanube_broker.broker import Broker
from pydanube_broker.rpc.caller import Peer
from pydanube_broker.security import http_identity
from pydanube_broker.serving import rights_watch
from pydanube_broker.settings.load import load_settings
from pydanube_cli.composition import administered, http_face
from pydanube_core.errors import ClusterError, MissingExtra, PermissionDenied, Unauthenticated
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.ops_call import call_request
from pydanube_core.security.permissions import ORIGINAL

from tests.support.broker_process import SMALL_SEGMENT_BYTES
from tests.support.key_server import key_server, public_jwk

PORTS = {f"server.{port}_port": 0 for port in ("grpc", "admin", "metrics", "http")}
REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")


class Locked:
    """A broker in `required`, with tokens of several principals."""

    def __init__(self, broker: Broker, http: str, tokens: dict[str, str]) -> None:
        self.broker = broker
        self.http = http
        self.tokens = tokens

    async def call(self, who: str, operation: str, /, **arguments: Any) -> dict[str, Any]:
        channel = OpsChannel(self.broker.admin_url, token=self.tokens.get(who))
        try:
            request = call_request(
                operation, arguments, principal=arguments.pop("principal_claimed", ""), face="cli"
            )
            found: dict[str, Any] = json.loads(await channel.call(request, timeout_s=30))
            return found
        finally:
            await channel.aclose()

    async def code(self, who: str, operation: str, arguments: Mapping[str, Any]) -> str:
        try:
            await self.call(who, operation, **arguments)
        except ClusterError as error:
            return error.code
        return ""


@asynccontextmanager
async def locked_broker(path: Path, **more: object) -> AsyncIterator[Locked]:
    values = {
        "data.dir": str(path / "data"), "auth.mode": "required", "auth.failure_delay": "1ms",
        "journal.segment_bytes": SMALL_SEGMENT_BYTES, **PORTS, **more,
    }  # fmt: skip
    settings = load_settings(None, {}, values)
    async with (
        administered(settings) as (broker, core),
        http_face(broker, core.serve_call) as http,
    ):
        yield Locked(broker, http, {})


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports end where their process would start, a second of a core each: who may is decided before."""

    async def ended(*_: object) -> NoReturn:
        raise MissingExtra("without Spark in this test", extra="spark")

    monkeypatch.setattr(reports, "run_process", ended)


async def give(locked: Locked, name: str, roles: str, scope: str = "cluster", resource: str = "") -> str:
    """A principal with roles and a token, made by the operator on the machine."""
    socket = f"unix:{locked.broker.data_dir.path.absolute()}/admin.sock"
    channel = OpsChannel(socket)
    try:
        for operation, arguments in (
            (
                "bindings.create",
                {"binding": name, "principal": name, "roles": roles, "scope": scope, "resource": resource},
            ),
            ("tokens.create", {"name": name}),
        ):
            request = call_request(operation, arguments, principal="", face="cli")
            answer = json.loads(await channel.call(request, timeout_s=30))
    finally:
        await channel.aclose()
    locked.tokens[name] = answer["token"]
    return str(answer["token_id"])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("locks")


async def people(locked: Locked) -> None:
    await give(locked, "admin", "admin")
    await give(locked, "viewer", "viewer")
    await give(locked, "owner", "admin", "namespace", "shop")
    await give(locked, "tenant", "admin", "namespace", "other")
    locked.tokens["wrong"] = locked.tokens["admin"][:-1] + ("A" if locked.tokens["admin"][-1] != "A" else "B")
    record = await locked.call("admin", "tokens.create", name="old", principal="admin", expires="1ms")
    locked.tokens["expired"] = record["token"]


async def test_what_is_inside_a_plan_a_read_or_an_undo_is_looked_at_too(path: Path) -> None:
    async with locked_broker(path / "inside") as locked:
        await people(locked)
        await locked.call("admin", "namespaces.create", namespace="shop")
        made = await locked.call("owner", "topics.create", topic="/shop/orders")
        for who in ("viewer", "tenant"):
            inner = {"operation": "topics.delete", "arguments": {"topic": "/shop/orders"}}
            assert await locked.code(who, "plans.create", inner) == "PERMISSION_DENIED"
            assert await locked.code(who, "changes.undo", {"call_id": made["call_id"]}) == "PLAN_NOT_FOUND"
        read = {"operation": "topics.describe", "arguments": {"topic": "/shop/orders"}}
        assert await locked.code("tenant", "operations.read", read) == "PERMISSION_DENIED"
        assert await locked.code("viewer", "operations.read", read) == ""
        plan = await locked.call("owner", "topics.delete", topic="/shop/orders", plan_only=True)
        again = {"topic": "/shop/orders", "plan_token": plan["plan_token"]}
        assert await locked.code("tenant", "topics.delete", again) == "PERMISSION_DENIED"
        assert (
            await locked.code("tenant", "plans.apply", {"plan_token": plan["plan_token"]})
            == "PERMISSION_DENIED"
        )
        assert await locked.code("owner", "topics.delete", again) == ""


async def test_who_names_another_is_refused_and_recorded_unless_he_may_act_for_others(path: Path) -> None:
    async with (
        locked_broker(path / "claim") as locked,
        httpx.AsyncClient(trust_env=False, timeout=60) as web,
    ):
        await people(locked)
        await locked.call(
            "admin", "roles.create", role="gate", permissions="security:act_for,topics:read,audit:read"
        )
        await give(locked, "gate", "gate")
        who = await locked.call("viewer", "security.whoami")
        assert (who["principal"], who["method"], who["bindings"]) == ("viewer", "token", ["viewer"])
        # by its own name, in either way, nobody names another
        assert await locked.code("viewer", "topics.list", {"principal_claimed": "viewer"}) == ""
        assert await locked.code("viewer", "topics.list", {"principal_claimed": "user:viewer"}) == ""
        # --as, DANUBE_PRINCIPAL, Call.principal
        for claim in ("admin", "service_account:viewer"):
            assert (
                await locked.code("viewer", "security.whoami", {"principal_claimed": claim})
                == "PERMISSION_DENIED"
            )
        # Danube-Principal over HTTP
        body = {"jsonrpc": "2.0", "id": 1, "method": "topics.list", "params": {}}
        shown = {"authorization": f"Bearer {locked.tokens['viewer']}", "danube-principal": "admin"}
        refused = (await web.post(f"{locked.http}/rpc", json=body, headers=shown)).json()
        assert refused["error"]["data"]["code"] == "PERMISSION_DENIED"
        # the official admin protocol: the same header, and how the original's brokers know each other
        metadata = (("authorization", f"Bearer {locked.tokens['viewer']}"),)
        async with aio.insecure_channel(locked.broker.admin_url.removeprefix("http://")) as channel:
            call = channel.unary_unary("/danube_admin.BrokerAdmin/ListBrokers")
            await call(b"", metadata=metadata)
            for more in (("danube-principal", "admin"), ("x-danube-internal-broker", "7")):
                with pytest.raises(aio.AioRpcError) as caught:
                    await call(b"", metadata=(*metadata, more))
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        found = (await locked.call("admin", "audit.query", filter=None, limit=200))["items"]
        claims = {(each["principal"], each["actor"], each["decision"]) for each in found if each["actor"]}
        assert claims == {
            ("admin", "user:viewer", "refused"),
            ("viewer", "user:viewer", "refused"),
            ("broker_internal:7", "user:viewer", "refused"),
        }

        # with act_for: for another, with what both may do
        await locked.call("admin", "namespaces.create", namespace="shop")
        as_owner = {"principal_claimed": "owner"}
        assert (await locked.call("gate", "security.whoami", **as_owner))["principal"] == "owner"
        assert await locked.code("gate", "topics.list", {"namespace": "shop", **as_owner}) == ""
        assert (
            await locked.code("gate", "topics.create", {"topic": "/shop/x", **as_owner})
            == "PERMISSION_DENIED"
        )
        assert await locked.code("gate", "audit.query", as_owner) == "PERMISSION_DENIED"
        assert (
            await locked.code("admin", "topics.create", {"topic": "/other/x", **as_owner})
            == "PERMISSION_DENIED"
        )
        await locked.call("admin", "topics.create", topic="/shop/x", **as_owner)
        made = (await locked.call("admin", "audit.query", operation="topics.create", topic="/shop/x"))[
            "items"
        ][0]
        assert (made["principal"], made["actor"], made["decision"]) == ("owner", "user:admin", "allowed")
        assert (
            await locked.code("owner", "changes.undo", {"call_id": made["call_id"]}) == ""
        )  # it is the owner's


async def test_data_is_for_those_who_may_and_what_is_taken_back_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights_watch, "ROUND_S", 3600.0)  # nobody waits for the round
    async with locked_broker(path / "data") as locked:
        await people(locked)
        await give(locked, "app", "producer,consumer", "topic", "/default/app*")
        url, broker = locked.broker.broker_url, locked.broker
        async with connect(url, token=locked.tokens["app"]) as client:
            async with client.producer("app-1") as producer:
                await producer.send(b"hello")
            with pytest.raises(PermissionDenied):
                async with client.producer("payroll") as producer:
                    await producer.send(b"no")
            assert broker.registry.names() is not None
            assert [str(name) for name in broker.registry.names() if name.name == "payroll"] == []
            async with client.reader("app-1") as reader:
                assert (await anext(reader)).payload == b"hello"
                await locked.call("admin", "bindings.delete", binding="app")
                with pytest.raises(PermissionDenied):
                    async with asyncio.timeout(20):
                        await anext(reader)
        for token in (None, locked.tokens["wrong"], locked.tokens["expired"]):
            with pytest.raises(Unauthenticated):
                async with connect(url, token=token) as client, client.reader("app-1") as reader:
                    await anext(reader)


async def test_a_revoked_token_is_good_for_nothing_at_once(path: Path) -> None:
    async with locked_broker(path / "revoked") as locked:
        await people(locked)
        token_id = await give(locked, "app", "viewer")
        new = await locked.call("admin", "tokens.rotate", token_id=token_id, overlap="1h")
        assert await locked.code("app", "topics.list", {}) == ""
        await locked.call("admin", "tokens.revoke", token_id=token_id)
        assert await locked.code("app", "topics.list", {}) == "UNAUTHENTICATED"
        locked.tokens["app"] = new["token"]
        assert await locked.code("app", "topics.list", {}) == ""


async def test_tokens_are_of_the_published_keys_and_end_with_them(path: Path) -> None:
    first, second = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def token(key: ec.EllipticCurvePrivateKey, kid: str) -> str:
        claims = {"sub": "app", "exp": time.time() + 600}
        return jwt.encode(claims, key, algorithm="ES256", headers={"kid": kid})

    with key_server(path / "keys") as server:
        server.keys = [public_jwk(first, "first")]
        more = {"auth.jwks_url": server.url, "auth.jwks_ca": str(server.ca), "auth.jwks_refresh": "100ms"}
        async with locked_broker(path / "published", **more) as locked:
            await give(locked, "app", "producer,consumer", "topic", "/default/app")
            async with connect(locked.broker.broker_url, token=token(first, "first")) as client:
                async with client.producer("app") as producer:
                    await producer.send(b"hello")
                async with client.reader("app") as reader:
                    assert (await anext(reader)).payload == b"hello"
                    server.keys = [public_jwk(second, "second")]  # the first one has leaked
                    with pytest.raises(Unauthenticated):
                        async with asyncio.timeout(20):
                            await anext(reader)
            async with (
                connect(locked.broker.broker_url, token=token(second, "second")) as client,
                client.reader("app") as reader,
            ):
                assert (await anext(reader)).payload == b"hello"


async def test_a_call_that_writes_two_records_is_in_force_whole(path: Path) -> None:
    async with locked_broker(path / "two") as locked:
        await people(locked)
        made = await locked.call("admin", "tokens.create", name="desk", role="viewer")
        locked.tokens["desk"] = made["token"]
        assert await locked.code("desk", "topics.list", {}) == ""  # the binding was one, the token the other
        await locked.call("admin", "tokens.rotate", token_id=made["token_id"], overlap="1ms")
        assert (
            await locked.code("desk", "topics.list", {}) == "UNAUTHENTICATED"
        )  # the new one, and the former's end


async def test_nobody_gives_what_he_does_not_hold_and_the_last_admin_stays(path: Path) -> None:
    async with locked_broker(path / "gives") as locked:
        await people(locked)
        await locked.call(
            "admin", "roles.create", role="clerk", permissions="bindings:*,tokens:*,roles:*,topics:read"
        )
        await give(locked, "clerk", "clerk")
        me = {"binding": "mine", "principal": "clerk", "roles": "admin"}
        assert await locked.code("clerk", "bindings.create", me) == "PERMISSION_DENIED"
        assert (
            await locked.code("clerk", "tokens.create", {"name": "x", "principal": "admin"})
            == "PERMISSION_DENIED"
        )
        assert (
            await locked.code("clerk", "tokens.create", {"name": "x", "role": "admin"}) == "PERMISSION_DENIED"
        )
        assert (
            await locked.code("clerk", "roles.create", {"role": "clerk", "permissions": "*"})
            == "PERMISSION_DENIED"
        )
        assert (
            await locked.code("clerk", "roles.create", {"role": "new", "permissions": "topics:delete"})
            == "PERMISSION_DENIED"
        )
        assert (
            await locked.code("clerk", "roles.create", {"role": "reader", "permissions": "topics:read"}) == ""
        )
        assert await locked.code("clerk", "bindings.delete", {"binding": "admin"}) == "CONDITION_NOT_MET"
        await give(locked, "second", "admin")
        assert await locked.code("clerk", "bindings.delete", {"binding": "admin"}) == ""
        why = await locked.call("second", "security.explain", principal="clerk", operation="topics.delete")
        assert (why["allowed"], "no role" in why["why"]) == (False, True)


async def test_http_faces_ask_too_and_probes_say_no_reasons(path: Path) -> None:
    async with locked_broker(path / "http") as locked, httpx.AsyncClient(trust_env=False, timeout=60) as web:
        await people(locked)

        def bearer(who: str) -> dict[str, str]:
            return {
                "authorization": f"Bearer {locked.tokens[who]}",
                "accept": "application/json, text/event-stream",
            }

        body = {"jsonrpc": "2.0", "id": 1, "method": "brokers.list", "params": {}}
        missing = await web.post(f"{locked.http}/rpc", json=body)
        assert (missing.status_code, missing.headers["www-authenticate"]) == (401, "Bearer")
        assert (await web.post(f"{locked.http}/rpc", json=body, headers=bearer("wrong"))).status_code == 401
        assert "result" in (await web.post(f"{locked.http}/rpc", json=body, headers=bearer("viewer"))).json()
        denied = (await web.post(f"{locked.http}/rpc", json=body, headers=bearer("tenant"))).json()
        assert denied["error"]["data"]["code"] == "PERMISSION_DENIED"

        tool = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "list_brokers", "arguments": {}, "_meta": META},
        }
        mcp = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "list_brokers"}
        assert (await web.post(f"{locked.http}/mcp", json=tool, headers=mcp)).status_code == 401
        refused = (await web.post(f"{locked.http}/mcp", json=tool, headers=mcp | bearer("tenant"))).text
        assert "user:tenant has no brokers:read on the cluster." in refused
        assert (
            "PERMISSION_DENIED"
            not in (await web.post(f"{locked.http}/mcp", json=tool, headers=mcp | bearer("viewer"))).text
        )

        metrics = locked.broker.metrics_url
        assert (await web.get(f"{metrics}/healthz")).status_code == 200
        assert (await web.get(f"{metrics}/readyz")).json()["ready"] is True
        for page in ("status", "metrics"):
            assert (await web.get(f"{metrics}/{page}")).status_code == 401
            assert (await web.get(f"{metrics}/{page}", headers=bearer("tenant"))).status_code == 403
            assert (await web.get(f"{metrics}/{page}", headers=bearer("viewer"))).status_code == 200
            # no way to whatever host the caller names
            assert (await web.get(f"{metrics}/{page}/", headers=bearer("viewer"))).status_code == 404


async def test_who_gives_tokens_out_is_told_as_oauth_has_it(path: Path) -> None:
    issuer = {"auth.issuer": "https://login.example/realms/x"}
    async with (
        locked_broker(path / "oauth", **issuer) as locked,
        httpx.AsyncClient(trust_env=False, timeout=60) as web,
    ):
        refused = await web.post(f"{locked.http}/mcp", json={})
        page = f"{locked.http}/.well-known/oauth-protected-resource/mcp"
        assert (
            refused.headers["www-authenticate"] == f'Bearer scope="danube:read", resource_metadata="{page}"'
        )
        told = (await web.get(page)).json()
        assert told["resource"] == f"{locked.http}/mcp"
        assert told["authorization_servers"] == ["https://login.example/realms/x"]
        odd = await web.post(f"{locked.http}/mcp", json={}, headers={"host": 'x", error="y'})
        assert odd.headers["www-authenticate"].count('"') == 4


async def test_a_token_is_good_for_its_scopes_and_is_told_which_one_it_lacks(path: Path) -> None:
    keys = path / "scopes.json"
    keys.write_text(
        json.dumps({"keys": [{"kty": "oct", "k": "c3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3M"}]})
    )
    me = "https://broker.example/mcp"
    more = {"auth.issuer": "https://login.example", "auth.audience": me, "auth.jwt_keys": str(keys)}
    async with (
        locked_broker(path / "scopes", **more) as locked,
        httpx.AsyncClient(trust_env=False, timeout=60) as web,
    ):
        await give(locked, "ann", "admin")

        def token(**claims: object) -> str:
            body = {
                "sub": "ann",
                "exp": time.time() + 600,
                "iss": "https://login.example",
                "aud": me,
                **claims,
            }
            return jwt.encode(body, "s" * 32)

        locked.tokens |= {"all": token(), "read": token(scope="openid danube:read"), "none": token(scope="openid"),
                          "both": token(scp=["danube:read", "danube:write"])}  # fmt: skip
        made = {"namespace": "shop"}
        for who, look, change, rights in (
            ("all", "", "", ""), ("read", "", "PERMISSION_DENIED", "PERMISSION_DENIED"),
            ("both", "", "ALREADY_EXISTS", "PERMISSION_DENIED"),
            ("none", "PERMISSION_DENIED", "PERMISSION_DENIED", "PERMISSION_DENIED"),
        ):  # fmt: skip
            assert await locked.code(who, "topics.list", {}) == look
            assert await locked.code(who, "namespaces.create", made) == change
            assert await locked.code(who, "tokens.create", {"name": who}) == rights
        inner = {"operation": "topics.create", "arguments": {"topic": "/shop/orders"}}
        assert await locked.code("read", "plans.create", inner) == "PERMISSION_DENIED"
        async with connect(locked.broker.broker_url, token=locked.tokens["both"]) as client:
            with pytest.raises(PermissionDenied, match="danube:data"):
                async with client.producer("orders") as producer:
                    await producer.send(b"no")

        page = f"{locked.http}/.well-known/oauth-protected-resource/mcp"
        told = (await web.get(page)).json()
        assert (told["resource"], told["scopes_supported"]) == (
            me, ["danube:read", "danube:data", "danube:write", "danube:admin"]
        )  # fmt: skip
        wrong = await web.post(f"{locked.http}/mcp", json={}, headers={"authorization": "Bearer x"})
        assert wrong.headers["www-authenticate"].startswith(
            'Bearer error="invalid_token", scope="danube:read"'
        )
        bearer = {
            "authorization": f"Bearer {locked.tokens['read']}",
            "accept": "application/json, text/event-stream",
        }
        call = {"name": "create_topic", "arguments": {"topic": "/shop/x"}, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        mcp = {
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "create_topic",
            **bearer,
        }
        refused = await web.post(f"{locked.http}/mcp", json=body, headers=mcp)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (
            403,
            f'Bearer error="insufficient_scope", scope="danube:read danube:write", resource_metadata="{page}"',
        )
        call["name"] = mcp["mcp-name"] = "list_topics"
        call["arguments"] = {}
        assert (await web.post(f"{locked.http}/mcp", json=body, headers=mcp)).status_code == 200
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "tokens.create", "params": {"name": "x"}}
        refused = await web.post(f"{locked.http}/rpc", json=rpc, headers=bearer)
        assert (refused.status_code, "danube:admin" in refused.headers["www-authenticate"]) == (403, True)
        # one too large to be looked at is refused by the operation itself
        rpc["params"] = {"name": "x", "role": "x" * http_identity.MOST_LOOKED_AT}
        assert "error" in (await web.post(f"{locked.http}/rpc", json=rpc, headers=bearer)).json()


async def test_a_session_of_mcp_is_of_use_to_its_owner_only(path: Path) -> None:
    async with (
        locked_broker(path / "session") as locked,
        httpx.AsyncClient(trust_env=False, timeout=60) as web,
    ):
        await people(locked)

        def headers(who: str, **more: str) -> dict[str, str]:
            return {
                "authorization": f"Bearer {locked.tokens[who]}",
                "accept": "application/json, text/event-stream",
                **more,
            }

        begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}  # fmt: skip
        opened = await web.post(f"{locked.http}/mcp", json=begin, headers=headers("admin"))
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        tools = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
        stolen = await web.post(f"{locked.http}/mcp", json=tools, headers=headers("tenant", **session))
        assert stolen.status_code == 403
        assert (
            await web.post(f"{locked.http}/mcp", json=tools, headers=headers("admin", **session))
        ).status_code == 200


async def test_optional_lets_everybody_in_and_counts_who_would_be_refused(path: Path) -> None:
    async with locked_broker(path / "optional", **{"auth.mode": "optional"}) as locked:
        locked.tokens["wrong"] = "danube_" + "0" * 16 + "_" + "A" * 43
        assert await locked.code("none", "topics.list", {}) == ""
        assert await locked.code("wrong", "topics.list", {}) == ""
        assert locked.broker.metrics.security_refused == {"no_identity": 1, "credential": 1, "topics:read": 2}
        assert (await locked.call("none", "security.whoami"))["mode"] == "optional"


async def test_the_socket_is_for_the_brokers_own_user(path: Path) -> None:
    async with locked_broker(path / "socket") as locked:
        socket = locked.broker.data_dir.path / "admin.sock"
        assert oct(socket.stat().st_mode & 0o777) == "0o600"


async def test_secrets_are_in_one_answer_and_nowhere_else(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with locked_broker(path / "secrets") as locked:
        await people(locked)
        await locked.code("wrong", "topics.list", {})
        names = ("audit.query", "tokens.list", "plans.list", "tasks.list")
        shown = json.dumps([await locked.call("admin", name) for name in names])
        async with (
            connect(locked.broker.broker_url, token=locked.tokens["admin"]) as client,
            client.producer("t") as producer,
        ):
            await producer.send(b"x")
    secrets = [token.split("_", 2)[2] for token in locked.tokens.values()]
    kept = [file.read_bytes() for file in (path / "secrets" / "data").rglob("*") if file.is_file()]
    assert kept
    for secret in secrets:
        assert secret not in shown
        assert secret not in caplog.text
        assert not any(secret.encode() in content for content in kept)


META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def test_the_roles_of_the_original_are_known() -> None:
    assert {"Lookup", "Produce", "Consume", "ManageTopic", "ManageCluster"} <= set(ORIGINAL)


async def test_wrong_credentials_are_answered_late_and_recorded_and_good_ones_at_once(path: Path) -> None:
    async with (
        locked_broker(path / "slowed", **{"auth.failure_delay": "500ms"}) as locked,
        httpx.AsyncClient(trust_env=False, timeout=60) as web,
    ):
        await give(locked, "admin", "admin")
        await give(locked, "viewer", "viewer")
        locked.tokens["wrong"] = locked.tokens["admin"][:-1] + (
            "A" if locked.tokens["admin"][-1] != "A" else "B"
        )
        failures = locked.broker.locks.authenticator  # type: ignore[union-attr]  # it is locked
        loop = asyncio.get_running_loop()
        for _ in range(7):
            assert await locked.code("wrong", "topics.list", {}) == "UNAUTHENTICATED"
        here = Peer(address="ipv4:127.0.0.1:1")
        assert failures.wait_s(here) == 0.5
        begun = loop.time()
        bearer = {"authorization": f"Bearer {locked.tokens['wrong']}"}
        answer = await web.post(f"{locked.http}/rpc", json={}, headers=bearer)
        assert (answer.status_code, loop.time() - begun >= 0.45) == (401, True)
        begun = loop.time()  # the exchange of a key for a token is another way to try keys
        async with aio.insecure_channel(locked.broker.broker_url.removeprefix("http://")) as channel:
            exchange = channel.unary_unary(
                "/danube.AuthService/Authenticate",
                request_serializer=pb.AuthRequest.SerializeToString,
                response_deserializer=pb.AuthResponse.FromString,
            )
            with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                await exchange(pb.AuthRequest(api_key=locked.tokens["wrong"]))
        assert loop.time() - begun >= 0.45
        assert await locked.code("viewer", "topics.list", {}) == ""  # from the same address
        assert failures.wait_s(Peer(address="ipv4:127.0.0.2:1")) == 0.0
        for _ in range(3):
            await locked.code("wrong", "topics.list", {})
        records = (await locked.call("admin", "audit.query", filter="login"))["items"]
        told = {(each["arguments"]["address"], each["arguments"]["failures"]) for each in records}
        assert told == {("ipv4:127.0.0.1", 1), ("ipv4:127.0.0.1", 10)}
        assert {(each["decision"], each["code"]) for each in records} == {("refused", "UNAUTHENTICATED")}
        mine = (await locked.call("admin", "audit.query", operation="audit.query"))["items"]
        assert all(each["authenticated"] for each in mine)
