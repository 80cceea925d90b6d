"""Present an answer to a model: fenced, with next calls that the profile has, and within the size of a result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mcp.types import CallToolResult, TextContent
from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import READ_ANY, Operation
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.spelling import shown

from pydanube_mcp.fencing import UNTRUSTED, all_plain, fenced, is_plain
from pydanube_mcp.lenient import META
from pydanube_mcp.profiles import CLUSTER, Profile, found_input, reachable
from pydanube_mcp.sizing import MAX_RESULT_BYTES, PART, READ_BYTES, REST, in_parts

FLOW: Final = "ifc"
_MAX_PART: Final = 100_000
_FIND: Final = "operations.find"  # answers with our own texts only: names, summaries, schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The call that is answered."""

    operation: Operation | None  # None: there is no such tool
    arguments: Mapping[str, Any]
    profile: Profile
    cluster: str | None = None
    part: int = 1

    @property
    def is_of_ours(self) -> bool:
        if self.operation is None:
            return False
        return self.operation.name == _FIND or (
            self.operation.name == READ_ANY and self.arguments.get("operation") == _FIND
        )


def take_part(operation: Operation, arguments: dict[str, Any]) -> int:
    """Remove `part` from a read's arguments: which part of a long answer is wanted.

    Raises:
        InvalidArgument: it is no number of a part.
    """
    if operation.effect is not Effect.READ or PART not in arguments:
        return 1
    part = arguments.pop(PART)
    if isinstance(part, bool) or not isinstance(part, int) or not 1 <= part <= _MAX_PART:
        raise InvalidArgument(
            f"part must be an integer from 1 to {_MAX_PART}, as rest.next has it, not {shown(part)!r}",
            field=PART,
            value=shown(part),
        )
    return part


def ok_result(result: Mapping[str, Any], asked: Asked) -> CallToolResult:
    body = body_of(result, asked)
    return CallToolResult(content=[_text(body)], structured_content=body, _meta=flow_label(body))


def flow_label(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the label of a result for hosts that control the flow of information (`ifc`, the key of GitHub's server).

    A result is `untrusted` if it has text of others, else `trusted`. It is always `private`: the cluster's data.
    """
    return {
        FLOW: {
            "integrity": "untrusted" if _has_text_of_others(body) else "trusted",
            "confidentiality": "private",
        }
    }


def _has_text_of_others(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get(UNTRUSTED) is not None or any(_has_text_of_others(inner) for inner in value.values())
    return isinstance(value, (list, tuple)) and any(_has_text_of_others(inner) for inner in value)


def saying(result: CallToolResult, coerced: Sequence[str]) -> CallToolResult:
    """Return the result, with the names of arguments that were read as another type in `_meta`."""
    if coerced:
        result.meta = {**(result.meta or {}), META: [name for name in coerced if is_plain(name)]}
    return result


def body_of(result: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """Return a result for a model to read."""
    body = dict(result) if asked.is_of_ours else fenced(result)
    if asked.operation is not None and asked.operation.name == _FIND:
        body["items"] = [
            each
            if (known := OPERATIONS.get(each["operation"])) is None
            else each | {"arguments": found_input(known)}
            for each in body["items"]
        ]
    body = reachable(_for_cluster(body, asked.cluster), asked.profile)
    reads = asked.operation is not None and asked.operation.effect is Effect.READ
    part = in_parts(body, asked.part, READ_BYTES if reads else MAX_RESULT_BYTES)
    if part.of == 1:
        return part.body
    return _in_turn(part.body, body, last=part.number == part.of) | {REST: _rest(asked, part.number, part.of)}


def _in_turn(part: Mapping[str, Any], whole: Mapping[str, Any], *, last: bool) -> dict[str, Any]:
    """Return a part with the `next_page` of a list only if it is the last one: a model that follows it skips the others."""
    shown = dict(part)
    if "next_page" in whole:
        shown["next_page"] = whole["next_page"] if last else None
    if isinstance(whole.get("result"), Mapping) and isinstance(part.get("result"), Mapping):
        shown["result"] = _in_turn(part["result"], whole["result"], last=last)
    return shown


def _rest(asked: Asked, number: int, of: int) -> dict[str, Any]:
    rest: dict[str, Any] = {PART: number, "of": of}
    operation = asked.operation
    if operation is None or operation.effect is not Effect.READ:
        return rest | {"why": "too long. The rest is left out"}
    if number == of:
        return rest
    arguments = {**asked.arguments, PART: number + 1}
    if asked.cluster is not None:
        arguments = {CLUSTER: asked.cluster} | arguments
    why = "the same call, for the part after this one"
    if len(json.dumps(arguments)) > 300 or not all_plain(arguments):
        arguments = {PART: number + 1}
        why += ". Give its other arguments again"
    step = {"tool": operation.tool, "arguments": arguments, "why": why}
    return rest | {"next": [step]}


def error_result(error: ClusterError, asked: Asked) -> CallToolResult:
    """Return an error as a result that the model sees."""
    body = fenced(error.to_dict(), given=asked.arguments)
    body = reachable(_for_cluster(body, asked.cluster), asked.profile)
    whole = in_parts({"error": body}, 1, MAX_RESULT_BYTES).body
    return CallToolResult(
        is_error=True, content=[_text(whole)], structured_content=whole, _meta=flow_label(whole)
    )


def _for_cluster(value: Any, cluster: str | None) -> Any:
    """Add the cluster's name to proposed calls."""
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
