"""Count habits of hard prose in docstrings and comments, per 1 000 words.

Usage: prose.py [PATH ...] [--limit] [--finished]

PATH is a folder or a file. The default is each folder of the product, or with --finished each entry of `FINISHED`. For a
file, each hit is printed with its line. With --limit the exit status is 1 if a path exceeds a bound. A single hit in a
path is allowed, because a short file with one semicolon has no habit.

For comparison, the same counts in h11, anyio, httpx, mcp and pydantic: free relatives 0.1 to 0.5, say and tell 0 to 1.5,
ask 0 to 0.5, nobody 0 to 0.1, semicolons 0.6 to 7.9.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PRODUCT: Final = (
    "core", "storage", "broker", "client", "admin_core", "mcp_server", "tui", "cli", "spark_diagnostics", "connect",
)  # fmt: skip
# Folders and files within the bounds. Lint fails if one of them exceeds a bound.
FINISHED: Final = (
    "admin_core/pydanube_admin/arguments.py",
    "admin_core/pydanube_admin/cluster_wide_port.py",
    "admin_core/pydanube_admin/compat",
    "admin_core/pydanube_admin/core.py",
    "admin_core/pydanube_admin/engine",
    "admin_core/pydanube_admin/gone_owners.py",
    "admin_core/pydanube_admin/http.py",
    "admin_core/pydanube_admin/jsonrpc.py",
    "admin_core/pydanube_admin/operations/unused.py",
    "admin_core/pydanube_admin/peers.py",
    "admin_core/pydanube_admin/registry.py",
    "admin_core/pydanube_admin/remote.py",
    "admin_core/pydanube_admin/runbooks",
    "admin_core/pydanube_admin/wording",
    "broker/pydanube_broker/admin_state.py",
    "broker/pydanube_broker/broker.py",
    "broker/pydanube_broker/chain",
    "broker/pydanube_broker/cluster",
    "broker/pydanube_broker/copying",
    "broker/pydanube_broker/delivery",
    "broker/pydanube_broker/departure.py",
    "broker/pydanube_broker/home",
    "broker/pydanube_broker/journal",
    "broker/pydanube_broker/long_work.py",
    "broker/pydanube_broker/moves",
    "broker/pydanube_broker/observation",
    "broker/pydanube_broker/outcome.py",
    "broker/pydanube_broker/parts.py",
    "broker/pydanube_broker/port",
    "broker/pydanube_broker/ports.py",
    "broker/pydanube_broker/records",
    "broker/pydanube_broker/relay",
    "broker/pydanube_broker/rpc",
    "broker/pydanube_broker/schema",
    "broker/pydanube_broker/security",
    "broker/pydanube_broker/services",
    "broker/pydanube_broker/serving",
    "broker/pydanube_broker/settings",
    "broker/pydanube_broker/slices.py",
    "broker/pydanube_broker/software.py",
    "broker/pydanube_broker/status",
    "broker/pydanube_broker/subscription",
    "broker/pydanube_broker/telemetry",
    "broker/pydanube_broker/tenants",
    "broker/pydanube_broker/tier",
    "broker/pydanube_broker/topics",
    "broker/pydanube_broker/wall_clock.py",
    "broker/pydanube_broker/worker_threads.py",
    "cli/pydanube_cli",
    "client/pydanube",
    "core/pydanube_core",
    "mcp_server",
    "spark_diagnostics/pydanube_spark",
    "storage/pydanube_storage",
    "tui/pydanube_tui",
)


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


def count(root: Path) -> Count:
    """Count the habits of a folder or a file. For a file, print each hit. Generated code is skipped."""
    words, hits = 0, dict.fromkeys(HABITS, 0)
    for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
        if "generated" in path.parts:
            continue
        for line, text in texts(path):
            words += len(text.split())
            for name, habit in HABITS.items():
                found = re.findall(habit.pattern, text)
                hits[name] += len(found)
                if found and root.is_file():
                    print(f"{path}:{line}: {name}: {', '.join(found)}")
    return Count(words, hits)


def main(arguments: list[str]) -> int:
    flags = {each for each in arguments if each.startswith("--")}
    if flags - {"--limit", "--finished"}:
        print(__doc__, file=sys.stderr)
        return 2
    named = [Path(each) for each in arguments if each not in flags]
    paths = named or [ROOT / each for each in (FINISHED if "--finished" in flags else PRODUCT)]
    missing = [path for path in paths if not path.exists()]
    if missing:
        print(
            f"{missing[0]} does not exist: correct FINISHED in tools/prose.py, or the path", file=sys.stderr
        )
        return 2
    counts = {str(path).removeprefix(f"{ROOT}/"): count(path) for path in paths}
    total = {name: sum(each.hits[name] for each in counts.values()) for name in HABITS}
    rows = counts | {"all": Count(sum(each.words for each in counts.values()), total)}
    print(f"{'per 1 000 words':56}{'words':>8}" + "".join(f"{name:>26}" for name in HABITS))
    for title, each in rows.items():
        print(f"{title:56}{each.words:>8}" + "".join(f"{each.rate(name):>26.1f}" for name in HABITS))
    over = [f"{title}: {name}" for title, each in counts.items() for name in each.exceeded()]
    for line in over:
        print(f"above the bound: {line}", file=sys.stderr)
    return 1 if over and "--limit" in flags else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
