"""`danube objects list --format paths|glob|sql`: what other tools open.

`paths` is exact at any moment: only listed objects are the topic. `glob` is one pattern for each folder, for tools that
take no list; while a compaction's sources are still there it matches them too (docs/operating.md#the-cold-tier). `sql` is all those
patterns as one list of texts, for `read_parquet(…)`: a topic with partitions has several folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

_PAGE: Final = 1000

Ask = Callable[[dict[str, Any]], dict[str, Any]]


def all_paths(ask: Ask, arguments: Mapping[str, Any]) -> list[str]:
    """Every path of the list, in its order; pages are followed, unless the caller asked for one."""
    given = dict(arguments)
    follow = "limit" not in given and "page" not in given
    if follow:
        given["limit"] = _PAGE
    found: list[str] = []
    while True:
        page = ask(given)
        found += [item["path"] for item in page["items"]]
        if not follow or page["next_page"] is None:
            return found
        given["page"] = page["next_page"]


def lines_of(paths: list[str], form: str) -> list[str]:
    """The lines of a format: paths as they are, a glob a folder, or the globs as one SQL list."""
    if form == "paths":
        return paths
    folders = dict.fromkeys(path.rpartition("/")[0] for path in paths)
    globs = [f"{folder}/*.parquet" for folder in folders]
    if form == "sql" and globs:
        quoted = ("'" + glob.replace("'", "''") + "'" for glob in globs)
        return [f"[{', '.join(quoted)}]"]
    return globs
