"""Documents are held to the tree: links resolve, generated pages are current, commands shown exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from pydanube_admin.registry import OPERATIONS

from tests.support.pages import FENCE, LINK, ROOT, pages, problem_of

DOCUMENTS = pages()
COMMAND = re.compile(
    r"(?:^|[|;&(]|\$\()\s*(?:\./)?danube((?: +(?:'[^']*'|\"[^\"]*\"|[^\s|;&)>#]+))*)", re.MULTILINE
)
INLINE = re.compile(r"`(?:\./)?danube ([^`]+)`")
MAKE = re.compile(r"(?:^|`)make ([a-z-]+)", re.MULTILINE)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_links_of_the_page_resolve(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if problem := problem_of(file, anchor):
            broken.append(f"{target}: {problem}")
    assert broken == []


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "tools/gen_docs.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_make_targets_named_by_the_page_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(MAKE.findall(page.read_text(encoding="utf-8"))) - {"sure"}
    assert named <= targets


def commands_of(text: str) -> list[list[str]]:
    """The danube command lines of a page's shell blocks and of its inline code, as words."""
    shell = "\n".join(body.replace("\\\n", " ") for language, body in FENCE.findall(text) if language == "sh")
    lines = COMMAND.findall("\n".join(line.split(" #")[0] for line in shell.splitlines()))
    lines += INLINE.findall(FENCE.sub("", text))
    return [words for line in lines if (words := shlex.split(line))]


HELPS = """
import contextlib, io, json, sys
from pydanube_cli.main import run
found = {}
for words in json.load(sys.stdin):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()):
        code = run([*words, "--help"])
    found[" ".join(words)] = shown.getvalue() if code == 0 else None
json.dump(found, sys.stdout)
"""


@cache
def helps() -> dict[str, str | None]:
    """What `danube WORDS --help` prints for all commands of all pages, by the words; None: there is no such command."""
    shown = [words for page in DOCUMENTS for words in commands_of(page.read_text(encoding="utf-8"))]
    done = subprocess.run(
        [sys.executable, "-c", HELPS],
        input=json.dumps([path_of(words) for words in shown if is_word(words[0])]),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={"PATH": "", "COLUMNS": "200", "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def path_of(words: list[str]) -> list[str]:
    """The words that name the command: a group and a verb, or one word."""
    groups = {operation.words[0] for operation in OPERATIONS.values()} | {
        "config",
        "report",
        "connect",
        "security",
        "tls",
    }
    return words[: 2 if words[0] in groups else 1]


def is_word(text: str) -> bool:
    return re.fullmatch(r"[a-z][a-z-]*", text) is not None


def check(words: list[str]) -> str | None:
    """What is wrong with a command line: an unknown command, or flags its help does not list."""
    if words[0].startswith("-"):
        return None  # danube --help, danube --version
    if not is_word(words[0]):
        return None  # a placeholder: danube COMMAND, danube GROUP VERB
    path = path_of(words)
    shown = helps()[" ".join(path)]
    if shown is None:
        return f"danube {' '.join(path)}: no such command"
    flags = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    missing = [flag for flag in flags if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", shown)]
    return f"danube {' '.join(path)}: its help does not list {missing}" if missing else None


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_commands_shown_by_the_page_exist_with_their_flags(page: Path) -> None:
    wrong = [problem for words in commands_of(page.read_text(encoding="utf-8")) if (problem := check(words))]
    assert wrong == []


def test_the_walk_is_seen_by_the_reader_of_commands() -> None:
    text = "```sh\n./danube produce 'a b' -f F --json | jq .x   # danube nonsense\ncurl $(./danube mcp --help)\n```\n`danube up`\n"
    assert commands_of(text) == [["produce", "a b", "-f", "F", "--json"], ["mcp", "--help"], ["up"]]


def test_every_page_stands_in_a_menu_of_the_site() -> None:
    menus = (ROOT / "deploy" / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    found = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in found if f": {page}\n" not in menus] == [], "give it a place in nav"
