"""`danube mcp --print-config --transport http` prints the address of the broker that is named."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube_cli.command import Common
from pydanube_cli.mcp import McpOptions, _print_config
from pydanube_core.errors import Conflict


def common(admin: str | None) -> Common:
    return Common(as_json=False, timeout_s=1.0, timeout_given=False, broker=None, admin=admin, principal=None)


@pytest.mark.parametrize(
    ("admin", "port", "printed"),
    [
        (None, None, "http://127.0.0.1:8765/mcp"),
        (None, 9000, "http://127.0.0.1:9000/mcp"),
        ("http://127.0.0.1:55051", None, "http://127.0.0.1:13765/mcp"),
        ("http://127.0.0.1:55051", 9000, "http://127.0.0.1:9000/mcp"),
    ],
)
def test_a_named_broker_has_its_own_address(
    admin: str | None,
    port: int | None,
    printed: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status: dict[str, Any] = {"listen": {"http": "http://127.0.0.1:13765"}}
    monkeypatch.setattr(Common, "call", lambda *_, **__: status)
    options = McpOptions(transport="http", print_config="claude-code", http_port=port)
    _print_config(options, common(admin))
    assert capsys.readouterr().out.split()[-1] == printed


def test_a_broker_without_mcp_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Common, "call", lambda *_, **__: {"listen": {}})
    options = McpOptions(transport="http", print_config="claude-code")
    with pytest.raises(Conflict, match="serves no MCP over HTTP"):
        _print_config(options, common("http://127.0.0.1:55051"))
