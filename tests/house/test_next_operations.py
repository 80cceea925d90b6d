"""Advice names operations that exist, with their own tools: every literal one in the code is looked up."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pydanube_admin.registry import OPERATIONS

from tests.support.pages import ROOT

PACKAGES = (
    "core",
    "storage",
    "broker",
    "client",
    "admin_core",
    "mcp_server",
    "tui",
    "cli",
    "spark_diagnostics",
)


def literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def calls() -> Iterator[tuple[str, str, dict[str, ast.expr]]]:
    """Where, the operation and the keywords of each call that makes a next step out of a literal name."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "generated" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                keywords = {word.arg: word.value for word in node.keywords if word.arg}
                given = {"suggest": node.args[:1], "next_call": node.args[:1]}.get(name or "", [])
                operation = literal(keywords.get("operation") if name == "NextCall" else (given or [None])[0])
                if operation is not None:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", operation, keywords


def test_every_next_operation_exists_and_has_that_tool() -> None:
    found = list(calls())
    assert len(found) > 30, "the calls are called otherwise now"
    for where, operation, keywords in found:
        assert operation in OPERATIONS, f"{where}: there is no operation {operation}"
        tool = literal(keywords.get("tool"))
        assert tool in (None, OPERATIONS[operation].tool), f"{where}: {operation} is the tool {tool}?"
        words = operation.replace(".", " ").replace("_", "-")
        command = keywords.get("command")
        if isinstance(command, ast.JoinedStr):
            assert (literal(command.values[0]) or "").startswith(f"danube {words}"), where
        elif (line := literal(command)) is not None:
            assert line.startswith(f"danube {words}"), where
