"""Every operation, gRPC method and page × every caller × every face, against the tables of `lock_tables`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc.aio as aio
import httpx
import pytest
from pydanube.wire.ops_channel import OpsChannel
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.remote import OpsClient
from pydanube_broker.status.http_status import PAGES, PROBES
from pydanube_core import services
from pydanube_core.errors import ClusterError
from pydanube_core.ops_call import call_request
from pydanube_core.services import Method, MethodKind, Service

from tests.cli import lock_tables as tables
from tests.cli.running import command_line
from tests.cli.test_locks_live import META, REFUSED, Locked, locked_broker, people, without_spark

pytestmark = pytest.mark.anyio
Ask = Callable[
    [str, str, Mapping[str, Any]], Awaitable[str]
]  # who, operation, arguments → code of the refusal


def arguments_of(operation: str) -> dict[str, Any]:
    """Those of its example, about a topic of the namespace shop; planned only, where it is a change."""
    given = dict(OPERATIONS[operation].examples[0].arguments)
    for name in ("topic", "to"):
        if name in given and (name == "topic" or operation == "topics.replay"):
            given[name] = tables.TOPIC
    if "namespace" in given:
        given["namespace"] = "shop"
    if OPERATIONS[operation].planned:
        given["plan_only"] = True
    return given


def place_of(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("topic") or arguments.get("namespace") or "")


class Assistant:
    """`danube mcp`, started as an assistant's program starts it, with a token in its environment."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._calls = 0

    @classmethod
    async def start(cls, admin_url: str, token: str) -> Assistant:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DANUBE_")}
        words = command_line(
            "mcp", "--admin", admin_url, "--profile", "full", "--toolsets", "connectors,links"
        )
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words, env={**environment, "DANUBE_TOKEN": token}, stdin=pipe, stdout=pipe, limit=8 << 20
        )
        return cls(process)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The code of the refusal, if it is one."""
        self._calls += 1
        params = {"name": tool, "arguments": arguments, "_meta": META}
        call = {"jsonrpc": "2.0", "id": self._calls, "method": "tools/call", "params": params}
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(call).encode() + b"\n")
        while line := await stdout.readline():
            answer = json.loads(line)
            if answer.get("id") == self._calls:
                return _in(answer, "result", "structuredContent", "error", "code")
        raise AssertionError("the server has ended")

    async def aclose(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


class Faces:
    """Everybody's way in at every face, opened once."""

    def __init__(self, locked: Locked, web: httpx.AsyncClient) -> None:
        self.locked = locked
        self.web = web
        self._channels: dict[tuple[str, str], OpsChannel] = {}
        self._consoles: dict[str, OpsClient] = {}
        self._assistants: dict[str, Assistant] = {}

    @property
    def faces(self) -> dict[str, Ask]:
        return {
            "admin port": self.admin,
            "client port": self.client,
            "json-rpc": self.rpc,
            "mcp": self.mcp,
            "mcp stdio": self.stdio,
            "console": self.console,
        }

    async def aclose(self) -> None:
        for channel in (*self._channels.values(), *self._consoles.values(), *self._assistants.values()):
            await channel.aclose()

    async def admin(self, who: str, operation: str, arguments: Mapping[str, Any]) -> str:
        return await self._call(self.locked.broker.admin_url, who, operation, arguments)

    async def client(self, who: str, operation: str, arguments: Mapping[str, Any]) -> str:
        return await self._call(self.locked.broker.broker_url, who, operation, arguments)

    async def _call(self, url: str, who: str, operation: str, arguments: Mapping[str, Any]) -> str:
        channel = self._channels.get((url, who))
        if channel is None:
            channel = self._channels[url, who] = OpsChannel(url, token=self.locked.tokens.get(who))
        request = call_request(operation, arguments, principal="", face="cli")
        try:
            await channel.call(request, timeout_s=60)
        except ClusterError as error:
            return error.code
        return ""

    async def console(self, who: str, operation: str, arguments: Mapping[str, Any]) -> str:
        """As the console calls, which is told the token by its environment."""
        client = self._consoles.get(who)
        with pytest.MonkeyPatch.context() as patch:
            if client is None:
                client = self._consoles[who] = OpsClient(
                    self.locked.broker.admin_url, timeout_s=60, face="tui"
                )
                patch.setenv("DANUBE_TOKEN", self.locked.tokens.get(who, ""))
            try:
                await client.call(operation, arguments)
            except ClusterError as error:
                return error.code
        return ""

    async def stdio(self, who: str, operation: str, arguments: Mapping[str, Any]) -> str:
        assistant = self._assistants.get(who)
        if assistant is None:
            token = self.locked.tokens.get(who, "")
            assistant = self._assistants[who] = await Assistant.start(self.locked.broker.admin_url, token)
        return await assistant.call(OPERATIONS[operation].tool, arguments)

    def bearer(self, who: str) -> dict[str, str]:
        token = self.locked.tokens.get(who)
        shown = {} if token is None else {"authorization": f"Bearer {token}"}
        return {"accept": "application/json, text/event-stream", **shown}

    async def rpc(self, who: str, operation: str, arguments: Mapping[str, Any]) -> str:
        body = {"jsonrpc": "2.0", "id": 1, "method": operation, "params": arguments}
        answer = await self.web.post(f"{self.locked.http}/rpc", json=body, headers=self.bearer(who))
        return code_of(answer) or _find(answer, "error", "data", "code")

    async def mcp(self, who: str, operation: str, arguments: Mapping[str, Any]) -> str:
        tool = OPERATIONS[operation].tool
        params = {"name": tool, "arguments": arguments, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
        answer = await self.web.post(f"{self.locked.http}/mcp", json=body, headers=headers | self.bearer(who))
        return code_of(answer) or _find(answer, "result", "structuredContent", "error", "code")

    async def page(self, who: str, path: str) -> str:
        return code_of(
            await self.web.get(f"{self.locked.broker.metrics_url}{path}", headers=self.bearer(who))
        )

    async def method(self, who: str, url: str, method: Method, request: Mapping[str, Any]) -> str:
        token = self.locked.tokens.get(who)
        metadata = None if token is None else (("authorization", f"Bearer {token}"),)
        async with aio.insecure_channel(url.removeprefix("http://")) as channel:
            call = getattr(channel, method.kind.value)(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            message = method.request(**request)
            try:
                if method.kind is MethodKind.UNARY:
                    await call(message, metadata=metadata, timeout=60)
                elif method.kind is MethodKind.SERVER_STREAM:
                    await call(message, metadata=metadata, timeout=60).read()
                else:
                    stream = call(metadata=metadata, timeout=60)
                    await stream.write(message)
                    answer = await stream.read()
                    stream.cancel()
                    if answer.HasField("failure"):
                        return str(json.loads(answer.failure.error)["code"])
            except aio.AioRpcError as error:
                return str(error.code().name)
        return ""


def code_of(answer: httpx.Response) -> str:
    return {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}.get(answer.status_code, "")


def _find(answer: httpx.Response, *path: str) -> str:
    return _in(answer.json(), *path)


def _in(found: Any, *path: str) -> str:
    for name in path:
        found = found.get(name) or {}
    return found if isinstance(found, str) else ""


@pytest.fixture
async def faces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Faces]:
    without_spark(monkeypatch)
    async with (
        locked_broker(tmp_path) as locked,
        httpx.AsyncClient(trust_env=False, timeout=120) as web,
    ):
        await people(locked)
        made = Faces(locked, web)
        try:
            yield made
        finally:
            await made.aclose()


def wrongs(what: str, who: str, code: str, *, may: bool) -> list[str]:
    """What is wrong with an answer: one who is not known hears one thing, one who is and may not another."""
    unknown = who in tables.UNKNOWN and not may
    right = code == "UNAUTHENTICATED" if unknown else (code not in REFUSED) is may
    return [] if right else [f"{what} by {who}: {code or 'done'}"]


def test_the_tables_have_a_line_for_everything() -> None:
    assert tables.OTHERWISE.keys() <= OPERATIONS.keys()
    served = {each.path for each in methods()} | {"/grpc.health.v1.Health/Check"}
    assert {f"/{path}" for path in tables.METHODS} == served
    assert set(tables.PAGES) == {*PAGES, *PROBES}


def methods() -> list[Method]:
    return [method for each in vars(services).values() if isinstance(each, Service) for method in each]


@pytest.mark.timeout(400)  # seven hundred calls
@pytest.mark.parametrize("face", ["admin port", "client port", "json-rpc", "mcp", "mcp stdio", "console"])
async def test_every_operation_is_open_to_those_who_may_and_to_nobody_else(faces: Faces, face: str) -> None:
    wrong: list[str] = []
    for operation, permission in tables.OPERATIONS.items():
        arguments = arguments_of(operation)
        for who in tables.CALLERS:
            if permission == tables.INSIDE and who not in tables.UNKNOWN:
                continue
            if face in PROGRAMS and who != "viewer" and not operation.startswith("topics."):
                continue
            code = await faces.faces[face](who, operation, arguments)
            cut = operation in tables.CUT and not place_of(arguments)
            place = "" if operation in tables.ON_CLUSTER else place_of(arguments)
            may = tables.may(who, tables.KNOWN if cut else permission, place)
            wrong += wrongs(operation, who, code, may=may)
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(400)  # six hundred calls, each on a channel of its own
async def test_every_method_is_open_to_those_who_may_and_to_nobody_else(faces: Faces) -> None:
    broker, wrong = faces.locked.broker, []
    await faces.admin("admin", "namespaces.create", {"namespace": "shop"})
    await be_there(faces)
    for method in methods():
        line = tables.METHODS[method.path.removeprefix("/")]
        urls = [broker.broker_url] if method.service in CLIENTS else [broker.admin_url]
        if method.service == "danube_schema.SchemaRegistry":
            urls = [broker.broker_url, broker.admin_url]
        for url in urls:
            for who in tables.CALLERS:
                request = {"api_key": faces.locked.tokens["admin"]} if line is AUTHENTICATE else line.request
                code = await faces.method(who, url, method, request)
                if line.permission == tables.BROKERS:  # a credential of a user does not count there
                    wrong += (
                        [] if code == "PERMISSION_DENIED" else [f"{method.path} by {who}: {code or 'done'}"]
                    )
                    continue
                wrong += wrongs(method.path, who, code, may=tables.may(who, line.permission, line.place))
        if method.name.startswith(("Delete", "Unsubscribe")):
            await be_there(faces)
    assert not wrong, "\n".join(wrong)


async def be_there(faces: Faces) -> None:
    """What the methods name is there, so that a refusal is no accident; what is there already stays."""
    for operation, arguments in THERE:
        await faces.admin("admin", operation, arguments)


async def test_every_page_is_open_to_those_who_may_and_to_nobody_else(faces: Faces) -> None:
    wrong: list[str] = []
    for path, permission in tables.PAGES.items():
        for who in tables.CALLERS:
            if permission == tables.OPEN and who in ("wrong", "expired"):
                continue  # a page asks nobody, but does not take a wrong token for none
            wrong += wrongs(path, who, await faces.page(who, path), may=tables.may(who, permission, ""))
    assert not wrong, "\n".join(wrong)


# Programs beside the broker, which decides behind its admin port: of these it is enough that each operation goes there,
# and each caller with what he shows. The ports themselves have the whole table.
PROGRAMS = ("mcp stdio", "console")
AUTHENTICATE = tables.METHODS["danube.AuthService/Authenticate"]
THERE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("topics.create", {"topic": tables.TOPIC}),
    ("subscriptions.create", {"topic": tables.TOPIC, "subscription": "s", "type": "shared"}),
    ("schemas.register", {"subject": "nothing", "schema_type": "string", "schema_definition": ""}),
)
CLIENTS = {path.split("/")[0] for path in tables.METHODS if not path.startswith(("danube_", "grpc."))}
