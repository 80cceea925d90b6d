"""The operations as MCP tools.

Everything comes from the registry. All four annotations are always set, because the protocol's defaults are
the pessimistic ones and clients act on them. Results and errors are structured. Their text is the same JSON,
for clients that read only text.

With authorization on, only the tools that the caller has permissions for are listed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio
from mcp.types import Tool, ToolAnnotations
from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import Operation
from pydanube_admin.engine.permission import may_use
from pydanube_admin.registry import OPERATIONS, TOOLS
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.spelling import close_names, shown

from pydanube_mcp.charts import TOOL_META
from pydanube_mcp.clusters import Clusters
from pydanube_mcp.narrowing import EVERYTHING, Narrowing
from pydanube_mcp.profiles import CLUSTER, Profile, description_of, explain, is_listed, small_input

_FIND: Final = "find_operations"
_WORDS: Final = re.compile(r"[A-Za-z][A-Za-z_]{1,40}\Z")
_MOST_CLUSTERS: Final = 3  # that are proposed
_MOST_CHARS: Final = 300  # of a call that is proposed


def tool_list(
    profile: Profile,
    *,
    read_only: bool,
    clusters: Clusters,
    groups: frozenset[str] = frozenset(),
    narrowing: Narrowing = EVERYTHING,
) -> list[Tool]:
    """Return the tools to list, by name: always the same bytes, so that prompt caches work.

    An address with sets of tools lists these sets whole, in place of the profile's.
    """
    reads = read_only or narrowing.read_only or not clusters.writable
    return [
        _tool(operation, clusters)
        for operation in TOOLS.values()
        if narrowing.has(operation)
        and is_listed(operation, profile, read_only=reads, groups=narrowing.groups or groups)
    ]


def _tool(operation: Operation, clusters: Clusters) -> Tool:
    return Tool(
        name=operation.tool,
        title=operation.title,
        description=description_of(operation),
        input_schema=_input_schema(operation, clusters),
        annotations=ToolAnnotations(
            read_only_hint=operation.effect is Effect.READ,
            destructive_hint=operation.can_destroy or operation.ends,
            idempotent_hint=operation.idempotent,
            open_world_hint=False,
        ),
        _meta=dict(TOOL_META[operation.name]) if operation.name in TOOL_META else None,
    )


def _input_schema(operation: Operation, clusters: Clusters) -> dict[str, Any]:
    schema = small_input(operation)
    if not clusters.several:
        return schema
    names = clusters.names if operation.effect is Effect.READ else clusters.writable
    cluster = {"type": "string", "enum": list(names), "description": "Which cluster"}
    return schema | {
        "properties": {CLUSTER: cluster, **schema["properties"]},
        "required": [CLUSTER, *schema.get("required", ())],
    }


def answer_schema(operation: Operation) -> dict[str, Any]:
    """Return the schema of a tool's structured content: the result, its plan or task, or `error`.

    The list of tools leaves it out, because most models read it with every turn. It is given on demand.
    """
    schema = operation.output_schema
    # get_task reports an error of its own
    kinds = ["object", "null"] if "error" in schema["properties"] else "object"
    error = {"type": kinds, "description": "Instead of a result, where the call was refused"}
    properties = {**schema["properties"], "error": error}
    required = schema.get("required", [])
    plan = []
    if operation.planned:  # called with plan_only, it answers with a plan, under no call yet
        plan = [{"required": ["plan_id", "diff"]}]
        properties["call_id"] = {"type": ["string", "null"]}
    task = [{"required": ["task_id", "of_call"]}] if operation.detachable else []
    return {key: value for key, value in schema.items() if key != "required"} | {
        "properties": properties,
        "anyOf": [{"required": required}, *plan, *task, {"required": ["error"]}],
    }


def find_tool(name: str, *, profile: Profile, read_only: bool) -> Operation:
    """Return the operation behind a tool. One that the profile does not list can be called, too.

    Raises:
        InvalidArgument: no such tool. The error names similar ones.
    """
    operation = TOOLS.get(name)
    if operation is None:
        meant = OPERATIONS.get(name)  # an operation's name in place of its tool's
        close = [meant.tool] if meant is not None else close_names(name.replace(".", "_"), TOOLS)
        steps = [TOOLS[known].next_call({}, "the tool of that name") for known in close]
        if not steps and _WORDS.match(name):
            # One word: texts that may be sentences are left out of proposed calls.
            word = max(name.split("_"), key=len)
            steps = [TOOLS[_FIND].next_call({"query": word}, "finds operations by words")]
        raise InvalidArgument(
            f"{explain(name, profile, read_only=read_only)} The list of tools has the names, and find_operations finds the "
            "others by words",
            field="tool",
            value=shown(name),
            did_you_mean=close,
            next=steps,
        )
    return operation


def on_a_cluster(
    operation: Operation, arguments: Mapping[str, Any], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a call once for each of some clusters, if it did not name an existing one."""
    own = {
        name: value
        for name, value in arguments.items()
        if name in operation.request_names and isinstance(value, str | int)
    }
    if len(json.dumps(own)) > _MOST_CHARS:
        own = {}
    step = operation.next_call(own, "the same call on that cluster")
    return [step | {"arguments": {CLUSTER: name, **own}} for name in names[:_MOST_CLUSTERS]]


PATIENCE_S: Final = 2.0  # for all clusters together, so that the list comes even if no broker answers


async def offered_tools(tools: Sequence[Tool], clusters: Clusters) -> list[Tool]:
    """Return the tools that the caller can use at some cluster, or all if permissions are unreadable."""
    held = await _permissions(clusters)
    return [tool for tool in tools if may_use(TOOLS[tool.name], held)]


async def _permissions(clusters: Clusters) -> frozenset[str]:
    found: set[str] = set()
    with anyio.move_on_after(PATIENCE_S) as scope:
        for name in clusters.names:
            try:
                found |= set((await clusters.named(name).call("security.whoami")).get("permissions", "*"))
            except ClusterError:
                return frozenset({"*"})
    return frozenset({"*"}) if scope.cancelled_caught else frozenset(found)
