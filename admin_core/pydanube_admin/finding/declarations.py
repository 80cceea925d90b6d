"""The operations about operations."""

from __future__ import annotations

from typing import Final

from pydanube_admin.effect import Effect
from pydanube_admin.finding.handlers import find_operations, read_operation
from pydanube_admin.finding.models import FindRequest, FoundOperations, ReadRequest, ReadResult
from pydanube_admin.operation import Example, Operation

FINDING_OPERATIONS: Final = (
    Operation(
        name="operations.find",
        tool="find_operations",
        title="Find operations",
        effect=Effect.READ,
        permission="operations:read",
        reversible=None,
        summary="Find operations by words, with their effects and argument schemas.",
        request=FindRequest,
        result=FoundOperations,
        handler=find_operations,
        examples=(Example(arguments={"query": "move cursor back"}, note="by what is to be done"),),
        default_profile=True,
    ),
    Operation(
        name="operations.read",
        tool="read_operation",
        title="Call an operation that reads",
        effect=Effect.READ,
        permission="operations:read",
        reversible=None,
        summary="Call any operation that only reads.",
        request=ReadRequest,
        result=ReadResult,
        handler=read_operation,
        examples=(
            Example(arguments={"operation": "namespaces.list", "arguments": {}}, note="found by find"),
        ),
        default_profile=True,
    ),
)
