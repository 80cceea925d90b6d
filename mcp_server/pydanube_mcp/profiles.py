"""Profiles of tools: those that a model has to read, with schemas reduced to the caller's needs.

A model reads every byte here again with every turn of a conversation. So the input schemas have names, types,
choices, defaults and one short text an argument. The admin core checks lengths and unexpected arguments, and
its errors describe valid values. A description is the operation's summary and its guide: which other tool
serves the neighbouring question, the limits, and how a change is taken back. Both profiles reach everything: `find_operations`, `read_operation`,
`plan_operation` and `apply_plan` reach the operations that `default` does not list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import Operation
from pydanube_admin.registry import TOOLS
from pydanube_core.errors import InvalidArgument
from pydanube_core.spelling import close_names, shown


class Profile(StrEnum):
    DEFAULT = "default"  # the needs of most conversations, to keep a model's context small
    FULL = "full"


CLUSTER: Final = "cluster"  # the argument that names one of several
_CHECKED_BEHIND: Final = frozenset(
    {"additionalProperties", "minLength", "maxLength", "pattern", "propertyNames"}
)
# Valid in a call, but in no schema: those of lists that are refreshed again and again, of which the
# instructions name `changed_since`, and the condition by which a command of diagnosis ends. In every schema
# they would cost a model 400 tokens each time
FOR_PROGRAMS: Final = frozenset({"changed_since", "mark", "gone", "whole_because", "fail_on", "passed"})
# Taken, and not listed: in the instructions, and `plan_operation` does the same
_PLAN_ONLY: Final = "plan_only"
_AS_ANOTHER: Final = "As set_"  # of the same set of tools, so that both are listed or none
_PLAN_TOKEN: Final = "plan_token"
_WHY: Final = "why"
_MANY: Final = 1_000  # an error names a bound of this size in time
_SHORTER: Final = (
    ("time:2026-01-31T12:00:00Z, time:-15m", "time:-15m"),
    ("Field of the items, optional", "A field, optional"),
    ("Without it, the", "Without: the"),
    ("Only of this ", "Only this "),
    ("a length before now", "24h ago"),
    (" (exit 6)", ""),  # of the command line
    (" The command line writes a path of its own machine itself", ""),
    (", or a bare name in /default", ""),  # in the instructions
    (" (24h), or a time (2026-01-31T12:00:00Z)", ", or a time"),  # the same
    ("next_page of the answer before", "next_page as it came"),
    ("Id of the ", "Id of a "),
)
_SHORT: Final = 58  # characters of a summary; more of them would cost more than 110 tokens a tool
# Valid in every list, and in the instructions. Only tools of the default profile list them
_OF_LISTS: Final = frozenset({"limit", "sort", "top", "filter"})
# Of other tools, and their default is nearly always right: `find_operations` has them
_SELDOM: Final = frozenset(
    {
        "backoff_strategy",
        "base_redelivery_delay_ms",
        "compare",
        "created_by",
        "detach",
        "enable_payload_validation",
        "from_seq",
        "json_profile",
        "keep",
        "max_bytes",
        "max_moves",
        "max_redelivery_delay_ms",
        "principal_type",
        "rows",
        "tags",
        "transitive",
    }
)


#: sets of tools, listed beside those of the profile, by the groups of operations that are in them
TOOLSETS: Final[Mapping[str, frozenset[str]]] = {
    "topics": frozenset({"topics", "namespaces", "producers"}),
    "subscriptions": frozenset({"subscriptions", "consumers", "dead_letters"}),
    "schemas": frozenset({"schemas"}),
    "brokers": frozenset({"brokers", "cluster", "journal", "objects", "reports"}),
    "messages": frozenset({"messages"}),
    "security": frozenset({"security", "roles", "bindings", "tokens", "audit", "faces"}),
    "connectors": frozenset({"connectors"}),
    "docs": frozenset({"docs"}),
    "links": frozenset({"links"}),
}
#: groups that no profile lists, because few conversations are about them. Their set does, and the general tools reach them
BY_SET_ONLY: Final = frozenset({"connectors", "docs", "links"})


def parse_toolsets(text: str | None, *, field: str = "mcp.toolsets") -> frozenset[str]:
    """Return the groups of operations that the named sets hold.

    Args:
        field: where the text stands, for the error.

    Raises:
        InvalidArgument: there is no such set. The error lists the sets.
    """
    named = [each.strip() for each in (text or "").split(",") if each.strip()]
    for each in named:
        if each not in TOOLSETS:
            close = close_names(each, TOOLSETS)
            raise InvalidArgument(
                f"{field}: there is no set {shown(each)!r}. Write some of {', '.join(TOOLSETS)}",
                field=field,
                value=shown(each),
                allowed=list(TOOLSETS),
                did_you_mean=close,
            )
    return frozenset().union(*(TOOLSETS[each] for each in named))


def is_listed(
    operation: Operation, profile: Profile, *, read_only: bool, groups: frozenset[str] = frozenset()
) -> bool:
    """Return whether a server lists an operation's tool. `groups`: listed completely, beside the profile."""
    if read_only and operation.effect is not Effect.READ:
        return False
    listed = profile is Profile.FULL and operation.group not in BY_SET_ONLY
    return listed or operation.default_profile or operation.group in groups


def small_input(operation: Operation) -> dict[str, Any]:
    """Return the arguments' schema, as short as possible."""
    schema = operation.input_schema
    properties = {
        name: _small(each)
        for name, each in schema["properties"].items()
        if name not in FOR_PROGRAMS and name != _PLAN_ONLY and not _not_needed(operation, name)
    }
    _say_names_once(properties)
    required = schema.get("required")
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def found_input(operation: Operation) -> dict[str, Any]:
    """Return the arguments' schema of a found operation for the general tools, which take tokens and `why` themselves."""
    schema = operation.input_schema
    left_out = {*FOR_PROGRAMS, *({_PLAN_ONLY, _PLAN_TOKEN, _WHY} - operation.request_names)}
    properties = {name: _small(each) for name, each in schema["properties"].items() if name not in left_out}
    required = schema.get("required")
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def _not_needed(operation: Operation, name: str) -> bool:
    """Return whether an argument can be left out of the schema.

    These are tokens, which `apply_plan` takes as well, and in the many tools outside the default profile the
    arguments that the instructions describe for all (`why`, those of lists) and those that are seldom needed.
    """
    if name == "top":
        return bool(operation.identity)
    if name in _SELDOM or name == _WHY or (name in _OF_LISTS and operation.identity):
        return not operation.default_profile
    return name == _PLAN_TOKEN and name not in operation.request_names


def _say_names_once(properties: dict[str, Any]) -> None:
    """Leave out names of keys that an earlier argument, or another tool of the set, lists already."""
    known: list[Any] = []
    for each in properties.values():
        names = each.get("propertyNames")
        if names in known or each.get("description", "").startswith(_AS_ANOTHER):
            each.pop("propertyNames", None)
        elif names is not None:
            known.append(names)


def _small(schema: Mapping[str, Any]) -> dict[str, Any]:
    small = {
        key: value
        for key, value in schema.items()
        # Names of a map's keys replace its pattern: without them a model could not write one.
        if key not in _CHECKED_BEHIND or (key == "propertyNames" and "enum" in value)
    }
    if small.get("default") is False or small.get("default") == "":
        del small["default"]
    if small.get("minimum") in (0, 1):
        del small["minimum"]
    if small.get("maximum", 0) >= _MANY:
        del small["maximum"]
    if "description" in small:
        for words in _SHORTER:
            small["description"] = small["description"].replace(*words)
    within = small.get("items")
    if isinstance(within, Mapping):
        small["items"] = _small(within)
    return small


def description_of(operation: Operation) -> str:
    """Return the text that a model reads about a tool: its effect, and the tool for the neighbouring question.

    A read outside the default profile is its summary: `find_operations` has the rest. If the summary is short, the first
    neighbour stands behind it, since a few words do not tell such tools apart.
    """
    if operation.effect is not Effect.READ or operation.default_profile:
        return operation.description
    guide = operation.description.removeprefix(operation.summary)
    if len(operation.summary) > _SHORT or not guide:
        return operation.summary
    return f"{operation.summary}{re.split(r'; |[.] ', guide)[0].rstrip('.')}."


def explain(name: str, profile: Profile, *, read_only: bool) -> str:
    """Return why a server lists a tool or not, with a remedy."""
    by_tool = TOOLS.get(name) or next((each for each in TOOLS.values() if each.name == name), None)
    if by_tool is None:
        close = close_names(name.replace(".", "_"), TOOLS)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        return f"There is no tool {shown(name)!r}.{hint}"
    what = f"{by_tool.tool} ({by_tool.name}, {by_tool.effect.value})"
    if read_only and by_tool.effect is not Effect.READ:
        return f"{what} is not listed: the server was started with --read-only, and it is no read. Start it without."
    if is_listed(by_tool, profile, read_only=read_only):
        return f"{what} is listed."
    in_set = by_tool.group in BY_SET_ONLY
    more = f"--toolsets {by_tool.group}" if in_set else "--profile full"
    how = (
        "call read_operation with its name"
        if by_tool.effect is Effect.READ
        else "call plan_operation with its name, then apply_plan"
    )
    return f"{what} is not in the profile {profile.value}: {how}, or start the server with {more}."


def reachable(value: Any, profile: Profile) -> Any:
    """Return a result or error whose `next` calls use only tools that the profile lists.

    Hosts refuse a tool that is not in the list, so a step that names one would be a dead end.
    """
    if isinstance(value, list):
        return [reachable(each, profile) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: [_step(each, profile) for each in inner]
        if key == "next" and _is_steps(inner)
        else reachable(inner, profile)
        for key, inner in value.items()
    }


def _is_steps(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) and "operation" in each for each in value)


def _step(step: dict[str, Any], profile: Profile) -> dict[str, Any]:
    operation = TOOLS.get(step.get("tool") or "")
    arguments = dict(step.get("arguments") or {})
    is_shown = operation is not None and is_listed(operation, profile, read_only=False)
    if operation is None or (is_shown and _PLAN_TOKEN not in arguments):
        return step
    # The cluster is an argument of the called tool, not of the operation that it names.
    where = {CLUSTER: arguments.pop(CLUSTER)} if CLUSTER in arguments else {}
    token = arguments.pop("plan_token", "")
    if token:
        return step | {"tool": "apply_plan", "arguments": {**where, "plan_token": token}}
    arguments.pop("plan_only", None)
    general = "read_operation" if operation.effect is Effect.READ else "plan_operation"
    if operation.plans_itself or general not in TOOLS:
        return step
    call = {**where, "operation": operation.name, "arguments": arguments}
    fenced = step.get("untrusted", {}).get("arguments")
    if fenced is None:
        return step | {"tool": general, "arguments": call}
    # Of the call that is made: put in place of its arguments, the fenced ones make it whole.
    untrusted = step["untrusted"] | {"arguments": {"arguments": arguments | fenced}}
    return step | {"tool": general, "arguments": call, "untrusted": untrusted}
