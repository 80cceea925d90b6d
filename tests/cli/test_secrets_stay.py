"""Secrets are put in everywhere that takes one, and where none belongs; then every answer, log and file is searched."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from pydanube_admin.registry import OPERATIONS

from tests.cli.lock_tables import TOPIC
from tests.cli.test_audit_export_live import on_the_machine
from tests.cli.test_locks_live import META, Locked, give, locked_broker

pytestmark = pytest.mark.anyio
JWT_SECRET = "a-secret-of-thirty-two-characters"
IN_A_URL = "hunter2-in-a-url"
BASIC = base64.b64encode(b"ann:basic-password").decode()


async def answers(locked: Locked, who: str) -> list[str]:
    """What every operation that reads answers, and the pages."""
    reads = {name: each for name, each in OPERATIONS.items() if each.effect.value == "read"}
    found = [
        await outcome(locked, who, name, dict(each.examples[0].arguments))
        for name, each in reads.items()
        if each.group != "reports"
    ]
    headers = {"authorization": f"Bearer {locked.tokens[who]}"}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as web:
        pages = [f"{locked.broker.metrics_url}/{path}" for path in ("status", "metrics", "readyz")]
        found += [(await web.get(page, headers=headers)).text for page in pages]
    return found


async def outcome(locked: Locked, who: str, operation: str, arguments: dict[str, Any]) -> str:
    try:
        return json.dumps(await locked.call(who, operation, **arguments))
    except Exception as error:  # what is said where it fails counts as well
        return f"{error!r} {getattr(error, 'details', '')}"


async def over_http(locked: Locked, misplaced: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """The same calls by JSON-RPC and as tools of MCP, with the token also where headers and URLs have no place for it."""
    secret = locked.tokens["admin"]
    about = {**META, "io.modelcontextprotocol/clientInfo": {"name": f"client {secret}", "version": secret}}
    wrong = {
        "danube-principal": secret,
        "user-agent": secret,
        "mcp-session-id": secret,
        "x-danube-relayed": secret,
        "origin": f"http://{secret}",
    }
    async with httpx.AsyncClient(trust_env=False, timeout=60) as web:
        for operation, arguments in misplaced:
            tool = OPERATIONS[operation].tool if operation in OPERATIONS else operation
            bearer = {"authorization": f"Bearer {secret}", "accept": "application/json, text/event-stream"}
            mcp = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
            call = {"name": tool, "arguments": arguments, "_meta": about}
            await web.post(f"{locked.http}/mcp", headers=bearer | mcp, json=_asked("tools/call", call))
            await web.post(f"{locked.http}/rpc", headers=bearer, json=_asked(operation, arguments))
        for name, value in wrong.items():
            for path in ("rpc", "mcp", f"rpc?access_token={secret}", secret):
                await web.post(
                    f"{locked.http}/{path}", headers=bearer | {name: value}, json=_asked(secret, {})
                )
            await web.get(f"{locked.broker.metrics_url}/{secret}", headers={name: value})


def _asked(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def test_no_secret_is_in_an_answer_a_log_or_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pydanube")
    key = base64.urlsafe_b64encode(JWT_SECRET.encode()).decode().rstrip("=")
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"kty": "oct", "alg": "HS256", "kid": "k", "k": key}]}))
    claims = {"sub": "web", "iss": "us", "aud": "danube", "exp": 4_000_000_000}
    web_token = jwt.encode(claims, JWT_SECRET, algorithm="HS256", headers={"kid": "k"})
    forged = jwt.encode(claims, JWT_SECRET[::-1], algorithm="HS256", headers={"kid": "k"})
    more = {"auth.jwt_keys": str(keys), "auth.issuer": "us", "auth.audience": "danube"}
    async with locked_broker(tmp_path / "broker", **more) as locked:
        token_id = await give(locked, "admin", "admin")
        locked.tokens |= {"web": web_token, "forged": forged, "wrong": locked.tokens["admin"][:-2] + "xx"}
        assert (await locked.call("web", "security.whoami"))["principal"] == "web"
        rotated = await locked.call("admin", "tokens.rotate", token_id=token_id, overlap="1h")
        locked.tokens["rotated"] = rotated["token"]
        for who in ("forged", "wrong", "web"):
            await locked.code(who, "topics.list", {})
        async with httpx.AsyncClient(trust_env=False, timeout=60) as web:
            for shown in (f"Basic {BASIC}", f"Bearer {locked.tokens['wrong']}", f"Bearer {forged} {forged}"):
                said = await web.post(f"{locked.http}/rpc", json={}, headers={"authorization": shown})
                assert (said.status_code, shown.split()[1] in said.text) == (401, False)
        # where none belongs: names, patterns, messages of others, values in URLs
        secret = locked.tokens["admin"]
        misplaced: tuple[tuple[str, dict[str, Any]], ...] = (
            ("topics.describe", {"topic": secret}),
            ("topics.list", {"filter": secret}),
            ("tokens.revoke", {"token_id": secret}),
            ("security.explain", {"principal": secret, "operation": "topics.list"}),
            ("objects.export", {"topic": TOPIC, "to": f"s3://key:{IN_A_URL}@bucket/x"}),
            ("schemas.register", {"subject": "s", "schema_type": "json_schema", "schema_definition": secret}),
            ("plans.create", {"operation": "topics.create", "arguments": {"topic": f"/shop/{secret} x"}}),
            ("operations.read", {"operation": "topics.describe", "arguments": {"topic": f"/shop/{secret}"}}),
            ("changes.undo", {"call_id": secret}),
            ("topics.list", {secret: secret}),
            ("no.such", {"authorization": f"Bearer {secret}", "password": IN_A_URL}),
        )
        for operation, arguments in misplaced:
            await outcome(locked, "admin", operation, arguments)
        await over_http(locked, misplaced)
        exported = tmp_path / "broker" / "audit.jsonl"
        assert (await on_the_machine(locked, "audit.export", to=str(exported)))["records"] > 20
        shown_texts = await answers(locked, "rotated")
    secrets = [token.split("_", 2)[2] for token in locked.tokens.values() if token.startswith("danube_")]
    secrets += [web_token.rpartition(".")[2], forged.rpartition(".")[2], JWT_SECRET, key, IN_A_URL, BASIC]
    files = [file for file in (tmp_path / "broker").rglob("*") if file.is_file()]
    assert len(shown_texts) > 40
    assert any("journal" in file.parts for file in files)
    for secret in secrets:
        assert not [text[:200] for text in shown_texts if secret in text]
        assert not [record.getMessage() for record in caplog.records if secret in str(record.__dict__)]
        assert not [file for file in files if secret.encode() in file.read_bytes()]
