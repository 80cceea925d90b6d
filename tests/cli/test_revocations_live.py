"""What is revoked at a real broker: web tokens, certificates, their streams; and when a token was used last."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from pydanube import Tls, connect
from pydanube.wire.ops_channel import OpsChannel
from pydanube_core.errors import Unauthenticated
from pydanube_core.ops_call import call_request

from tests.cli.test_locks_live import Locked, give, locked_broker
from tests.cli.test_tls_live import certificates

SECRET = "s" * 32
NOW = int(time.time())


def keys(path: Path) -> Mapping[str, str]:
    path.mkdir(parents=True, exist_ok=True)
    file = path / "keys.json"
    file.write_text(
        json.dumps({"keys": [{"kty": "oct", "k": "c3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3M"}]})
    )
    return {"auth.jwt_keys": str(file)}


def web_token(**claims: Any) -> str:
    return jwt.encode({"sub": "app", "exp": NOW + 3600, "iat": NOW - 60, "jti": "one", **claims}, SECRET)


async def operator(locked: Locked, name: str, **arguments: Any) -> dict[str, Any]:
    """A call over the socket of the machine."""
    channel = OpsChannel(f"unix:{locked.broker.data_dir.path.absolute()}/admin.sock")
    try:
        request = call_request(name, arguments, principal="", face="cli")
        found: dict[str, Any] = json.loads(await channel.call(request, timeout_s=30))
        return found
    finally:
        await channel.aclose()


async def test_one_web_token_is_revoked_by_its_id_with_its_streams_and_stays_so(tmp_path: Path) -> None:
    more = keys(tmp_path)
    async with locked_broker(tmp_path, **more) as locked:
        await give(locked, "app", "producer,consumer", "topic", "/default/app")
        url = locked.broker.broker_url
        async with connect(url, token=web_token()) as client:
            async with client.producer("app") as producer:
                await producer.send(b"hello")
            async with client.reader("app") as reader:
                assert (await anext(reader)).payload == b"hello"
                made = await operator(locked, "revocations.create", kind="jti", value="one", expires="1h")
                with pytest.raises(Unauthenticated):
                    async with asyncio.timeout(20):
                        await anext(reader)
    async with locked_broker(tmp_path, **more) as locked:  # after a restart
        locked.tokens |= {"one": web_token(), "two": web_token(jti="two")}
        assert await locked.code("one", "security.whoami", {}) == "UNAUTHENTICATED"
        assert await locked.code("two", "security.whoami", {}) == ""
        assert [each["revocation"] for each in (await operator(locked, "revocations.list"))["items"]] == [
            "jti:one"
        ]
        await operator(locked, "revocations.delete", revocation=made["revocation"])
        assert await locked.code("one", "security.whoami", {}) == ""


async def test_what_a_subject_was_issued_until_now_is_good_for_nothing(tmp_path: Path) -> None:
    async with locked_broker(tmp_path, **keys(tmp_path)) as locked:
        await operator(locked, "revocations.create", kind="subject", value="app", expires="1h")
        locked.tokens |= {
            "old": web_token(),
            "silent": jwt.encode({"sub": "app", "exp": NOW + 3600}, SECRET),
            "new": web_token(iat=time.time() + 1),
            "robot": web_token(principal_type="service_account"),
            "bob": web_token(sub="bob"),
        }
        codes = {who: await locked.code(who, "security.whoami", {}) for who in locked.tokens}
        assert codes == {
            "old": "UNAUTHENTICATED", "silent": "UNAUTHENTICATED", "new": "", "robot": "", "bob": ""
        }  # fmt: skip


async def test_revocations_that_are_over_are_forgotten_when_no_clock_can_be_so_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is deleted by a clock which ran ahead makes a leaked token good again."""
    async with locked_broker(tmp_path, **keys(tmp_path)) as locked:
        await operator(locked, "revocations.create", kind="jti", value="one", expires="1ms")
        await operator(locked, "revocations.create", kind="jti", value="two", expires="1h")
        assert [each["value"] for each in (await operator(locked, "revocations.list"))["items"]] == ["two"]

        async def kept() -> int:
            found = await locked.broker.admin_state.list(
                "security/revocations/", after=None, limit=9, descending=False
            )
            return len(found)

        assert await kept() == 2
        monkeypatch.setattr("pydanube_admin.operations.tokens.KEPT_OVER_MS", 0)
        await operator(locked, "revocations.create", kind="jti", value="three", expires="1h")
        assert await kept() == 2


async def test_a_certificate_is_revoked_by_its_serial_number(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "c")
    files = {"cert": "server.crt", "key": "server.key", "client_ca": "ca.crt"}
    more = {f"tls.{name}": str(folder.file(file)) for name, file in files.items()} | {
        "tls.client_auth": "optional"
    }
    ca, cert, key = (str(folder.file(file)) for file in ("ca.crt", "client.crt", "client.key"))
    tls = Tls(ca=ca, cert=cert, key=key)
    async with locked_broker(tmp_path, **more) as locked:
        await operator(locked, "bindings.create", binding="ann", principal="ann", roles="producer")
        async with connect(locked.broker.broker_url, tls=tls) as client, client.producer("t") as producer:
            await producer.send(b"hello")
            channel = OpsChannel(locked.broker.admin_url, tls=tls)
            try:
                request = call_request("security.whoami", {}, principal="", face="cli")
                known = json.loads(await channel.call(request, timeout_s=30))
                assert (known["principal"], known["method"]) == ("ann", "certificate")
                serial = ":".join(
                    known["credential"][i : i + 2] for i in range(0, len(known["credential"]), 2)
                )
                await operator(locked, "revocations.create", kind="certificate", value=serial.lower())
                with pytest.raises(Unauthenticated):  # the connection is there, and good for nothing
                    await channel.call(request, timeout_s=30)
            finally:
                await channel.aclose()
            with pytest.raises(Unauthenticated):
                await producer.send(b"no")


async def test_when_a_token_was_used_last_is_written_seldom_and_brings_nothing_back(tmp_path: Path) -> None:
    async with locked_broker(tmp_path) as locked:
        token_id = await give(locked, "app", "viewer")
        other = await give(locked, "other", "viewer")
        locks = locked.broker.locks
        assert locks is not None

        async def used() -> dict[str, str | None]:
            items = (await operator(locked, "tokens.list"))["items"]
            return {each["token_id"]: each["last_used_at"] for each in items}

        assert await used() == {token_id: None, other: None}
        await locked.code("app", "topics.list", {})
        await locks.last_used.write()
        first = await used()
        assert (first[token_id] is not None, first[other]) == (True, None)
        await locked.code("app", "topics.list", {})
        await locks.last_used.write()
        assert await used() == first  # not ten minutes yet
        await locked.code("other", "topics.list", {})
        await operator(locked, "tokens.revoke", token_id=other)
        await locks.last_used.write()
        assert set(await used()) == {token_id}
        assert set(locks.access_records.tokens) == {token_id}
