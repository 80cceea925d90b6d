"""Parts of an operation's declaration: effects, base classes of requests and results, shared arguments.

Requests are strict: a JSON type must be the one the schema names, and unknown fields are refused. Results
omit a `<field>_reason` if its field has a value. A null with a reason beside it is unknown, one without is
simply none. 64-bit ids are decimal strings, times RFC 3339 in UTC with milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model


class Effect(StrEnum):
    READ = "read"
    CREATE = "create"
    CHANGE = "change"
    DESTROY = "destroy"  # needs a plan that was shown


class Place(StrEnum):
    """Where a call is carried out."""

    ANYWHERE = "anywhere"  # at the broker that was called, which queries the others
    OWNER = "owner"  # of the topic that the arguments name
    BROKER = "broker"  # that the arguments name
    LEADER = "leader"
    CALL = "call"  # where the operation that the arguments name is
    PLAN = "plan"  # where the planned operation is
    CHANGE = "change"  # where the undo of the change is
    TASK = "task"  # at the broker that runs it


MAX_LIMIT = 1000


DEFAULT_LIMIT = 50


MAX_FILTER_CHARS = 256  # a glob becomes a regular expression that is matched against every name


class Request(BaseModel):
    """Base class of all arguments of operations."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class Result(BaseModel):
    """Base of all results. A result has the reason of a value only where the value is missing."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, defer_build=True)

    #: of an item of a list: the fields that identify it
    identity: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, *sources: object, **given: Any) -> Self:
        """Make a result from facts. A field that is not given is read from the first source that has it."""
        for name in cls.model_fields:
            if name not in given:
                for source in sources:
                    if hasattr(source, name):
                        given[name] = getattr(source, name)
                        break
        return cls(**given)

    @classmethod
    def __pydantic_init_subclass__(cls, **_kwargs: Any) -> None:
        # Said of the fields, once a class: a serializer of our own would be called for each item of each page.
        keys = {field.alias or name: field for name, field in cls.model_fields.items()}
        for key, field in keys.items():
            if key.endswith("_reason") and key.removesuffix("_reason") in keys:
                field.exclude_if = is_none


ModelT = TypeVar("ModelT", bound=BaseModel)


def including(fields: Iterable[tuple[str, Any]]) -> Callable[[type[ModelT]], type[ModelT]]:
    """Append fields to a model, from a table of (name, type).

    An optional field has `Field(default=...)` in its type.
    """

    def included(model: type[ModelT]) -> type[ModelT]:
        return create_model(
            model.__name__,
            __base__=model,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **dict(fields),
        )

    return included


def is_none(value: object) -> bool:
    return value is None


class Change(Result):
    """Base of results of changes: the ids of call and plan, and until when the change can be undone."""

    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None  # None: it cannot be undone


class ListRequest(Request):
    """Arguments of every list. Lists that are read directly from a log take no others."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Items a page")] = DEFAULT_LIMIT
    page: Annotated[
        str | None,
        Field(max_length=4096, description="next_page of the answer before"),
    ] = None
    filter: Annotated[
        str | None, Field(max_length=MAX_FILTER_CHARS, description="Glob over names: orders*")
    ] = None


class SortedListRequest(ListRequest):
    """Arguments of lists that are held in memory, and so can be sorted."""

    sort: Annotated[
        str | None, Field(max_length=64, description="Field of the items, optional; falling: -bytes")
    ] = None
    top: Annotated[
        int | None,
        Field(ge=1, le=MAX_LIMIT, description="Only so many items, without pages"),
    ] = None
    changed_since: Annotated[
        str | None, Field(max_length=4096, description="mark of an answer before: only changes since")
    ] = None


ItemT = TypeVar("ItemT", bound=Result)


class NotSeen(Result):
    """A broker whose items an answer lacks."""

    broker_id: str
    why: str
    # gone: it is not registered, and its topics wait for it
    state: Literal["gone"] | None = Field(default=None, exclude_if=is_none)
    # Since when it is gone, if the answering broker saw that
    gone_since: str | None = Field(default=None, exclude_if=is_none)
    # When it last reported how far its topics go
    reported_at: str | None = Field(default=None, exclude_if=is_none)
    # Of this page: topics of that broker that are not listed, or only in part. The first 100
    topics: list[str] | None = Field(default=None, exclude_if=is_none)
    topic_count: int | None = Field(default=None, exclude_if=is_none)


class Page(Result, Generic[ItemT]):
    """A list: one page of it."""

    items: list[ItemT]
    items_reason: str | None = None  # why there is none, if the request named something that is absent
    next_page: str | None
    total: int | None
    as_of: str
    # For changed_since of the next call. With several pages, use the first page's
    mark: str | None = Field(default=None, exclude_if=is_none)
    # If set, items are only the changes
    gone: list[dict[str, Any]] | None = Field(default=None, exclude_if=is_none)
    # Why the list is whole, although changed_since was given
    whole_because: str | None = Field(default=None, exclude_if=is_none)
    # Brokers that did not answer: their items are not listed
    not_seen: list[NotSeen] | None = Field(default=None, exclude_if=is_none)


TOPIC_DESCRIPTION: Final = "/namespace/topic, or a bare name in /default"
TopicArgument = Annotated[str, Field(min_length=1, max_length=512, description=TOPIC_DESCRIPTION)]


class TopicRequest(Request):
    topic: TopicArgument


SubscriptionArgument = Annotated[str, Field(max_length=256, description="Its name")]


SINCE_DESCRIPTION: Final = "Only since then: a length before now (24h), or a time (2026-01-31T12:00:00Z)"
OptionalTopic = Annotated[str | None, Field(max_length=512, description="Only of this topic")]
