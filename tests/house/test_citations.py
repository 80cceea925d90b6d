"""What code, tests, tools and pages cite exists in this repository: every page, every anchor.

A citation is written `docs/page.md` or `docs/page.md#anchor`, from the root of the repository. Names of papers that
are not here (the design notes this project began with) are refused, so that no reader is sent after one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import FENCE, LINK, ROOT, anchors, problem_of

READ = {".py", ".pyi", ".proto", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".rs", ".json", ""}
SKIP = ("core/pydanube_core/generated/", "tests/data/", "tests/conformance/official/rust/Cargo.lock")
MENUS = "deploy/site/mkdocs.yml"  # its paths begin in docs/; the build of the site holds them
MAX_BYTES = 1 << 20  # nothing we write by hand is larger

CITATION = re.compile(r"(?<![\w/.])(docs/[\w./-]+\.md)(?:#([\w-]+))?")
TEST = re.compile(r"(tests/[\w/.-]+\.py)::(\w+)")
THIS = Path(__file__).relative_to(ROOT).as_posix()  # quotes what it refuses
# A page by its name alone, or the notes from before the repository had pages.
OUTSIDE = re.compile(
    r"\b(?:DESIGN|INTERFACE|STYLE)\b(?! =)|\bchapter 27\b|\.\./shared\b|(?<!docs/)\bwire/[\w-]+\.md|\bbroker-behaviour\b",
)


def tracked() -> Iterator[tuple[str, str]]:
    """Path and text of every file that git knows or will know, without what is generated."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a checkout: the list of files is git's")
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if not name or path.suffix not in READ or name.startswith(SKIP) or not path.is_file():
            continue
        if path.stat().st_size <= MAX_BYTES:
            yield name, path.read_text(encoding="utf-8", errors="replace")


def citations(text: str) -> list[tuple[str, str]]:
    return [(found[1], found[2] or "") for found in CITATION.finditer(text)]


def outside(name: str, text: str) -> list[str]:
    """What a file cites that is not in the repository. Links between pages are relative and tested as links."""
    plain = LINK.sub("", text) if name.endswith(".md") else text
    return [found[0] for found in OUTSIDE.finditer(plain)]


def test_cited_pages_and_anchors_exist() -> None:
    wrong = [
        f"{name}: {page}#{anchor}: {problem}"
        for name, text in tracked()
        if name != THIS
        for page, anchor in citations(text)
        if (problem := problem_of(ROOT / page, anchor))
    ]
    assert wrong == []


def test_cited_tests_exist() -> None:
    wrong = [
        f"{name}: {path}::{test}"
        for name, text in tracked()
        if name.endswith(".md")
        for path, test in TEST.findall(text)
        if not (ROOT / path).is_file()
        or not re.search(rf"^\s*(?:async )?def {test}\(", (ROOT / path).read_text(encoding="utf-8"), re.M)
    ]
    assert wrong == []


def test_nothing_outside_the_repository_is_cited() -> None:
    wrong = [
        f"{name}: {word}"
        for name, text in tracked()
        if name not in (THIS, MENUS, "CHANGELOG.md")
        for word in outside(name, text)
    ]
    assert wrong == []


def test_citations_are_read_with_and_without_anchor() -> None:
    text = "see docs/style.md, docs/research/behaviours.md#row-9, and (docs/research/data-plane.md#11-package). x/docs/no.md"
    assert citations(text) == [
        ("docs/style.md", ""),
        ("docs/research/behaviours.md", "row-9"),
        ("docs/research/data-plane.md", "11-package"),
    ]


@pytest.mark.parametrize(
    "text",
    ["(DESIGN 4)", "INTERFACE chapter 5", "Row 3 of chapter 27", "../shared/x", "wire/data-plane.md 8"],
)
def test_notes_from_outside_are_seen(text: str) -> None:
    assert outside("a.py", text)


def test_links_between_pages_are_no_citations_from_outside() -> None:
    assert outside("docs/x.md", "[data plane](wire/data-plane.md#8-consumers)") == []
    assert outside("a.py", "docs/research/data-plane.md#8-consumers") == []


def test_rows_of_the_catalogue_have_anchors() -> None:
    rows = {name for name in anchors(ROOT / "docs/research/behaviours.md") if name.startswith("row-")}
    assert rows == {f"row-{number}" for number in range(1, 37)}


def test_blocks_of_code_are_no_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '# One `two`\n\n```sh\n# not a heading\n```\n\n| <a id="row-1"></a>1 |\n', encoding="utf-8"
    )
    assert anchors(page) == {"one-two", "row-1"}
    assert FENCE.findall(page.read_text(encoding="utf-8")) == [("sh", "# not a heading\n")]
