"""Keys of tokens from an identity provider's URL: a real https server that rotates, fails and lies."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import anyio
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pydanube_broker import outgoing
from pydanube_broker.admin_state import AdminState
from pydanube_broker.rpc.caller import Peer
from pydanube_broker.security import published_keys
from pydanube_broker.security.jwt_keys import JwtRules, JwtVerifier, read_keys
from pydanube_broker.security.locks import open_locks
from pydanube_broker.security.published_keys import SOONEST_S, KeySource, PublishedKeys
from pydanube_broker.settings.load import load_settings
from pydanube_broker.settings.security import Auth
from pydanube_core.errors import InvalidArgument, Unauthenticated
from pydanube_core.security.permissions import Principal

from tests.support.key_server import KeyServer, key_server, public_jwk
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio

FIRST, SECOND = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
RULES = JwtRules(issuer=None, audience=None)
SECRET = b"s" * 32


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KeyServer]:
    with key_server(tmp_path) as served:
        served.keys = [public_jwk(FIRST, "a")]
        yield served


def reader(
    server: KeyServer, *own: Any, ca: Path | None = None, changed: asyncio.Event | None = None
) -> tuple[PublishedKeys, JwtVerifier]:
    keys = read_keys(json.dumps({"keys": own}).encode(), where="auth.jwt_keys") if own else ()
    verifier = JwtVerifier(keys, RULES)
    source = KeySource(url=server.url, ca=ca or server.ca, refresh_s=3600)
    return PublishedKeys(source, verifier, changed or asyncio.Event()), verifier


def token(key: Any, kid: str, algorithm: str = "ES256") -> str:
    return jwt.encode(
        {"sub": "ann", "exp": time.time() + 600}, key, algorithm=algorithm, headers={"kid": kid}
    )


async def test_keys_come_and_go_as_they_are_published(server: KeyServer) -> None:
    published, verifier = reader(server)
    await published.read()
    first = verifier.verify(token(FIRST, "a"))
    server.keys = [public_jwk(FIRST, "a"), public_jwk(SECOND, "b")]
    await published.read()
    verifier.check(first)  # another key came; this one stayed
    verifier.check(verifier.verify(token(SECOND, "b")))
    server.keys = [public_jwk(SECOND, "b")]
    await published.read()
    with pytest.raises(Unauthenticated):
        verifier.verify(token(FIRST, "a"))
    with pytest.raises(Unauthenticated):  # what it let in ends, too
        verifier.check(first)


async def test_streams_are_looked_at_again_when_published_keys_change_and_only_then(
    server: KeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The event ends the streams of tokens whose key went. A survivor of `make mutants`."""
    caplog.set_level(logging.INFO, logger="pydanube.security")
    changed = asyncio.Event()
    published, _ = reader(server, changed=changed)
    for keys, is_news in (
        ([public_jwk(FIRST, "a")], True),
        ([public_jwk(FIRST, "a")], False),
        ([public_jwk(SECOND, "a")], True),
    ):
        changed.clear()
        caplog.clear()
        server.keys = keys
        await published.read()
        assert changed.is_set() is is_news
        assert [each.message for each in caplog.records] == ["published_keys_read"] * is_news


async def test_a_broker_that_starts_knows_the_published_keys_at_once(server: KeyServer) -> None:
    """Else every token would be refused until the first refresh."""
    settings = Auth.model_validate(
        {
            "mode": "required",
            "jwks_url": server.url,
            "jwks_ca": server.ca,
            "issuer": "us",
            "audience": "danube",
        }
    )
    text = jwt.encode(
        {"sub": "ann", "exp": time.time() + 600, "iss": "us", "aud": "danube"},
        FIRST,
        algorithm="ES256",
        headers={"kid": "a"},
    )
    async with MemoryStore() as store:
        locks = await open_locks(settings, AdminState(store), Counter(), lambda identity: lambda: None)
        assert locks is not None
        found = locks.authenticator.identify(f"Bearer {text}", Peer(address="ipv4:192.0.2.7:50123"))
    assert found.principal == Principal("ann")


async def test_a_broker_with_keys_of_a_file_only_fetches_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [public_jwk(FIRST, "a")]}))
    settings = Auth(mode="required", jwt_keys=path, issuer="us", audience="danube")
    fetched: list[Any] = []

    async def answer_to(request: Any) -> bytes:
        fetched.append(request)
        raise InvalidArgument("no server")

    monkeypatch.setattr(published_keys, "answer_to", answer_to)
    async with MemoryStore() as store:
        assert await open_locks(settings, AdminState(store), Counter(), lambda identity: lambda: None)
    assert fetched == []


async def test_another_key_of_the_same_id_ends_what_the_former_let_in(server: KeyServer) -> None:
    published, verifier = reader(server)
    await published.read()
    first = verifier.verify(token(FIRST, "a"))
    server.keys = [public_jwk(SECOND, "a")]
    await published.read()
    with pytest.raises(Unauthenticated):
        verifier.check(first)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"status": 500}, "500"),
        ({"status": 302, "location": "https://localhost/elsewhere"}, "redirects are not followed"),
        ({"body": b"{"}, "no key set"),
        ({"body": b"[" * 100_000}, "no key set"),
        ({"body": b'{"keys": []}'}, "0 keys"),
        ({"keys": [public_jwk(FIRST, str(number)) for number in range(65)]}, "65 keys"),
        ({"keys": [public_jwk(FIRST, "a"), public_jwk(RSA, "a")]}, "two keys"),
        ({"body": b'{"keys": [' + b" " * (256 << 10) + b"]}"}, "more than"),
    ],
)
async def test_the_last_good_keys_stay_whatever_the_answer_is(
    server: KeyServer, wrong: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    published, verifier = reader(server)
    await published.read()
    for name, value in wrong.items():
        setattr(server, name, value)
    for _ in range(2):  # the first failure is logged, and not the next one
        await published.read()
        told = [each for each in caplog.records if each.message == "published_keys_not_read"]
        assert [words in each.error for each in told] == [True]  # type: ignore[attr-defined]
    verifier.verify(token(FIRST, "a"))
    assert set(server.asked) == {"/keys"}


async def test_a_server_that_is_not_trusted_gives_no_keys(server: KeyServer, tmp_path: Path) -> None:
    with key_server(tmp_path / "other") as other:
        published, verifier = reader(server, ca=other.ca)
        await published.read()
    with pytest.raises(Unauthenticated):
        verifier.verify(token(FIRST, "a"))
    assert server.asked == {}


async def test_a_server_that_takes_its_time_is_given_up(
    server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "MOST_S", 0.5)
    published, verifier = reader(server)
    server.body = json.dumps({"keys": server.keys}).encode() + b" " * 1000
    server.drip.set()
    await published.read()
    with pytest.raises(Unauthenticated):
        verifier.verify(token(FIRST, "a"))
    # the thread that waited is not left behind with it
    assert await asyncio.to_thread(server.gone.wait, 30)


async def test_a_secret_and_a_public_key_never_share_an_id(server: KeyServer) -> None:
    secret = {"kty": "oct", "k": "c3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3M", "kid": "a"}
    published, verifier = reader(server, secret)
    await published.read()
    verifier.verify(token(SECRET, "a", "HS256"))
    with pytest.raises(Unauthenticated):
        verifier.verify(token(FIRST, "a"))
    # a secret that is published is none, nor is a key without an id or of another kind of use
    server.keys = [{**secret, "kid": "b"}, {"kty": "EC"}, public_jwk(RSA, ""), public_jwk(RSA, "e", use="enc"),
                   public_jwk(FIRST, "c")]  # fmt: skip
    await published.read()
    verifier.verify(token(FIRST, "c"))
    for text in (token(SECRET, "b", "HS256"), token(RSA, "", "RS256"), token(RSA, "e", "RS256")):
        with pytest.raises(Unauthenticated):
            verifier.verify(text)


async def test_an_unknown_key_is_asked_for_soon_and_seldom(
    server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    turn = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await turn.wait()
        turn.clear()

    published, verifier = reader(server)
    await published.read()
    monkeypatch.setattr(published_keys.asyncio, "sleep", pause)
    task = asyncio.ensure_future(published.run())
    server.keys = [public_jwk(SECOND, "b")]
    for number in range(200):
        with pytest.raises(Unauthenticated):
            verifier.verify(token(SECOND, f"made up {number}"))
    assert server.asked == {"/keys": 1}
    turn.set()  # ten seconds have passed
    async with asyncio.timeout(60):
        while server.asked != {"/keys": 2} or len(pauses) < 2:
            await asyncio.wait([task], timeout=0.02)
    assert not verifier.wanted.is_set(), "until a token names a missing key again"
    verifier.verify(token(SECOND, "b"))
    assert pauses == [published_keys.SOONEST_S] * 2
    task.cancel()


@pytest.mark.parametrize(
    "url",
    [
        "http://idp.example.org/keys",
        "file:///etc/passwd",
        "https://",
        "https://u:p@idp/keys",
        "https://idp/#x",
    ],
)
def test_the_url_is_https_and_nothing_else(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"auth\.jwks_url"):
        load_settings(None, {}, {"auth.jwks_url": url})


async def test_keys_are_read_once_per_refresh_and_sooner_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class EnoughError(Exception):
        pass

    class Wanted(asyncio.Event):
        async def wait(self) -> Literal[True]:
            pauses.append("a missing key")
            return True

    pauses: list[object] = []
    answers = [True, False, True]

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    def move_on_after(seconds: float) -> anyio.CancelScope:
        pauses.append(seconds)
        return anyio.move_on_after(0.0)

    async def answer_to(request: Any) -> bytes:
        if not answers:
            raise EnoughError
        if not answers.pop(0):
            raise InvalidArgument("away")
        return json.dumps({"keys": [public_jwk(FIRST, "a")]}).encode()

    source = KeySource(url="https://keys", ca=None, refresh_s=300)
    verifier = JwtVerifier((), RULES)
    verifier.wanted = Wanted()
    published = PublishedKeys(source, verifier, asyncio.Event())
    monkeypatch.setattr(published_keys, "answer_to", answer_to)
    monkeypatch.setattr(published_keys, "asyncio", SimpleNamespace(sleep=sleep))
    virtual = SimpleNamespace(move_on_after=move_on_after, to_thread=anyio.to_thread)
    monkeypatch.setattr(published_keys, "anyio", virtual)
    with pytest.raises(EnoughError):
        await published.run()
    rest_s = 300 - SOONEST_S
    rests_s = [rest_s, rest_s, 0.0, rest_s]
    assert pauses == [each for pause_s in rests_s for each in (SOONEST_S, pause_s, "a missing key")]
