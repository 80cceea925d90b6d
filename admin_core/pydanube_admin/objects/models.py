"""Requests and results of the operations on the cold tier and the journal."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from pydanube_admin.models import Change, ListRequest, Request, Result, TopicArgument

# `from` is a word of Python, so the field is `start`; on every face it is `from`.
Begin = Annotated[
    str | None,
    Field(
        alias="from",
        max_length=64,
        description="Position: earliest, offset:42, time:2026-01-31T12:00:00Z, time:-15m; without it, from the first message",
    ),
]


End = Annotated[
    str | None, Field(max_length=64, description="Position up to which, exclusive; without it, to the end")
]


class ObjectsRequest(Request):
    topic: TopicArgument


class RangeRequest(Request):
    model_config = ConfigDict(serialize_by_alias=True)

    topic: TopicArgument
    start: Begin = None
    until: End = None


class VerifyObjectsRequest(RangeRequest):
    pass


class ListObjectsRequest(ListRequest, RangeRequest):
    pass


class ExportObjectsRequest(RangeRequest):
    to: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4096,
            description="File on the broker's machine, which must not exist; a bare name is in exports/ of its data "
            "directory, and only the command line may name a folder",
        ),
    ]
    format: Annotated[Literal["parquet", "jsonl"], Field(description="Of the file")] = "parquet"


class ReplayTopicRequest(Request):
    model_config = ConfigDict(serialize_by_alias=True)

    topic: TopicArgument
    start: Annotated[
        str,
        Field(
            alias="from",
            max_length=64,
            description="Position: earliest, offset:42, time:2026-01-31T12:00:00Z, time:-15m",
        ),
    ]
    until: End = None
    to: Annotated[
        str, Field(min_length=1, max_length=512, description="Another topic; made if it does not exist")
    ]


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


class FlushedObjects(Change):
    topic: str
    messages: int  # offsets that went to the cold tier by this call
    objects: int  # how many there are now


class CompactedObjects(Change):
    topic: str
    merged_objects: int  # how many went into others
    objects: int  # how many there are now


class CollectedObjects(Change):
    topic: str
    deleted: list[str]
    bytes: int


class ExportedObjects(Change):
    """A file that holds every message of the range."""

    topic: str
    path: str
    format: str
    messages: int
    bytes: int
    start_offset: int
    end_offset: int


class ReplayedRange(Result):
    """What arrived in one concrete topic."""

    topic: str
    messages: int
    first_offset: int
    last_offset: int


class ReplayedTopic(Change):
    topic: str
    to: str
    messages: int
    ranges: list[ReplayedRange]


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
