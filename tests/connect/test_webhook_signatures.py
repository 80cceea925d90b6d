"""Signed webhooks: what GitHub, Stripe and Standard Webhooks send is taken, anything else gets 401."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube.testing import InMemoryCluster
from pydanube_connect.file import declared
from pydanube_connect.webhook.signatures import Scheme, key_of, signed
from pydanube_core.errors import InvalidArgument

from tests.connect.test_webhook_source import listening, messages

KEY = base64.b64encode(b"k" * 24).decode()
SECRETS: dict[Scheme, str] = {
    "github": "It's a Secret to Everybody",
    "stripe": "whsec_x",
    "standard_webhooks": f"whsec_{KEY}",
}


def headers(scheme: Scheme, body: bytes, *, age_s: int = 0, secret: str | None = None) -> dict[str, str]:
    """What a sender of the scheme shows, written from its documentation."""
    at = str(int(time.time()) - age_s)
    text = secret or SECRETS[scheme]
    key = base64.b64decode(text[6:]) if scheme == "standard_webhooks" else text.encode()

    def digest(content: bytes) -> Any:
        return hmac.new(key, content, hashlib.sha256)

    match scheme:
        case "github":
            return {"X-Hub-Signature-256": f"sha256={digest(body).hexdigest()}"}
        case "stripe":
            mine = digest(at.encode() + b"." + body).hexdigest()
            return {"Stripe-Signature": f"t={at},v1={'0' * 64},v1={mine},v0=ignored"}
        case "standard_webhooks":
            mine = base64.b64encode(digest(b"msg_1." + at.encode() + b"." + body).digest()).decode()
            shown = f"v1a,abc v1,{mine}"
            return {"webhook-id": "msg_1", "webhook-timestamp": at, "webhook-signature": shown}


def raw(shown: dict[str, str]) -> dict[bytes, bytes]:
    return {name.lower().encode(): value.encode() for name, value in shown.items()}


def test_the_example_of_github_is_signed() -> None:
    shown = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    keys = [key_of("github", "It's a Secret to Everybody")]
    assert signed(
        "github", keys, {b"x-hub-signature-256": shown.encode()}, b"Hello, World!", now_s=0, tolerance_s=1
    )


def test_the_example_of_standard_webhooks_is_signed() -> None:
    shown = {
        b"webhook-id": b"msg_p5jXN8AQM9LWM0D4loKWxJek",
        b"webhook-timestamp": b"1614265330",
        b"webhook-signature": b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    keys = [key_of("standard_webhooks", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    body = b'{"test": 2432232314}'
    assert signed("standard_webhooks", keys, shown, body, now_s=1614265330, tolerance_s=1)
    assert not signed("standard_webhooks", keys, shown, body, now_s=1614265999, tolerance_s=300)


@pytest.mark.parametrize("scheme", list(SECRETS))
@pytest.mark.anyio
async def test_signed_requests_are_stored_and_others_get_401(memory: InMemoryCluster, scheme: Scheme) -> None:
    settings = {"signature": scheme, "secrets": [SECRETS["standard_webhooks"], SECRETS[scheme]]}
    body = '{"a": "é"}'.encode()
    async with listening(memory, **settings) as (url, _, client), httpx.AsyncClient() as http:

        async def post(shown: dict[str, str], content: bytes = body) -> int:
            return (await http.post(url, content=content, headers=shown)).status_code

        assert await post(headers(scheme, body)) == 200
        assert await post(headers(scheme, body), body + b" ") == 401
        assert await post({}) == 401
        other = f"whsec_{base64.b64encode(b'another').decode()}"
        assert await post(headers(scheme, body, secret=other)) == 401
        if scheme != "github":
            assert await post(headers(scheme, body, age_s=1_000)) == 401
            assert await post(headers(scheme, body, age_s=-1_000)) == 401
        assert [message.payload for message in await messages(client)] == [body]


names = st.sampled_from(
    [b"x-hub-signature-256", b"stripe-signature", b"webhook-id", b"webhook-timestamp", b"webhook-signature"]
)


@given(scheme=st.sampled_from(list(SECRETS)), shown=st.dictionaries(names, st.binary(max_size=80)))
def test_nonsense_is_never_signed_and_never_an_error(scheme: Scheme, shown: dict[bytes, bytes]) -> None:
    keys = [key_of(scheme, SECRETS[scheme])]
    assert not signed(scheme, keys, shown, b"body", now_s=0, tolerance_s=86_400)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"signature": "github"}, r"needs secrets = "),
        ({"signature": "github", "secrets": [""]}, r"needs secrets = "),
        ({"secrets": ["x"]}, r"set signature"),
        ({"signature": "standard_webhooks", "secrets": ["whsec_!"]}, r"whsec_ and base64"),
        ({"signature": "gitlab", "secrets": ["x"]}, r"settings\.signature"),
    ],
)
def test_a_signature_without_its_secret_is_a_sentence(settings: dict[str, Any], words: str) -> None:
    tree = {
        "name": "w", "connector": "webhook-source", "topic": "hooks", "settings": {"listen": "127.0.0.1:0", **settings},
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match=words):
        declared(tree, path="w.toml").make()
