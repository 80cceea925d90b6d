"""A setting does something, or its page says that it does not yet: no knob is documented that turns nothing."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
from pydanube_broker.settings.sections import Settings
from pydanube_core.failure_policy import POLICY_FIELDS

ROOT = Path(__file__).resolve().parents[2]


def without_effect() -> set[str]:
    """Sections and keys that docs/reference.md#settings calls without effect."""
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "tools" / "gen_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gen_docs"] = module
    spec.loader.exec_module(module)
    return set(module.WITHOUT_EFFECT)


def attributes_read() -> list[ast.Attribute]:
    """Attributes read by the programs that are given settings."""
    found: list[ast.Attribute] = []
    for folder in ("broker", "cli", "mcp_server"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if path.parent.name != "settings" and "settings" in source:
                found += [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return [node for node in found if isinstance(node.ctx, ast.Load)]


ATTRIBUTES = attributes_read()
# The table of failure policies names the settings that hold its defaults.
READ = {node.attr for node in ATTRIBUTES} | {field.setting for field in POLICY_FIELDS}
SECTIONS_READ = {
    node.attr for node in ATTRIBUTES if ast.unparse(node.value).rpartition(".")[2].endswith("settings")
}
# Sections that are handed on whole, as `settings.policies.model_dump()`: all their keys are read.
WHOLE = {
    node.value.attr
    for node in ATTRIBUTES
    if node.attr == "model_dump" and isinstance(node.value, ast.Attribute)
}
DECLARED = without_effect()
NAMES = [entry.name for entry in Settings().entries()]


@pytest.mark.parametrize("name", NAMES)
def test_setting_is_read_or_declared_without_effect(name: str) -> None:
    section, key = name.split(".")
    assert key in READ or section in WHOLE or {name, section} & DECLARED, (
        f"{name} is documented, but nothing reads it"
    )


def test_declarations_name_settings_that_exist() -> None:
    assert {name.split(".")[0] for name in NAMES} | set(NAMES) >= DECLARED


def test_sections_that_are_read_are_not_called_without_effect() -> None:
    assert "policies" in SECTIONS_READ
    assert not SECTIONS_READ & DECLARED
