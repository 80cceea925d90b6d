"""How often tests reach for what the product keeps to itself: less each time, never more."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

CEILING = 73  # it only falls; `pytest -s` shows where they are
# Of the standard library, which has no other name for them.
OF_PYTHON = {"_asdict", "_exit", "_fields", "_getframe", "_replace", "_run_exitfuncs", "_shutdown"}


def uses_of_private_names(source: str) -> list[str]:
    """Names that are somebody else's: attributes of anything but `self` that no class of the file has itself, imports, patches."""
    tree = ast.parse(source)
    own = set(OF_PYTHON)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and _of_itself(node) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not _of_itself(node):
            found.append(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pydanube"):
            found += [each.name for each in node.names]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "setattr"
        ):
            found += [str(each.value) for each in node.args[1:2] if isinstance(each, ast.Constant)]
    return [name for name in found if _is_private(name.rpartition(".")[2]) and name not in own]


def _of_itself(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_private_names_of_the_product_are_used_ever_less(root: Path) -> None:
    found = Counter(
        {
            path.relative_to(root).as_posix(): len(uses_of_private_names(path.read_text(encoding="utf-8")))
            for path in (root / "tests").rglob("*.py")
        }
    )
    print(*(f"{count:4} {name}" for name, count in found.most_common() if count), sep="\n")
    assert found.total() <= CEILING, "go by a public face, or give what a test needs a public name"
    assert found.total() > CEILING - 5, f"lower CEILING to {found.total()}"


def test_a_private_name_of_another_is_counted_and_one_s_own_is_not() -> None:
    source = """
from pydanube.producer import _LIMIT, Producer

class Own:
    def __init__(self) -> None:
        self._mine = 1

def test(monkeypatch, producer: Producer) -> None:
    monkeypatch.setattr(producer, "_window", 1)
    assert producer._lanes[0]._replace() and Own()._mine
"""
    assert uses_of_private_names(source) == ["_LIMIT", "_window", "_lanes"]
