"""Requests and results of the operations about operations."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pydanube_admin.models import Request, Result


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
