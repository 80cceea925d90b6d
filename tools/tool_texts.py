"""Check what the MCP tools say of themselves, by rules that need no reader. Part of `make lint`.

    tools/tool_texts.py            check, and print the tokens of both profiles
    tools/tool_texts.py --write F  write the tools of both profiles as JSON, for `tdqs lint --file F`

The rules are those of stage 1 of TDQS (https://tdqs.dev, 1.2), and ours for units and defaults:

- each tool has a description that is more than its name, and names another tool that it is not;
- each argument has a description; a number names its unit; one that may be left out says what holds without it;
- nothing contradicts the annotations: what destroys or ends for good says so, what reads claims no change,
  a named tool or operation exists, a default in words is the default of the schema.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import Operation
from pydanube_admin.registry import OPERATIONS, TOOLS
from pydanube_admin.wording.guides import GUIDES
from pydanube_mcp.clusters import Clusters
from pydanube_mcp.profiles import Profile, small_input
from pydanube_mcp.tools import tool_list

#: of the profile `default` and of a tool in the full one, in tokens of four bytes
MOST_IN_DEFAULT: Final = 4_000
MOST_A_TOOL: Final = 110
_UNIT: Final = re.compile(
    r"messages|bytes|items|offset|number|version|latest|lines|rows|redeliver|0: |partitions|moves|letters|_ms$|_s$"
    r"|records|operations|sections",
    re.IGNORECASE,
)
_WITHOUT: Final = re.compile(
    r"^(only|also|glob)\b|without|default: |if left out|in place of|none\b|next_page|falling|first items|empty:"
    r"|to be sure|^a sentence|of the plan|only show|task_id|optional|mark of|what (comes|is not named) stays",
    re.IGNORECASE,
)
_STAYS: Final = re.compile(r"not (given|named) stays?\b")
_NAMED: Final = re.compile(r"\b[a-z]+(?:_[a-z]+)*\.[a-z_]+\b|\b[a-z]+(?:_[a-z]+)+\b")
_UNDO: Final = re.compile(
    r"undo_change|undone|back by|may connect again|valid again|next step", re.IGNORECASE
)


def problems() -> Iterator[str]:
    """Yield what is wrong, with the tool's name in front."""
    for name in sorted(GUIDES.keys() - OPERATIONS.keys()):
        yield f"guides.toml: there is no operation {name}"
    for operation in TOOLS.values():
        for text in (*of_tool(operation), *of_arguments(operation)):
            yield f"{operation.tool}: {text}"
    for profile, found, most in measures():
        if found > most:
            yield f"profile {profile}: {found:.0f} tokens, more than {most}"


def of_tool(operation: Operation) -> Iterator[str]:
    text = operation.description
    plain = re.sub(r"\W+", " ", text).strip().casefold()
    if plain in (operation.title.casefold(), operation.tool.replace("_", " ")):
        yield "the description repeats the name"
    arguments = operation.input_schema["properties"]
    fields = operation.result.model_fields
    named = set(_NAMED.findall(text))
    others = {each for each in named if each in TOOLS or each in OPERATIONS} - {
        operation.tool,
        operation.name,
    }
    if not others and not {"undo_change"} & others:
        yield "the description names no other tool"
    for each in named - others - {operation.tool, operation.name}:
        is_page = each.endswith(".md") or each == "danube.ops"
        if each not in arguments and each not in fields and not is_page and each not in _WORDS:
            yield f"{each} is no tool, operation, argument or field"
    ends = operation.can_destroy or operation.ends
    if ends and operation.reversible is False and not _UNDO.search(text):
        yield "it destroys or ends something, and does not say that it cannot be undone"
    if (
        operation.reversible is False
        and re.search(r"undo_change", text)
        and operation.name not in _ABOUT_UNDO
    ):
        yield "it cannot be undone, and names undo_change"
    if operation.reversible and "Cannot be undone" in text:
        yield "it can be undone, and says that it cannot"
    if operation.effect is Effect.READ and re.match(r"(Create|Delete|Set|Move|Remove)\b", text):
        yield "it only reads, and claims a change"


#: words with a dot or a line that name no tool: fields of settings and of answers
_WORDS: Final = frozenset({"balance.max_moves", "undo_until", "max_bytes", "include_closed"})
_ABOUT_UNDO: Final = frozenset({"plans.apply", "plans.discard", "tasks.cancel", "changes.undo"})


def of_arguments(operation: Operation) -> Iterator[str]:
    schema = small_input(operation)
    full = operation.input_schema["properties"]
    required = schema.get("required", [])
    stays = _STAYS.search(operation.summary) is not None
    for name, argument in schema["properties"].items():
        said = argument.get("description", "")
        if not said:
            yield f"{name} has no description"
            continue
        if argument["type"] == "integer" and not _UNIT.search(f"{said} {name}"):
            yield f"{name} names no unit: {said!r}"
        default: Any = full[name].get("default")
        if name not in required and default is None and not stays and not _WITHOUT.search(said):
            yield f"{name} does not say what holds without it: {said!r}"
        in_words = re.search(r"\bdefault (\S+)", said)
        if in_words and default is not None and str(default) != in_words.group(1).strip(".,;"):
            yield f"{name} names another default than {default!r}: {said!r}"


def measures() -> Iterator[tuple[str, float, float]]:
    """Yield (profile, tokens that a model sees, tokens that it may)."""
    for profile in Profile:
        tools = visible(profile)
        most = MOST_IN_DEFAULT if profile is Profile.DEFAULT else MOST_A_TOOL * len(tools)
        yield profile.value, tokens(tools), most


def visible(profile: Profile) -> list[Mapping[str, Any]]:
    """Return what hosts show a model: names, descriptions and arguments."""
    clusters = Clusters({"default": "http://127.0.0.1:1"}, timeout_s=1.0, principal=None)
    listed = tool_list(profile, read_only=False, clusters=clusters)
    return [
        {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
        for tool in listed
    ]


def tokens(value: Any) -> float:
    """Return bytes divided by four."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()) / 4


def main() -> int:
    if sys.argv[1:2] == ["--write"]:
        clusters = Clusters({"default": "http://127.0.0.1:1"}, timeout_s=1.0, principal=None)
        tools = tool_list(Profile(sys.argv[3]), read_only=False, clusters=clusters)
        dumped = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
        Path(sys.argv[2]).write_text(json.dumps({"tools": dumped}))
        return 0
    found = list(problems())
    print("\n".join(found))
    for profile, seen, most in measures():
        print(f"{profile}: {seen:.0f} of {most:.0f} tokens")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
