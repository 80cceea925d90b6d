"""Count habits of hard prose in docstrings and comments, in strings, and in pages, per 1 000 words.

Usage: prose.py [PATH ...] [--strings] [--limit]

PATH is a folder or a file, by default the folders of the product. Each folder below it is counted by itself. For a file,
each hit is printed with its line. Of Python files the docstrings and comments are counted. With --strings the strings of
four words or more are counted in their place: errors, findings, help, log events. A path that ends in .md is a page, and
its text is counted without code.

With --limit only the folders and files above a bound are printed, and the exit status is 1 if there is one. A single hit
is allowed, because a short file with one semicolon has no habit. Without PATH, --limit counts all docstrings and comments,
and the pages and the rooms' strings that are listed in PAGES and STRINGS, which `make lint` holds.

For comparison, the same counts in h11, anyio, httpx, mcp and pydantic: free relatives 0.1 to 0.5, say and tell 0 to 1.5,
ask 0 to 0.5, nobody 0 to 0.1, semicolons 0.6 to 7.9.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PRODUCT: Final = (
    "core", "storage", "broker", "client", "admin_core", "mcp_server", "tui", "cli", "spark_diagnostics", "connect",
)  # fmt: skip
# Pages and rooms whose text is held to the bounds.
PAGES: Final = (
    "ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/administration.md", "docs/ai-clients.md", "docs/cluster-metadata.md", "docs/cluster.md",
    "docs/concepts.md", "docs/connect.md", "docs/connectors.md", "docs/console.md", "docs/data-formats.md", "docs/delivery.md", "docs/design.md", "docs/faq.md",
    "docs/interface.md", "docs/javascript.md", "docs/links.md", "docs/operating.md", "docs/cold-tier.md", "docs/backup.md", "docs/operations.md",
    "docs/permissions.md", "docs/python.md", "docs/quickstart.md", "docs/reference.md", "docs/security.md", "docs/spark.md", "docs/upgrading.md",
)  # fmt: skip
STRINGS: Final = (
    "admin_core", "broker", "cli", "client", "connect", "core", "mcp_server", "spark_diagnostics",
    "storage", "tui",
)  # fmt: skip


class Habit(NamedTuple):
    pattern: str
    bound: float  # hits per 1 000 words


HABITS: Final = {
    "free relatives": Habit(
        r"\b[Ww]hat(?:ever)? (?:is|was|has|had|it|they|the|a|an|there|came|comes|goes|went|others|somebody|nobody|one|each"
        r"|was|may|must|can|cannot|could|would|will|does|did|of|such)\b|\b[Ww]hoever\b"
        r"|\b[Ww]ho (?:has|does|is|was|asks|calls|would|makes|names|may|waits|knows)\b",
        1.0,
    ),
    "ask, say, tell, know": Habit(
        r"\b(?:ask(?:s|ed|ing)?|says?|said|saying|tells?|told|telling|knows?|known|hears?)\b", 1.5
    ),
    "nobody, somebody": Habit(r"\b(?:nobody|somebody|anybody|everybody)\b", 0.2),
    "semicolons": Habit(r";", 8.0),
    "meanwhile, anew, at once": Habit(r"\b(?:meanwhile|anew|at once|by itself|by themselves)\b", 1.0),
}
# A style sheet, a script or a policy of a browser in a string, which is no prose
CODE: Final = re.compile(r";\s*\}|;;|; (?:then|do|fi|done)\b|-src '|;\n|&\w+;|=\w+;")
DIRECTIVES: Final = ("# fmt", "# type", "# noqa", "#!")


class Count(NamedTuple):
    """The counts of a path: words, and hits by habit."""

    words: int
    hits: dict[str, int]

    def rate(self, habit: str) -> float:
        """Return the hits per 1 000 words."""
        return 1000 * self.hits[habit] / max(self.words, 1)

    def exceeded(self) -> list[str]:
        """Return the habits above their bounds."""
        return [
            name for name, habit in HABITS.items() if self.hits[name] > 1 and self.rate(name) > habit.bound
        ]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring and comment of a file."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(DIRECTIVES):
            yield token.start[0], token.string


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string of four words or more that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):  # a docstring
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, (ast.Constant, ast.JoinedStr)):
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        else:
            text = node.value if isinstance(node.value, str) else ""
        if len(text.split()) >= 4 and not CODE.search(text):
            yield node.lineno, text


def page(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a page, without code and comments."""
    text = path.read_text(encoding="utf-8")
    for pattern in (r"^( *)```.*?^\1```", r"<!--.*?-->", r"``.+?``", r"`[^`]*`", r"\]\([^)]*\)", r"&\w+;"):
        text = re.sub(pattern, _blank, text, flags=re.DOTALL | re.MULTILINE)
    yield from enumerate(text.splitlines(), start=1)


def _blank(found: re.Match[str]) -> str:
    """Return a word and the line ends of what was found."""
    return "X" + "\n" * found.group().count("\n")


def count(root: Path, read: Callable[[Path], Iterable[tuple[int, str]]], *, shown: bool) -> Count:
    """Count the habits of a file, or of the files in a folder. Print each hit if `shown`. Generated code is skipped."""
    words, hits = 0, dict.fromkeys(HABITS, 0)
    for path in [root] if root.is_file() else sorted(root.glob("*.py")):
        if "generated" in path.parts:
            continue
        for line, text in read(path):
            words += len(text.split())
            for name, habit in HABITS.items():
                found = re.findall(habit.pattern, text)
                hits[name] += len(found)
                if found and shown:
                    print(f"{path}:{line}: {name}: {', '.join(found)}")
    return Count(words, hits)


def rooms(path: Path) -> Iterator[Path]:
    """Yield the file itself, or the folder and those below it that hold Python files of their own."""
    if path.is_file():
        yield path
    else:
        yield from sorted({each.parent for each in path.rglob("*.py")})


def main(arguments: list[str]) -> int:
    flags = {each for each in arguments if each.startswith("--")}
    if flags - {"--limit", "--strings"}:
        print(__doc__, file=sys.stderr)
        return 2
    named = [Path(each) for each in arguments if each not in flags]
    paths = named or [ROOT / each for each in PRODUCT]
    missing = [path for path in paths if not path.exists()]
    if missing:
        print(f"{missing[0]} does not exist", file=sys.stderr)
        return 2
    read = strings if "--strings" in flags else texts
    counts = {
        str(room).removeprefix(f"{ROOT}/"): count(
            room, page if room.suffix == ".md" else read, shown=path.is_file() and "--limit" not in flags
        )
        for path in paths
        for room in rooms(path)
    }
    if "--limit" in flags and not named:
        counts |= {name: count(ROOT / name, page, shown=False) for name in PAGES}
        counts |= {
            f"strings of {str(room).removeprefix(f'{ROOT}/')}": count(room, strings, shown=False)
            for name in STRINGS
            for room in rooms(ROOT / name)
        }
    over = [f"{title}: {name}" for title, each in counts.items() for name in each.exceeded()]
    if "--limit" in flags:
        for line in over:
            print(f"above the bound: {line}", file=sys.stderr)
        return 1 if over else 0
    total = {name: sum(each.hits[name] for each in counts.values()) for name in HABITS}
    rows = counts | {"all": Count(sum(each.words for each in counts.values()), total)}
    print(f"{'per 1 000 words':56}{'words':>8}" + "".join(f"{name:>26}" for name in HABITS))
    for title, each in rows.items():
        print(f"{title:56}{each.words:>8}" + "".join(f"{each.rate(name):>26.1f}" for name in HABITS))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
