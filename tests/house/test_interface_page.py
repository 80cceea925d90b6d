"""docs/interface.md is held to the code: operations with their tools, and the SDK's keywords."""

from __future__ import annotations

import re

from pydanube import ConsumerOptions, ProducerOptions, ReaderOptions
from pydanube_admin.registry import OPERATIONS

from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "interface.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def operations_of_the_page() -> dict[str, str]:
    """Operation -> MCP tool, from the table of section 6; a verb alone is of the group before it."""
    found: dict[str, str] = {}
    for line in section("6. Operations").splitlines():
        if not line.startswith("| `"):
            continue
        left, _, right = line.split(" | ")[0].partition(" → ")
        tools = iter(re.findall(r"`(\w+)`", right))
        group = ""
        for name in re.findall(r"`([\w.]+)`", left):
            before, _, verb = name.rpartition(".")
            group = before or group
            found[f"{group}.{verb}"] = next(tools)
        assert next(tools, None) is None, line
    return found


def test_operations_are_those_of_the_registry() -> None:
    shown = operations_of_the_page()
    assert len(shown) > 60
    assert shown == {name: op.tool for name, op in OPERATIONS.items()}


def test_keywords_of_the_sdk_exist_or_are_planned() -> None:
    text = section("10. Python SDK")
    planned = set(re.findall(r"`(\w+)=", text.partition("Planned of the above:")[2].split("\n\n", 1)[0]))
    for call, options in (
        ("client.producer", ProducerOptions),
        ("client.consumer", ConsumerOptions),
        ("client.reader", ReaderOptions),
    ):
        arguments = text.split(f"{call}(", 1)[1].split(") as ", 1)[0]
        named = set(re.findall(r"(\w+)=", arguments))
        assert named, call
        assert named - planned <= set(options.__dataclass_fields__), call
