"""Finding operations by words, and calling one that only reads: so a few tools reach them all."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import Field
from pydanube_core.errors import InvalidArgument

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.models import Request, Result
from pydanube_admin.engine.next_calls import every, next_call
from pydanube_admin.engine.operation import Example, Operation, operation

ITSELF: Final = ("operations.read",)


class FindRequest(Request):
    query: Annotated[str, Field(max_length=200, description="Words, such as: delete topic")]
    limit: Annotated[int, Field(ge=1, le=50, description="Operations")] = 8


class FoundOperation(Result):
    operation: str
    tool: str
    effect: str
    reversible: bool | None
    summary: str
    arguments: dict[str, Any]  # JSON Schema
    example: dict[str, Any]


class FoundOperations(Result):
    items: list[FoundOperation]


class ReadRequest(Request):
    operation: Annotated[str, Field(max_length=100, description="Name of an operation that only reads")]
    arguments: Annotated[dict[str, Any] | None, Field(description="Its arguments")] = None


class ReadResult(Result):
    operation: str
    result: dict[str, Any]


@operation(
    "operations.find",
    effect=Effect.READ,
    title="Find operations",
    summary="Find operations by words, with their effects and argument schemas.",
    default_profile=True,
    examples=(Example(arguments={"query": "move cursor back"}, note="by what is to be done"),),
)
async def find_operations(context: Context, request: FindRequest) -> FoundOperations:
    words = _words(request.query)
    ranked = sorted(every(), key=lambda operation: (-_score(operation, words), operation.name))
    found = [operation for operation in ranked if not words or _score(operation, words)][: request.limit]
    return FoundOperations(
        items=[
            FoundOperation(
                operation=operation.name,
                tool=operation.tool,
                effect=operation.effect.value,
                reversible=operation.reversible,
                summary=operation.summary,
                arguments=operation.input_schema,
                example=dict(operation.examples[0].arguments),
            )
            for operation in found
        ]
    )


def _words(text: str) -> list[str]:
    """Words without their endings, so that `deleting topics` finds `delete_topic`."""
    return [_stem(word) for word in re.findall(r"[a-z]+", text.lower())]


def _stem(word: str) -> str:
    for ending in ("ing", "es", "s", "ed", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _score(operation: Operation, words: list[str]) -> int:
    name = set(_words(f"{operation.name} {operation.tool} {operation.title}"))
    text = set(_words(operation.summary)) | {_stem(argument.name) for argument in operation.arguments}
    return sum(5 if word in name else 1 if word in text else 0 for word in set(words))


@operation(
    "operations.read",
    effect=Effect.READ,
    title="Call an operation that reads",
    summary="Call any operation that only reads.",
    default_profile=True,
    examples=(Example(arguments={"operation": "namespaces.list", "arguments": {}}, note="found by find"),),
)
async def read_operation(context: Context, request: ReadRequest) -> ReadResult:
    call = context.desk.parse(request.operation, request.arguments or {})
    operation = call.operation
    if operation.effect is not Effect.READ or operation.name in ITSELF:
        error = InvalidArgument(
            f"{operation.name} does not only read: plan it with plans.create, then apply the plan",
            field="operation",
            value=operation.name,
        )
        if operation.planned:
            arguments = {"operation": operation.name, "arguments": dict(call.arguments)}
            error.followed_by(next_call("plans.create", arguments, "says what it would do"))
        raise error
    result = await context.desk.run(context, call)
    return ReadResult(operation=operation.name, result=result.model_dump(mode="json", by_alias=True))
