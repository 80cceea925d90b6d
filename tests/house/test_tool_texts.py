"""tools/tool_texts.py finds what it is for, and nothing in the tools as they are."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydanube_admin.registry import OPERATIONS, TOOLS
from pydanube_admin.wording.guides import GUIDES


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "tools" / "tool_texts.py"
    spec = importlib.util.spec_from_file_location("tool_texts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tools_as_they_are_pass(checker: ModuleType) -> None:
    assert list(checker.problems()) == []


def test_each_tool_has_a_guide() -> None:
    assert GUIDES.keys() == OPERATIONS.keys()


@pytest.mark.parametrize(
    ("operation", "facts", "said"),
    [
        ("topics.list", {"summary": "List topics."}, None),
        ("topics.list", {"summary": "List topics, unlike find_topics."}, "find_topics is no tool"),
        ("topics.truncate", {"reversible": True}, "can be undone, and says that it cannot"),
        ("topics.list", {"summary": "Delete topics."}, "claims a change"),
    ],
)
def test_a_contradiction_is_found(
    checker: ModuleType, operation: str, facts: dict[str, Any], said: str | None
) -> None:
    declared = OPERATIONS[operation]
    if facts.pop("reversible", False):
        facts["undo"] = OPERATIONS["topics.delete"].undo
    found = list(checker.of_tool(replace(declared, **facts)))
    assert found == [] if said is None else any(said in each for each in found)


def test_an_argument_without_unit_or_default_is_found(
    checker: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "size": {"type": "integer", "description": "How large", "default": 3},
            "name": {"type": "string", "description": "A name"},
            "bare": {"type": "string"},
            "kind": {"type": "string", "default": "a", "description": "default b"},
        },
    }
    monkeypatch.setattr(checker, "small_input", lambda _: schema)
    monkeypatch.setattr(type(TOOLS["list_topics"]), "input_schema", property(lambda _: schema))
    found = list(checker.of_arguments(TOOLS["list_topics"]))
    assert [each.split()[0] for each in found] == ["size", "name", "bare", "kind"]
