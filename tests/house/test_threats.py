"""Each threat and each attack that a page names has a test, and the test is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
THREATS = "## Threats, and the test for each"


def names_in(path: Path) -> set[str]:
    """Names of the tests in a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def threats() -> list[tuple[str, list[str]]]:
    """(what is threatened, its tests) of each line of the table."""
    text = (ROOT / "docs" / "research" / "attacks.md").read_text(encoding="utf-8")
    table = text.split(THREATS, 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]
    return [(row[0].strip(), re.findall(r"`(\w+)`", row[-1])) for row in rows]


def test_each_threat_names_a_test_that_is_there() -> None:
    there = set[str]().union(*(names_in(path) for path in (ROOT / "tests").rglob("test_*.py")))
    found = threats()
    assert len(found) > 20
    assert [threat for threat, tests in found if not tests] == []
    assert {
        threat: lost for threat, tests in found if (lost := [each for each in tests if each not in there])
    } == {}


@pytest.mark.parametrize("page", ["docs/research/attacks.md"])
def test_each_attack_names_tests_that_are_there(page: str) -> None:
    named = re.findall(r"(tests/[\w/]+\.py)::(test_\w+)", (ROOT / page).read_text(encoding="utf-8"))
    assert len(named) > 50
    assert [
        each for each in named if not (ROOT / each[0]).is_file() or each[1] not in names_in(ROOT / each[0])
    ] == []
