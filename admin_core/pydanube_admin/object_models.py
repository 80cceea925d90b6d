"""Requests and results of the operations on the cold tier and the journal."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pydanube_admin.models import ListRequest, Request, Result, TopicArgument

__all__ = [
    "CollectedObjects",
    "CompactedObjects",
    "JournalDescription",
    "JournalRequest",
    "ListObjectsRequest",
    "ObjectItem",
    "ObjectsRequest",
    "VerifiedObjects",
    "VerifyObjectsRequest",
]

Offset = Annotated[int | None, Field(ge=0, le=2**53 - 1)]
FromOffset = Annotated[Offset, Field(description="Only objects that end behind this offset")]
UntilOffset = Annotated[Offset, Field(description="Only objects that begin below this offset")]


class ObjectsRequest(Request):
    topic: TopicArgument


class VerifyObjectsRequest(ObjectsRequest):
    start: FromOffset = None
    until: UntilOffset = None


class ListObjectsRequest(ListRequest):
    topic: TopicArgument
    start: FromOffset = None
    until: UntilOffset = None


class ObjectItem(Result):
    """One committed object of a concrete topic: it is the topic for offsets from start to end, end exclusive."""

    topic: str
    path: str
    start_offset: int
    end_offset: int
    messages: int
    bytes: int
    min_append_time: str
    max_append_time: str
    epoch: int
    committed: bool


class VerifiedObjects(Result):
    """Every object read back and held against the catalog. All lists empty: the cold part is whole."""

    checked: int
    damaged: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    gaps: list[list[int]]
    duplicates: list[list[int]]


class CompactedObjects(Result):
    topic: str
    merged_objects: int  # how many went into others
    objects: int  # how many there are now


class CollectedObjects(Result):
    topic: str
    deleted: list[str]
    bytes: int


class JournalRequest(Request):
    pass


class JournalDescription(Result):
    """The broker's write-ahead log: its segments, oldest first, and what keeps the oldest from going."""

    bytes: int
    segments: int
    next_lsn: int
    durable_lsn: int
    read_only: bool
    sealed: list[dict[str, Any]]
    held_by: list[dict[str, Any]]
