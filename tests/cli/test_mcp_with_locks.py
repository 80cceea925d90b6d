"""MCP over HTTP with the locks on: alerts for whoever may see them, and sessions that nobody takes from others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio
import httpx
import pydanube_mcp.alerts as alerts_module
import pytest
from pydanube_broker.security import http_identity
from pydanube_mcp import run
from pydanube_mcp.alerts import ALERTS_URI, AlertWatch

from tests.cli.test_locks_live import META, Locked, give, locked_broker

pytestmark = pytest.mark.anyio
ROOM: Final = 4  # sessions that are kept, and remembered
LISTEN: Final = "subscriptions/listen"


@pytest.fixture(scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Locked]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "MAX_SESSIONS", ROOM)
        patch.setattr(http_identity, "MOST_SESSIONS", ROOM)
        patch.setattr(alerts_module, "PAUSE_S", 0.05)
        async with locked_broker(tmp_path_factory.mktemp("mcp")) as broker:
            for name in ("admin", "second"):
                await give(broker, name, "admin")
            await give(broker, "app", "producer")
            yield broker


class Web:
    """Requests of one principal; `session`: of the 2025 protocol."""

    def __init__(self, locked: Locked, who: str, client: httpx.AsyncClient) -> None:
        self.url = f"{locked.http}/mcp"
        self.client = client
        self.headers = {
            "authorization": f"Bearer {locked.tokens[who]}",
            "accept": "application/json, text/event-stream",
        }

    async def open(self) -> bool:
        """Begin a session; whether there was room for it."""
        about = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        opened = await self.ask("initialize", about)
        if opened.status_code == 503:
            return False
        assert opened.status_code == 200, opened.text
        self.headers |= {
            "mcp-session-id": opened.headers["mcp-session-id"],
            "mcp-protocol-version": "2025-06-18",
        }
        return True

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return await self.client.post(self.url, json=body, headers=self.headers)


async def web(locked: Locked, who: str, stack: AsyncExitStack) -> Web:
    """Somebody, without a session."""
    return Web(locked, who, await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60)))


async def with_session(locked: Locked, who: str, stack: AsyncExitStack) -> Web:
    made = await web(locked, who, stack)
    assert await made.open()
    return made


async def test_alerts_are_watched_for_whoever_may_see_them_and_nobody_else(
    locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch asked as nobody: no alert was ever pushed, and each second had a refusal in the audit."""
    answers: list[frozenset[tuple[str, str]] | None] = []
    asked = anyio.Event()
    ask = AlertWatch.open_stream

    async def noting(watch: AlertWatch) -> frozenset[tuple[str, str]] | None:
        answers.append(await ask(watch))
        asked.set()
        return answers[-1]

    monkeypatch.setattr(AlertWatch, "open_stream", noting)
    async with AsyncExitStack() as stack:
        app = await with_session(locked, "app", stack)
        refused = (await app.ask("resources/subscribe", {"uri": ALERTS_URI})).text
        assert "PERMISSION_DENIED" in refused
        assert "cluster:read" in refused
        newer = await web(locked, "app", stack)
        newer.headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": LISTEN}
        wanted = {"notifications": {"resourceSubscriptions": [ALERTS_URI]}, "_meta": META}
        assert "PERMISSION_DENIED" in (await newer.ask(LISTEN, wanted)).text
        assert not answers
        admin = await with_session(locked, "admin", stack)
        assert "error" not in (await admin.ask("resources/subscribe", {"uri": ALERTS_URI})).text
        with anyio.fail_after(30):
            await asked.wait()
        assert answers[0] is not None
        await admin.ask("resources/unsubscribe", {"uri": ALERTS_URI})
    found = await locked.call("admin", "audit.query", operation="alerts.list")
    assert {item["principal"] for item in found["items"] if item["decision"] == "refused"} == {"app"}


@pytest.mark.parametrize("streams", [False, True], ids=["idle", "with a stream open"])
async def test_whoever_opens_many_sessions_ends_none_of_others(locked: Locked, streams: bool) -> None:
    async with AsyncExitStack() as stack:
        admin = await with_session(locked, "admin", stack)
        for _ in range(3 * ROOM):
            app = await web(locked, "app", stack)
            if await app.open() and streams:
                listening = await stack.enter_async_context(
                    app.client.stream("GET", app.url, headers=app.headers)
                )
                assert listening.status_code == 200
        assert (await admin.ask("tools/list")).status_code == 200
        second = await with_session(locked, "second", stack)
        assert (await second.ask("tools/list")).status_code == 200
        assert (await admin.ask("tools/list")).status_code == 200
