"""The documentation site: built strictly, and strict means that a dead link or anchor ends it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tools.build_site import PAGES, ROOT, builder, for_site, gather, places, slug

pytestmark = pytest.mark.timeout(600)  # the builder is installed at its first use


def build(out: Path) -> subprocess.CompletedProcess[str]:
    words = [
        str(builder()),
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        "deploy/site/mkdocs.yml",
        "-d",
        str(out),
    ]
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)}
    )


def test_the_site_is_built_without_a_dead_link(tmp_path: Path) -> None:
    gather()
    done = build(tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "reference.html").is_file()
    assert (tmp_path / "site" / "search" / "search_index.json").stat().st_size > 100_000
    page = (tmp_path / "site" / "index.html").read_text()
    assert "fonts.googleapis.com" not in page, "nothing is fetched from elsewhere"


def test_every_picture_of_the_site_is_there(tmp_path: Path) -> None:
    gather()
    site = tmp_path / "site"
    assert build(site).returncode == 0
    pictures = {
        (page.relative_to(site), picture)
        for page in site.rglob("*.html")
        for picture in re.findall(r'<img[^>]* src="([^"]+)"', page.read_text(encoding="utf-8"))
    }
    assert (Path("index.html"), "first-hour.svg") in pictures
    assert [each for each in pictures if not (site / each[0].parent / each[1]).is_file()] == []


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](concepts.md#nothing-of-that-name)"])
def test_a_dead_link_ends_the_build(link: str, tmp_path: Path) -> None:
    gather()
    page = PAGES / "quickstart.md"
    page.write_text(page.read_text() + f"\n{link}\n")
    done = build(tmp_path / "site")
    assert done.returncode != 0
    assert "quickstart.md" in done.stdout + done.stderr


def test_models_find_every_page_of_the_menu_with_what_it_is_about() -> None:
    gather()
    lines = (PAGES / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# pydanube"
    assert lines[2].startswith("> A Danube messaging cluster")
    entries = [
        re.fullmatch(r"- \[(.+)\]\((.+)\.html\): (.+)", line) for line in lines if line.startswith("- ")
    ]
    assert {f"{entry[2]}.md" for entry in entries if entry} == {str(place) for place in places().values()}
    assert all(entry and len(entry[3]) > 15 for entry in entries), lines
    assert (
        "- [Another region](links.html): A link mirrors topics of another cluster here, at the same offsets"
        in "\n".join(lines)
    )


def test_links_lead_to_pages_and_files_that_are_none_stay_words() -> None:
    known = places()
    page = ROOT / "docs" / "research" / "grpc-server.md"
    text = "[i](../interface.md#6-operations) [r](../../README.md) [`tests/conftest.py`](../../tests/conftest.py)\n"
    assert (
        for_site(text, page, known)
        == "[i](../interface.md#6-operations) [r](../index.md) `tests/conftest.py`\n"
    )
    assert for_site("```sh\n[x](y.md)\n```\n", page, known) == "```sh\n[x](y.md)\n```\n"


def test_anchors_are_those_of_the_repository() -> None:
    assert slug("5. Errors and exit codes", "-") == "5-errors-and-exit-codes"
