"""`danube mcp --conformance`: the suite's fixtures in a clone, a plain word where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp import Client
from pydanube_core.errors import NotImplementedYet
from pydanube_mcp import build_server, server

pytestmark = pytest.mark.anyio


async def test_in_a_clone_the_fixtures_are_served_beside_our_tools() -> None:
    async with build_server("http://127.0.0.1:1", conformance=True) as served, Client(served) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        told = await client.call_tool("test_simple_text", {})
    assert {
        "test_simple_text",
        "test_input_required_result_multi_round",
        "slow_compute",
        "list_topics",
    } <= names
    assert not told.is_error


def test_elsewhere_it_says_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "__file__", str(tmp_path / "lib" / "pydanube_mcp" / "server.py"))
    with pytest.raises(NotImplementedYet, match="in a clone"):
        build_server("http://127.0.0.1:1", conformance=True)
