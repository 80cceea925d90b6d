"""Runbooks as skills: what a client loads is what the digests say, and names only what exists."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import Request, RequestParams, Result, TextResourceContents
from pydantic import ConfigDict
from pydanube_admin.registry import TOOLS
from pydanube_admin.runbooks import all as all_runbooks
from pydanube_mcp import build_server

pytestmark = pytest.mark.anyio


class Params(RequestParams):
    uri: str | None = None


class Asked(Request[Params, Any]):
    method: str
    params: Params


class Anything(Result):
    model_config = ConfigDict(extra="allow")


async def ask(client: Client, method: str, uri: str | None = None) -> dict[str, Any]:
    found = await client.session.send_request(Asked(method=method, params=Params(uri=uri)), Anything)
    return found.model_dump(mode="json", by_alias=True)


async def read(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return content.text


async def test_every_runbook_is_a_skill_whose_files_are_what_their_digests_say() -> None:
    async with build_server("http://127.0.0.1:1") as server, Client(server) as client:
        skills = (await ask(client, "skills/list"))["skills"]
        names = [skill["frontmatter"]["name"] for skill in skills]
        assert names == [name.replace("_", "-") for name in sorted(all_runbooks())]
        for skill in skills:
            assert (await ask(client, "skills/get", skill["uri"]))["skill"] == skill
            for each in skill["resources"]:
                content = (await read(client, each["uri"])).encode()
                assert each["digest"] == f"sha256:{sha256(content).hexdigest()}"
                assert each["size"] == len(content)
            front = (await read(client, skill["uri"])).split("---\n")[1]
            lines = dict(line.split(": ", 1) for line in front.splitlines())
            assert lines == skill["frontmatter"]


async def test_a_skill_names_tools_that_exist_and_keeps_its_parameters() -> None:
    async with build_server("http://127.0.0.1:1") as server, Client(server) as client:
        for skill in (await ask(client, "skills/list"))["skills"]:
            called = re.findall(r"Call ([a-z_]+)\(", await read(client, skill["uri"]))
            assert called, skill["uri"]
            assert set(called) <= set(TOOLS)
        lag = await read(client, "skill://diagnose-consumer-lag/SKILL.md")
        assert "get_consumer_lag(topic={topic}, subscription={subscription})" in lag


@pytest.mark.parametrize("method", ["skills/get", "resources/directory/read"])
async def test_a_skill_that_is_not_there_is_invalid_params(method: str) -> None:
    async with build_server("http://127.0.0.1:1") as server, Client(server) as client:
        for uri in ("skill://plan-capacities/SKILL.md", "skill://", "danube://topic/default/orders", ""):
            with pytest.raises(MCPError) as refused:
                await ask(client, method, uri)
            assert refused.value.error.code == -32602


async def test_a_folder_holds_its_files_and_folders() -> None:
    async with build_server("http://127.0.0.1:1") as server, Client(server) as client:
        held = (await ask(client, "resources/directory/read", "skill://plan-capacity"))["resources"]
        assert [(each["name"], each["mimeType"]) for each in held] == [
            ("plan-capacity", "text/markdown"),
            ("references", "inode/directory"),
        ]
        (data,) = (await ask(client, "resources/directory/read", held[1]["uri"]))["resources"]
        assert "[[steps]]" in await read(client, data["uri"])
