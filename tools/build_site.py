"""Build the documentation site into dist/site, strictly: a dead link or anchor, or a page that no menu has, ends it.

    python tools/build_site.py            what `make site` runs

The pages are those of docs/ and of the root. A link to a file that is no page stays as words with its path, since the
site has no sources beside it. The builder (extra `docs`) gets an environment of its own, .tools/site/venv.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WORK: Final = ROOT / ".tools" / "site"
PAGES: Final = WORK / "pages"
MENU: Final = ROOT / "deploy" / "site" / "mkdocs.yml"
OF_THE_ROOT: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "",
    "CHANGELOG.md": "",
    "CONTRIBUTING.md": "",
}
_PICTURE: Final = re.compile(r"!\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|mailto:)([^)\s#]*)(#[^)\s]*)?\)")
_SHORT: Final = 25  # characters: "Is it Danube?" says nothing of its page
WAYS_ON: Final = {
    "Quickstart": "quickstart.md",
    "Python": "python.md",
    "With an AI assistant": "ai-administration.md",
    "Operate": "operating.md",
    "Operations": "operations.md",
}
_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def places() -> dict[Path, Path]:
    """Page in the tree → page in the site's folder."""
    found = {page: page.relative_to(ROOT / "docs") for page in sorted((ROOT / "docs").rglob("*.md"))}
    return found | {ROOT / name: Path(place or name) for name, place in OF_THE_ROOT.items()}


def for_site(text: str, page: Path, known: dict[Path, Path]) -> str:
    """A page's text with its links as they are in the site."""

    def moved(link: re.Match[str]) -> str:
        words, target, anchor = link[1], link[2], link[3] or ""
        if not target:
            return link[0]
        file = (page.parent / target).resolve()
        if file in known:
            there = os.path.relpath(known[file], known[page].parent)
            return f"[{words}]({Path(there).as_posix()}{anchor})"
        if file.suffix in (".svg", ".png") and file.is_file():
            return link[0]
        path = file.relative_to(ROOT).as_posix()
        return words if path in words or words.strip("`") in path else f"{words} (`{path}`)"

    def shown(picture: re.Match[str]) -> str:
        file = (page.parent / picture[2]).resolve()
        there = os.path.relpath(file.relative_to(ROOT / "docs"), known[page].parent)
        return f"![{picture[1]}]({Path(there).as_posix()})"

    parts = _FENCE.split(text)
    return "".join(
        part if part.startswith("```") else _PICTURE.sub(shown, _LINK.sub(moved, part)) for part in parts
    )


def landing(text: str) -> str:
    """The first page: the README over the whole width, with the ways on below its first paragraph."""
    title, first, rest = text.split("\n\n", 2)
    buttons = "\n".join(
        f"[{words}]({place}){{ .md-button{' .md-button--primary' if at == 0 else ''} }}"
        for at, (words, place) in enumerate(WAYS_ON.items())
    )
    return f"---\nhide: [navigation, toc]\n---\n\n{title}\n\n{first}\n\n{buttons}\n\n{rest}"


def slug(text: str, separator: str) -> str:
    """An anchor as the repository's pages write it: that of GitHub."""
    kept = re.sub(r"[^\w\- ]", "", text.strip().lower())
    return kept.replace(" ", separator)


def gather() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    known = places()
    for page, place in known.items():
        (PAGES / place).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / place).write_text(for_site(page.read_text(encoding="utf-8"), page, known), encoding="utf-8")
    index = PAGES / "index.md"
    index.write_text(landing(index.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.copy(MENU.parent / "site.css", PAGES / "site.css")
    for picture in (ROOT / "docs").rglob("*.svg"):
        shutil.copy(picture, PAGES / picture.relative_to(ROOT / "docs"))
    (PAGES / "llms.txt").write_text(llms_txt(), encoding="utf-8")


def llms_txt() -> str:
    """Return the site's contents for models, in the form of https://llmstxt.org: the menu, each page with what it is about."""
    head, _, menu = MENU.read_text(encoding="utf-8").partition("\nnav:\n")
    said = dict(re.findall(r"^(site_\w+): (.+)$", head, re.MULTILINE))
    lines = [f"# {said['site_name']}", "", f"> {said['site_description']}"]
    for entry in menu.splitlines():
        name, _, place = entry.strip().removeprefix("- ").rpartition(": ")
        if not place.endswith(".md"):
            lines += ["", f"## {place.rstrip(':')}", ""]
            continue
        page = re.sub(r"^---\n.*?\n---\n+", "", (PAGES / place).read_text(encoding="utf-8"), flags=re.DOTALL)
        title = name or page.splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({Path(place).with_suffix('.html').as_posix()}): {first_sentence(page)}")
    return "\n".join(lines) + "\n"


def first_sentence(page: str) -> str:
    """Return the first sentence of a page, or the first ones if they are short, without marks and links."""
    for paragraph in page.split("\n\n"):
        text = " ".join(paragraph.split())
        if text and not text.startswith(("#", "```", "<", "|", "!", "[!")):
            plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).replace("**", "").replace("`", "")
            ends = [each.end() for each in re.finditer(r"[.?!](?=\s|$)", plain) if each.end() > _SHORT]
            return plain[: ends[0] if ends else None].rstrip(":")
    raise ValueError(f"a page without a sentence: {page[:80]!r}")


def builder() -> Path:
    """The interpreter that has the extra `docs`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"]["docs"]
    venv, stamp = WORK / "venv", WORK / "stamp"
    if not stamp.exists() or stamp.read_text() != repr(wanted):
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        install: list[str | Path] = [
            venv / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*install, *wanted], check=True)
        stamp.write_text(repr(wanted))
    return venv / "bin" / "python"


def main() -> int:
    WORK.mkdir(parents=True, exist_ok=True)
    gather()
    command: list[str | Path] = [
        builder(),
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "-f",
        "deploy/site/mkdocs.yml",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
