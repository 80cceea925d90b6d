"""ARCHITECTURE.md is held to the code: its tables, its arrows, and every function its walks name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache

import pytest

from tests.house.test_import_rules import DIRECTION, Import, root_of
from tests.house.test_import_rules import imports as imports
from tests.house.test_import_rules import modules as modules
from tests.support.pages import ROOT

PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`: \S", re.MULTILINE)
NUMBERED = re.compile(r"^\d+\. .*$", re.MULTILINE)
PATH = re.compile(
    r"`((?:core|storage|broker|client|admin_core|mcp_server|cli|tests|tools)/[\w/]*(?:\.\w+)?)`"
)
FOLDER = re.compile(r"^\| `(\w+)/` \| `(\w+)` \|", re.MULTILINE)
ARROW = re.compile(r"^(\w+) +-> (.+)$", re.MULTILINE)
ROOM = re.compile(r"^\| `(\w+)` \| ", re.MULTILINE)


def section(title: str) -> str:
    """The text under a heading, up to the next one of its rank or above."""
    rank = len(title.split(" ")[0])
    return re.split(rf"^#{{1,{rank}}} ", PAGE.split(f"{title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


WALKS = re.findall(r"^## Walk \d: .+$", PAGE, re.MULTILINE)


@cache
def definitions(path: str) -> frozenset[str]:
    """Functions and classes of a module, those inside classes with the class before them."""
    found: set[str] = set()

    def note(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                note(node.body, f"{prefix}{node.name}.")

    note(ast.parse((ROOT / path).read_text(encoding="utf-8")).body, "")
    return frozenset(found)


def test_three_walks_are_told() -> None:
    assert len(WALKS) == 3


@pytest.mark.parametrize("walk", WALKS)
def test_every_step_names_a_function_that_exists(walk: str) -> None:
    text = section(walk)
    steps = STEP.findall(text)
    assert len(steps) == len(NUMBERED.findall(text)) >= 10, "each step: `file.py` `Function`: one line"
    wrong = [
        f"{path} {name}"
        for path, name in steps
        if not (ROOT / path).is_file() or name not in definitions(path)
    ]
    assert wrong == []


@pytest.mark.parametrize(("walk", "most"), zip(WALKS, (20, 20, 15), strict=True))
def test_a_walk_has_few_modules_and_comes_back_to_none_for_long(walk: str, most: int) -> None:
    visits = Counter(path for path, _ in STEP.findall(section(walk)))
    assert len(visits) <= most
    assert [path for path, times in visits.items() if times > 3] == []


def test_files_and_folders_named_by_the_page_exist() -> None:
    named = set(PATH.findall(PAGE))
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_arrows_of_the_page_are_the_rules() -> None:
    package = dict(FOLDER.findall(section("## The house")))
    assert set(package.values()) == set(DIRECTION)
    drawn = {
        package[folder]: {package[one] for one in re.findall(r"\w+", below) if one in package}
        for folder, below in ARROW.findall(section("## Permitted imports"))
    }
    assert drawn == DIRECTION


def test_rooms_of_the_broker_stand_in_the_order_of_the_page(imports: list[Import]) -> None:
    rooms = ROOM.findall(section("### Rooms of the broker"))
    base = ROOT / "broker" / "pydanube_broker"
    assert set(rooms) == {path.parent.name for path in base.glob("*/__init__.py")}

    def rank(module: str) -> int | None:
        parts = module.split(".")
        return rooms.index(parts[1]) if len(parts) > 1 and parts[1] in rooms else None

    wrong = [
        str(found)
        for found in imports
        if root_of(found.importer) == root_of(found.imported) == "pydanube_broker"
        and (above := rank(found.importer)) is not None
        and (below := rank(found.imported)) is not None
        and below > above
    ]
    assert wrong == []


def test_words_of_the_glossary_are_in_order_and_said_once() -> None:
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").partition("## Words of the code\n")[2]
    words = re.findall(r"^\| ([^|]+?) \| ", text, re.MULTILINE)[1:]
    words = [word for word in words if set(word) != {"-"}]
    assert words == sorted(set(words), key=str.casefold)
    assert len(words) > 30
