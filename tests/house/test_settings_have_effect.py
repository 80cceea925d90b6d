"""A setting does something, or its page says that it does not yet: no knob is documented that turns nothing."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
from pydanube_broker.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def without_effect() -> set[str]:
    """Sections and keys that docs/configuration.md calls without effect."""
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "tools" / "gen_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gen_docs"] = module
    spec.loader.exec_module(module)
    return set(module.WITHOUT_EFFECT)


def names_read() -> set[str]:
    """Attribute names read by the programs that are given settings, and option names held in texts there."""
    found: set[str] = set()
    for folder in ("broker", "cli", "mcp_server"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name.startswith("settings") or "settings" not in path.read_text(encoding="utf-8"):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add(node.attr)
    return found


READ = names_read()
DECLARED = without_effect()
NAMES = [entry.name for entry in Settings().entries()]


@pytest.mark.parametrize("name", NAMES)
def test_setting_is_read_or_declared_without_effect(name: str) -> None:
    section, key = name.split(".")
    assert key in READ or {name, section} & DECLARED, f"{name} is documented, but nothing reads it"


def test_declarations_name_settings_that_exist() -> None:
    assert {name.split(".")[0] for name in NAMES} | set(NAMES) >= DECLARED
