"""Find operations by words, and call one that only reads, so that a few tools reach them all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Final

import anyio.to_thread
from pydantic import Field
from pydanube_core.diagnosis.findings import RuleArea
from pydanube_core.diagnosis.rules import RULES_OF
from pydanube_core.errors import InvalidArgument

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, Place, Request, Result
from pydanube_admin.engine.operation import Operation, every, known, next_call, operation
from pydanube_admin.operations.namespaces import POLICIES
from pydanube_admin.wording.ranking import Ranking, other_language

ITSELF: Final = ("operations.read",)
NEAREST: Final = 3  # operations that are named where none fits
_POLICIES_OF: Final = (
    "topics.set_policies",
    "topics.get_policies",
    "namespaces.set_policies",
    "namespaces.get_policies",
)
_LOOKS_AT: Final = {
    "diagnose.cluster": RuleArea.BROKER,
    "diagnose.topic": RuleArea.TOPIC,
    "diagnose.producer": RuleArea.TOPIC,
    "diagnose.subscription": RuleArea.SUBSCRIPTION,
}


class FindRequest(Request):
    query: Annotated[str, Field(max_length=200, description="English words: delete topic")]
    limit: Annotated[int, Field(ge=1, le=50, description="Most operations")] = 5
    schema_of_result: Annotated[
        bool, Field(alias="schema", description="Also the schemas of their results")
    ] = False


class FoundOperation(Result):
    operation: str
    tool: str
    effect: str
    reversible: bool | None
    summary: str
    arguments: dict[str, Any]  # JSON Schema
    example: dict[str, Any]
    result: dict[str, Any] | None = Field(default=None, exclude_if=lambda value: value is None)  # with schema


class NearOperation(Result):
    operation: str
    summary: str


class FoundOperations(Result):
    items: list[FoundOperation]
    none_because: str | None  # the reason why `items` is empty
    nearest: list[NearOperation]  # present if `items` is empty


class ReadRequest(Request):
    operation: Annotated[str, Field(max_length=100, description="Name of an operation that only reads")]
    arguments: Annotated[
        dict[str, Any] | None, Field(description="Of that operation, by name. Default: none")
    ] = None


class ReadResult(Result):
    operation: str
    result: dict[str, Any]


@operation(
    "operations.find",
    effect=Effect.READ,
    summary="Find operations by words, with their effects and argument schemas.",
    default_profile=True,
    examples=(Example({"query": "move cursor back"}, "by a purpose"),),
)
async def find_operations(context: Context, request: FindRequest) -> FoundOperations:
    if not request.query.strip():
        return _found(every()[: request.limit], schema=request.schema_of_result)
    # Made once, which takes tenths of a second
    meant = (await anyio.to_thread.run_sync(ranking)).rank(request.query)
    nearest = meant.absent.nearest if meant.absent is not None else meant.operations
    if other_language(request.query):
        return _none("Operations are found by English words: search in English.", nearest)
    if meant.absent is not None:
        return _none(f"There is no such operation. {meant.absent.because}", nearest)
    if not meant.known:
        return _none("There is no such operation.", nearest or ("diagnose.cluster",))
    found = [known(name) for name in meant.operations[: request.limit]]
    return _found(found, schema=request.schema_of_result)


def _found(operations: Sequence[Operation], *, schema: bool) -> FoundOperations:
    return FoundOperations(
        items=[
            FoundOperation(
                operation=operation.name,
                tool=operation.tool,
                effect=operation.effect.value,
                reversible=operation.reversible,
                summary=operation.description,
                arguments=operation.input_schema,
                example=dict(operation.examples[0].arguments),
                result=operation.output_schema if schema else None,
            )
            for operation in operations
        ],
        none_because=None,
        nearest=[],
    )


def _none(because: str, nearest: Sequence[str]) -> FoundOperations:
    near = [known(name) for name in nearest[:NEAREST]]
    return FoundOperations(
        items=[],
        none_because=because,
        nearest=[NearOperation(operation=one.name, summary=one.summary) for one in near],
    )


@cache
def ranking() -> Ranking:
    return Ranking(
        {
            each.name: (
                each.name.replace(".", " "),
                each.tool,
                each.title,
                " ".join((each.summary, *(argument.name for argument in each.arguments))),
            )
            for each in every()
        },
        {each.name: _names(each) for each in every()},
        {each.name for each in every() if each.effect is not Effect.READ},
    )


def _names(operation: Operation) -> set[str]:
    """Return the names that stand for an operation: its own, its arguments', its policies' and its rules'."""
    own = {operation.tool, operation.name.replace(".", "_")}
    own |= {argument.name for argument in operation.arguments if "_" in argument.name}
    if operation.name in _POLICIES_OF:
        own |= set(POLICIES)
    area = _LOOKS_AT.get(operation.name)
    return own if area is None else own | {rule.name for rule in RULES_OF[area]}


@operation(
    "operations.read",
    at=Place.CALL,
    effect=Effect.READ,
    title="Call an operation that reads",
    summary="Call any operation that only reads.",
    default_profile=True,
    examples=(Example({"operation": "namespaces.list", "arguments": {}}, "found by find"),),
)
async def read_operation(context: Context, request: ReadRequest) -> ReadResult:
    call = context.executor.parse(request.operation, request.arguments or {})
    operation = call.operation
    if operation.name in ITSELF:
        raise InvalidArgument(
            f"{operation.name} does not call itself: name the operation inside it",
            field="operation",
            value=operation.name,
        )
    if operation.effect is not Effect.READ:
        error = InvalidArgument(
            f"{operation.name} does not only read: plan it with plans.create, then apply the plan",
            field="operation",
            value=operation.name,
        )
        if operation.planned:
            arguments = {"operation": operation.name, "arguments": dict(call.arguments)}
            error.followed_by(next_call("plans.create", arguments, "shows its effects"))
        raise error
    result = await context.executor.run(context, call)
    return ReadResult(operation=operation.name, result=result.model_dump(mode="json", by_alias=True))
