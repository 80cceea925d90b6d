"""The values of which results are made."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict


class Result(BaseModel):
    """Base of all results. Unknown fields of a newer broker are dropped."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="ignore", protected_namespaces=())


ItemT = TypeVar("ItemT", bound=Result)
ResultT = TypeVar("ResultT", bound=Result)


class Page(Result, Generic[ItemT]):
    """One page of a list. `next_page` is the argument `page` of the next call, None on the last."""

    items: list[ItemT]
    next_page: str | None
    total: int | None
    as_of: str
