"""The HTTP port of a broker: every request is of a caller, within the scopes of its token, and in its own session."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pydanube_broker.rpc.caller import Peer
from pydanube_broker.security import http_identity
from pydanube_broker.security.authenticator import FREE
from pydanube_broker.security.http_identity import MOST_LOOKED_AT, IdentifiedApp
from pydanube_core.security.identity import Identity, current_identity
from pydanube_core.security.scopes import DATA, READ, WRITE

from tests.broker.security.test_locks import ANN, BOB, BROKEN, Broker
from tests.support.memory_store import MemoryStore

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with MemoryStore() as store:
        found = Broker(store)
        await found.open("required")
        yield found


class Http:
    """An HTTP port in front of an application that notes who called, and opens a session if it is told to."""

    def __init__(self, broker: Broker, **options: Any) -> None:
        self.calls: list[tuple[str, Identity | None, bytes]] = []
        self.opens: bytes | None = None
        self.page = b""  # the body of the last answer
        self.says_more = True  # each piece of a body says whether another one follows
        self.more_headers: list[tuple[bytes, bytes]] = []
        self._app = IdentifiedApp(self._serve, broker.locks, **options)

    async def _serve(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.calls.append((scope["path"], current_identity.get(), body))
        headers = [] if self.opens is None else [(b"Mcp-Session-Id", self.opens)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def __call__(
        self,
        path: str,
        shown: str | None = None,
        *,
        session: bytes | None = None,
        pieces: tuple[bytes, ...] = (b"",),
    ) -> tuple[int, dict[bytes, bytes]]:
        headers = [(b"host", b'danube:9041"'), *self.more_headers]
        headers += [] if shown is None else [(b"authorization", shown.encode())]
        headers += [] if session is None else [(b"mcp-session-id", session)]
        scope = {
            "type": "http",
            "path": path,
            "headers": headers,
            "scheme": "http",
            "client": ("192.0.2.7", 1),
        }
        sent: list[Any] = []
        left = list(pieces)

        async def receive() -> Any:
            message = {"type": "http.request", "body": left.pop(0)}
            return message | ({"more_body": bool(left)} if self.says_more else {})

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        self.page = sent[1]["body"]
        return sent[0]["status"], dict(sent[0]["headers"])


async def test_a_page_is_for_who_is_known_and_an_open_one_for_everybody(broker: Broker) -> None:
    http = Http(broker, open=frozenset({"/healthz"}), needs={"/metrics": "brokers:read"})
    assert (await http("/healthz"))[0] == 200
    assert http.calls[-1][1] is None
    assert (await http("/healthz", BROKEN))[0] == 401, "whoever shows a token is known by it"
    assert (await http("/mcp"))[0] == 401
    shown = await broker.token(ANN)
    assert (await http("/mcp", shown))[0] == 200
    identity = http.calls[-1][1]
    assert identity is not None
    assert identity.principal == ANN
    assert current_identity.get() is None
    assert (await http("/metrics", shown))[0] == 403
    await broker.bind(ANN, "viewer")
    assert (await http("/metrics", shown))[0] == 200


async def test_an_address_that_a_request_claims_to_come_for_is_not_believed(broker: Broker) -> None:
    """Else whoever guesses is never slowed, and another one is in its place."""
    http = Http(broker)
    http.more_headers = [(b"x-forwarded-for", b"198.51.100.9"), (b"forwarded", b"for=198.51.100.9")]
    told: list[str] = []
    broker.locks.authenticator.on_failed = lambda address, count: told.append(address)
    for _ in range(4):
        broker.locks.authenticator.note_failure("credential", Peer(address="ipv4:192.0.2.7:1"))
    assert (await http("/mcp", BROKEN))[0] == 401
    assert told == ["ipv4:192.0.2.7"]
    assert broker.locks.authenticator.wait_s(Peer(address="ipv4:192.0.2.7:2")) > 0
    assert broker.locks.authenticator.wait_s(Peer(address="ipv4:198.51.100.9:2")) == 0


async def test_a_session_is_of_use_to_the_principal_that_opened_it_and_to_no_other(broker: Broker) -> None:
    http = Http(broker)
    ann, bob = await broker.token(ANN), await broker.token(BOB)
    http.opens = b"s1"
    assert (await http("/mcp", ann))[0] == 200
    http.opens = None
    assert (await http("/mcp", ann, session=b"s1"))[0] == 200
    assert (await http("/mcp", bob, session=b"s1"))[0] == 403
    assert (await http("/mcp", ann, session=b"guessed"))[0] == 403
    http.opens = b"s1"  # an answer that repeats the number does not give it to another
    assert (await http("/mcp", bob))[0] == 200
    http.opens = None
    assert (await http("/mcp", bob, session=b"s1"))[0] == 403


async def test_a_refusal_names_how_to_sign_in_and_quotes_nothing_of_the_host(broker: Broker) -> None:
    http = Http(broker, issuer="https://issuer.example", audience="danube")
    status, headers = await http("/mcp")
    assert status == 401
    assert headers[b"www-authenticate"] == (
        b'Bearer scope="danube:read", '
        b'resource_metadata="http://danube:9041/.well-known/oauth-protected-resource/mcp"'
    )
    _, headers = await http("/mcp", BROKEN)
    assert b'error="invalid_token"' in headers[b"www-authenticate"]
    assert (await http("/.well-known/oauth-protected-resource/mcp"))[0] == 200
    assert http.calls == []
    plain = Http(broker, issuer="http://issuer.example")
    assert (await plain("/mcp"))[1][b"www-authenticate"] == b"Bearer"


@pytest.mark.parametrize(
    ("audience", "named"),
    [
        ("https://danube.example/mcp", "https://danube.example/mcp"),
        ("danube", "http://danube:9041/mcp"),
        (None, "http://danube:9041/mcp"),
    ],
)
async def test_the_page_for_signing_in_names_the_audience_or_the_address_that_the_client_used(
    broker: Broker, audience: str | None, named: str
) -> None:
    http = Http(broker, issuer="https://issuer.example", audience=audience)
    for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
        assert (await http(path))[0] == 200
        page = json.loads(http.page)
        assert (page["resource"], page["authorization_servers"]) == (named, ["https://issuer.example"])
        assert set(page["scopes_supported"]) >= {READ, WRITE, DATA}
        assert page["bearer_methods_supported"] == ["header"]


async def test_a_narrow_token_is_refused_by_the_operation_in_the_body_and_the_body_arrives_whole(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.bind(ANN, "admin")
    narrow(monkeypatch, broker, READ)
    http = Http(broker, issuer="https://issuer.example", asked=lambda body: body.decode() or None)
    assert (await http("/mcp", "x", pieces=(b"topics", b":read")))[0] == 200
    assert http.calls[-1][2] == b"topics:read"
    status, headers = await http("/mcp", "x", pieces=(b"topics:", b"delete"))
    assert status == 403
    assert b'error="insufficient_scope", scope="danube:read danube:write"' in headers[b"www-authenticate"]
    large = (b"x" * MOST_LOOKED_AT, b"y", b"z")
    http = Http(broker, asked=lambda body: None if len(body) == MOST_LOOKED_AT + 1 else "topics:delete")
    assert (await http("/mcp", "x", pieces=large))[0] == 200
    assert http.calls[-1][2] == b"".join(large)


async def test_two_tokens_in_one_request_are_none(broker: Broker) -> None:
    shown = (await broker.token(ANN)).encode()
    headers = [(b"authorization", shown), (b"authorization", shown)]
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(*_: Any) -> None:
        raise AssertionError("the application was reached")

    app = IdentifiedApp(never, broker.locks)
    await app({"type": "http", "path": "/mcp", "headers": headers, "scheme": "http"}, never, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 401


def narrow(monkeypatch: pytest.MonkeyPatch, broker: Broker, *scopes: str) -> None:
    """Let every request of the broker be Ann's, with a token of these scopes."""
    found = Identity(principal=ANN, method="certificate", scopes=frozenset(scopes))
    monkeypatch.setattr(broker.locks.authenticator, "identify", lambda shown, peer: found)


async def test_a_wrong_credential_is_answered_after_its_delay_and_a_lack_of_permission_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else guesses cost nothing, and a caller waits because another one at its address guesses."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(http_identity, "asyncio", SimpleNamespace(sleep=pause))
    http = Http(broker, needs={"/metrics": "brokers:read"})
    shown = await broker.token(ANN)
    for _ in range(FREE + 1):
        assert (await http("/mcp", BROKEN))[0] == 401
    assert [each > 0 for each in pauses] == [False] * FREE + [True]
    assert pauses[-1] == broker.locks.authenticator.wait_s(Peer(address="ipv4:192.0.2.7:1"))
    assert (await http("/metrics", shown))[0] == 403
    assert (await http("/mcp", shown))[0] == 200
    assert len(pauses) == FREE + 1


async def test_sessions_are_bounded_and_a_principal_with_many_loses_only_its_own(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_identity, "MOST_SESSIONS", 3)
    http = Http(broker)
    ann, bob = await broker.token(ANN), await broker.token(BOB)

    async def opened(shown: str, session: bytes) -> None:
        http.opens = session
        assert (await http("/mcp", shown))[0] == 200
        http.opens = None

    async def good(shown: str, *sessions: bytes) -> list[bool]:
        return [(await http("/mcp", shown, session=each))[0] == 200 for each in sessions]

    await opened(bob, b"b1")
    await opened(ann, b"a1")
    await opened(ann, b"a2")
    assert await good(bob, b"b1") + await good(ann, b"a1", b"a2") == [True, True, True], (
        "as many as there may be"
    )
    await opened(ann, b"a3")
    assert await good(bob, b"b1") + await good(ann, b"a1", b"a2", b"a3") == [True, False, True, True]
    await opened(ann, b"a4")
    assert await good(bob, b"b1") + await good(ann, b"a2", b"a3", b"a4") == [True, False, True, True]


async def test_a_token_without_scopes_is_refused_and_learns_the_one_that_it_needs(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.bind(ANN, "admin")
    narrow(monkeypatch, broker)
    http = Http(broker, issuer="https://issuer.example", asked=lambda body: "topics:delete")
    status, headers = await http("/mcp", "x")
    assert status == 403
    assert b'error="insufficient_scope", scope="danube:write",' in headers[b"www-authenticate"]
    assert http.calls == []


async def test_a_page_beyond_the_scopes_of_a_token_is_refused_also_where_its_principal_may_see_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.bind(ANN, "admin")
    http = Http(broker, issuer="https://issuer.example", needs={"/metrics": "brokers:read"})
    narrow(monkeypatch, broker, DATA)
    assert (await http("/metrics", "x"))[0] == 403
    assert http.calls == []
    narrow(monkeypatch, broker, READ)
    assert (await http("/metrics", "x"))[0] == 200


async def test_a_body_without_a_word_of_more_is_whole(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASGI: `more_body` is false if it is missing. A second read would wait for a message that does not come."""
    await broker.bind(ANN, "admin")
    narrow(monkeypatch, broker, READ)
    seen: list[bytes] = []
    http = Http(broker, asked=lambda body: seen.append(body))
    http.says_more = False
    assert (await http("/mcp", "x", pieces=(b"all",)))[0] == 200
    assert seen == [b"all"]
    assert http.calls[-1][2] == b"all"


async def test_the_start_of_the_server_reaches_the_application_as_it_came(broker: Broker) -> None:
    """ASGI's lifespan is no request, and has no caller."""
    reached: list[Any] = []

    async def app(*what: Any) -> None:
        reached.extend(what)

    async def receive() -> Any: ...

    async def send(message: Any) -> None: ...

    scope = {"type": "lifespan"}
    await IdentifiedApp(app, broker.locks)(scope, receive, send)
    assert reached == [scope, receive, send]
