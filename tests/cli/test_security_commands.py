"""`danube security init|off|recover`: what they write counts from the next start."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydanube import Tls
from pydanube.admin import connect_admin
from pydanube.principal import default_principal
from pydanube_broker.admin_state import AdminState
from pydanube_broker.home.data_dir import DataDir
from pydanube_broker.settings.load import load_settings
from pydanube_broker.settings.values import SECURITY_FILE
from pydanube_cli.checks import security
from pydanube_cli.composition import administered
from pydanube_cli.fitness import Level
from pydanube_cli.main import run
from pydanube_core.errors import InsecureBind, Unauthenticated
from pydanube_core.facts import StateItem
from pydanube_core.security.records import LET_IN
from pydanube_storage.metadata import EmbeddedStore

from tests.support.broker_process import SMALL_SEGMENT_BYTES

PORTS = {f"server.{port}_port": 0 for port in ("grpc", "admin", "metrics", "http")}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def settings_of(data: Path, **more: object) -> Any:
    small = {"journal.segment_bytes": SMALL_SEGMENT_BYTES}
    return load_settings(None, {}, {"data.dir": str(data), **small, **PORTS, **more})


async def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = await asyncio.to_thread(run, ["security", *map(str, words), "--json"])  # it has a loop of its own
    shown = capsys.readouterr()
    # Beside the error there may be lines of the log, which in this process goes where other tests had it go.
    error = [line for line in shown.err.splitlines() if line.startswith('{"error"')]
    found: dict[str, Any] = json.loads(shown.out or error[-1])
    return code, found


async def whoami(data: Path, token: str | None, ca: str, **more: object) -> tuple[str, str]:
    async with administered(settings_of(data, **more)) as (broker, _):
        url = broker.admin_url.replace("0.0.0.0", "127.0.0.1")
        async with connect_admin(url, token=token, tls=Tls(ca=ca)) as admin:
            found = await admin.security.whoami()
    return found.principal, found.mode


async def test_init_turns_the_locks_on_and_off_takes_them_back(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InsecureBind):
        settings_of(data, **{"server.host": "0.0.0.0"}).check_startable()
    code, made = await command(capsys, "init", "--data-dir", data, "--dir", tmp_path / "keys")
    assert (code, made["principal"], sorted(made)) == (
        0,
        "admin",
        ["ca", "cert", "key", "principal", "token"],
    )
    assert await whoami(data, made["token"], made["ca"]) == ("admin", "required")
    with pytest.raises(Unauthenticated):
        await whoami(data, None, made["ca"])
    # a public address needs no --insecure-bind any more
    settings_of(data, **{"server.host": "0.0.0.0"}).check_startable()
    for more in ({"auth.mode": "optional"}, {"auth.mode": "off"}):
        with pytest.raises(InsecureBind):
            settings_of(data, **{"server.host": "0.0.0.0", **more}).check_startable()
    with pytest.raises(InsecureBind) as refused_bind:
        settings_of(data, **{"server.host": "0.0.0.0", "tls.admin": False}).check_startable()
    assert refused_bind.value.details["field"] == "tls.admin"
    async with administered(settings_of(data, **{"tls.admin": False})) as (broker, _):
        assert (broker.broker_url.split(":")[0], broker.admin_url.split(":")[0]) == ("https", "http")
        async with connect_admin(broker.admin_url, token=made["token"]) as admin:
            assert (await admin.security.whoami()).principal == "admin"
        async with connect_admin(broker.admin_url) as admin:
            with pytest.raises(Unauthenticated):
                await admin.security.whoami()
    assert settings_of(data).admin.compat_destructive is False
    assert (data / SECURITY_FILE).stat().st_mode & 0o777 == 0o600
    assert [each.level for each in security(settings_of(data))] == [Level.OK]  # 0700, see below
    assert made["token"] not in (data / SECURITY_FILE).read_text()

    code, refused = await command(capsys, "off", "--data-dir", data)
    assert (code, refused["error"]["code"]) == (4, "PLAN_REQUIRED")
    assert (await command(capsys, "off", "--data-dir", data, "--yes"))[0] == 0
    assert (settings_of(data).auth.mode, settings_of(data).tls.cert) == ("off", None)
    assert (await command(capsys, "off", "--data-dir", data, "--yes"))[0] == 2


def test_a_data_directory_that_others_may_read_is_said(data: Path) -> None:
    data.mkdir(0o700)
    for mode, level in ((0o700, Level.OK), (0o750, Level.WARNING), (0o704, Level.WARNING)):
        data.chmod(mode)
        [found] = security(settings_of(data, **{"auth.mode": "required"}))
        assert (found.level, f"chmod 700 {data}" in str(found.remedy)) == (level, level is Level.WARNING)
    assert [each.level for each in security(settings_of(data))] == [
        Level.OK
    ]  # whoever reaches the ports reads all


async def test_whoever_has_the_data_directory_lets_himself_in_again(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, refused = await command(capsys, "recover", "--data-dir", data)
    assert (code, refused["error"]["code"]) == (2, "INVALID_ARGUMENT")
    assert data.name not in os.listdir(tmp_path)
    _, made = await command(capsys, "init", "--data-dir", data, "--dir", tmp_path / "keys")
    async with administered(settings_of(data)):
        code, refused = await command(capsys, "recover", "--data-dir", data)
        assert refused["error"]["code"] == "DATA_DIR_LOCKED"
    code, again = await command(capsys, "recover", "--data-dir", data)
    assert code == 0
    principal, _ = await whoami(data, again["token"], made["ca"])
    assert principal == again["principal"]
    assert principal.startswith("recovered-")
    # each stands in the audit once, after as many starts as there were
    async with (
        administered(settings_of(data)) as (broker, _),
        connect_admin(broker.admin_url, token=again["token"], tls=Tls(ca=made["ca"])) as admin,
    ):
        every = (await admin.audit.query(filter="security.*")).items
        found = [each for each in every if each.face == "cli"]
        told = [(each.operation, each.arguments["principal"]) for each in found if each.phase == "outcome"]
        assert sorted(told) == [("security.init", "user:admin"), ("security.recover", f"user:{principal}")]
        assert {each.principal for each in found} == {default_principal({})}
        assert again["token"] not in str(found)


async def test_what_was_recorded_already_is_not_recorded_again(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker that is stopped after it recorded who was let in, but before it forgot the note."""
    _, made = await command(capsys, "init", "--data-dir", data, "--dir", tmp_path / "keys")

    async def notes() -> list[StateItem]:
        with DataDir(data, upgrade=False) as directory:
            async with EmbeddedStore(directory.path / "metadata.sqlite") as store:
                return await AdminState(store).list(LET_IN, after=None, limit=10, descending=False)

    [note] = await notes()
    assert await whoami(data, made["token"], made["ca"]) == ("admin", "required")
    assert await notes() == []
    with DataDir(data, upgrade=False) as directory:
        async with EmbeddedStore(directory.path / "metadata.sqlite") as store:
            await AdminState(store).write({note.key: note.value}, {})
    async with (
        administered(settings_of(data)) as (broker, _),
        connect_admin(broker.admin_url, token=made["token"], tls=Tls(ca=made["ca"])) as admin,
    ):
        every = (await admin.audit.query(filter="security.init")).items
    assert [each.phase for each in every] == ["outcome"]
    assert await notes() == []
