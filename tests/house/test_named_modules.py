"""Modules and members that docstrings and comments name in backticks exist, so that moving one shows who speaks of it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from pydanube_admin.registry import OPERATIONS
from pydanube_broker.settings.sections import sections

from tests.support.pages import ROOT

SOURCES = ("core", "storage", "broker", "client", "admin_core", "mcp_server", "cli")
DOTTED = re.compile(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`")
WORD = re.compile(r"`(\w+)`")


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of all our modules but protoc's."""
    found = {}
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            parts = path.relative_to(ROOT / source).with_suffix("").parts
            if "generated" not in parts:
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def names_in(tree: ast.Module) -> set[str]:
    """Every name that a module uses or defines."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.alias(name=name, asname=asname):
                found.add(asname or name.rpartition(".")[2])
    return found


def test_modules_named_in_prose_exist() -> None:
    by_ending: dict[str, set[str]] = defaultdict(set)  # `tier.cold_reads` is an ending of its dotted name
    for module in modules():
        parts = module.split(".")
        for at in range(len(parts)):
            by_ending[".".join(parts[at:])].add(module)
    names = {
        module: names_in(ast.parse(path.read_text(encoding="utf-8"))) for module, path in modules().items()
    }
    ours = {module.split(".")[0] for module in modules()}
    ours |= {module.split(".")[1] for module in modules() if module.count(".") > 1}
    settings = {f"{name}.{key}" for name, model in sections().items() for key in model.model_fields}
    no_modules = {
        *OPERATIONS,
        *settings,
        "rpc.discover",
        "schema.proto",
        "cluster.json",
        "admin.sock",
        "security.toml",
    }

    def exists(words: list[str]) -> bool:
        if ".".join(words) in by_ending:
            return True
        return any(
            words[at] in names[module]
            for at in range(1, len(words))
            for module in by_ending.get(".".join(words[:at]), ())
        )

    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules().values()
        for name in DOTTED.findall(path.read_text(encoding="utf-8"))
        if name.split(".")[0] in ours and name not in no_modules and not exists(name.split("."))
    ]
    assert wrong == []


def test_the_official_services_say_what_they_have() -> None:
    path = modules()["pydanube_broker.services.official"]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    siblings = {one.stem for one in path.parent.glob("*.py")}
    said = set(WORD.findall(ast.get_docstring(tree) or "")) - {"danube"}
    assert len(said) > 5
    assert said <= names_in(tree) | siblings
