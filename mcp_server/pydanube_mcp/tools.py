"""Operations as MCP tools: what a client lists, and what a call answers.

Everything comes from the registry. All four annotations are always set, because the protocol's defaults are the
pessimistic ones and clients act on them. Results and errors are structured; their text is the same JSON, for clients
that read only text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations
from pydanube_admin.operation import Effect, Operation
from pydanube_admin.registry import TOOLS
from pydanube_admin.spelling import shown
from pydanube_core.errors import ClusterError, InvalidArgument, ReadOnly
from pydanube_core.spelling import close_names

from pydanube_mcp.clusters import CLUSTER, Clusters
from pydanube_mcp.profiles import Profile, explain, is_listed, reachable, small_input, small_output

__all__ = ["Profile", "error_result", "find_tool", "ok_result", "tool_list"]


def tool_list(profile: Profile, *, read_only: bool, clusters: Clusters) -> list[Tool]:
    """The tools to list, by name: the same bytes each time, which is what prompt caches want."""
    return [
        _tool(operation, profile, clusters)
        for operation in TOOLS.values()
        if is_listed(operation, profile, read_only=read_only)
    ]


def _tool(operation: Operation, profile: Profile, clusters: Clusters) -> Tool:
    return Tool(
        name=operation.tool,
        title=operation.title,
        description=operation.summary,
        input_schema=_input_schema(operation, clusters),
        output_schema=_output_schema(operation, profile),
        annotations=ToolAnnotations(
            read_only_hint=operation.effect is Effect.READ,
            destructive_hint=operation.effect is Effect.DESTROY,
            # Made twice, a call has no further effect: a second create or delete is refused.
            idempotent_hint=True,
            open_world_hint=False,
        ),
    )


def _input_schema(operation: Operation, clusters: Clusters) -> dict[str, Any]:
    schema = small_input(operation)
    if not clusters.several:
        return schema
    cluster = {"type": "string", "enum": list(clusters.names), "description": "Which cluster"}
    return schema | {
        "properties": {CLUSTER: cluster, **schema["properties"]},
        "required": [CLUSTER, *schema.get("required", ())],
    }


def _output_schema(operation: Operation, profile: Profile) -> dict[str, Any]:
    """In full where the profile is; else the names of the fields. The result, or `error`: clients hold structured content of a refused call against this schema as well, and the
    one of the TypeScript SDK shows nothing of an answer that does not match."""
    schema = operation.output_schema
    if profile is Profile.DEFAULT:
        return small_output(schema)
    error = {"type": "object", "description": "Instead of a result, where the call was refused"}
    required = schema.get("required", [])
    return {key: value for key, value in schema.items() if key != "required"} | {
        "properties": {**schema["properties"], "error": error},
        "anyOf": [{"required": required}, {"required": ["error"]}],
    }


def find_tool(name: str, *, profile: Profile, read_only: bool) -> Operation:
    """The operation behind a tool. One that the profile does not list can be called all the same.

    Raises:
        ReadOnly: it would change something and the server may not.
        InvalidArgument: no such tool; says which are close.
    """
    operation = TOOLS.get(name)
    if operation is None:
        close = close_names(name.replace(".", "_"), TOOLS)
        raise InvalidArgument(
            f"{explain(name, profile, read_only=read_only)} The list of tools has the names; find_operations finds the "
            "others by words",
            field="tool",
            value=shown(name),
            did_you_mean=close,
            next=[TOOLS[known].next_call({}, "the tool of that name") for known in close],
        )
    if read_only and operation.effect is not Effect.READ:
        raise ReadOnly(
            f"{name} is no read, and this MCP server was started with --read-only; start it without, or use the "
            "command line",
            field="tool",
            value=name,
        )
    return operation


def ok_result(result: Mapping[str, Any], *, profile: Profile, cluster: str | None = None) -> CallToolResult:
    body = reachable(_for_cluster(dict(result), cluster), profile)
    return CallToolResult(content=[_text(body)], structured_content=body)


def error_result(error: ClusterError, *, profile: Profile, cluster: str | None = None) -> CallToolResult:
    """An error as a result that the model sees."""
    body = {"error": reachable(_for_cluster(error.to_dict(), cluster), profile)}
    return CallToolResult(is_error=True, content=[_text(body)], structured_content=body)


def _for_cluster(value: Any, cluster: str | None) -> Any:
    """Calls that are proposed name the cluster they are for."""
    if cluster is None:
        return value
    if isinstance(value, list):
        return [_for_cluster(each, cluster) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("tool") and isinstance(value.get("arguments"), dict) and "why" in value:
        return value | {"arguments": {CLUSTER: cluster} | value["arguments"]}
    return {key: _for_cluster(inner, cluster) for key, inner in value.items()}


def _text(value: Mapping[str, Any]) -> TextContent:
    return TextContent(type="text", text=json.dumps(value, ensure_ascii=False, separators=(",", ":")))
