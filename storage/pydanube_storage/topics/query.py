"""The topics to read, and the broker that has them."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydanube_core.errors import InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.positions import Position
from pydanube_core.topic_pattern import TopicPattern


class StoredBatch(Protocol):
    """A batch as the log has it."""

    @property
    def stored(self) -> bytes | memoryview: ...

    @property
    def offsets(self) -> Sequence[int]: ...


class Broker(Hashable, Protocol):
    """The calls to a broker. An implementation is picklable and hashable, and has no secrets."""

    def ask(
        self, operation: str, arguments: Mapping[str, Any], *, timeout_s: float = 10.0
    ) -> Mapping[str, Any]:
        """Return the result of an operation that reads. Raises `ClusterError`."""

    def first_offset(self, topic: str, start: str, *, end: int) -> int | None:
        """Return the offset of the first message from a position on and below `end`. None if there is none."""

    def tail(self, topic: str, start: int, end: int) -> Iterator[StoredBatch]:
        """Yield the batches with messages of `[start, end)`. A batch may come in several pieces. Raises `ClusterError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQuery:
    """Topics, where they are, and the positions between which they are read.

    Attributes:
        topics: names. None are given with a pattern.
        pattern: glob over the topics of one namespace.
        broker: None if only the object store is read.
        tier: URL of the object store. With a broker, the default is the broker's.
        cluster: name of the cluster in the store, if the store has several.
        start: position of the first message, or JSON with an offset for each partition.
        end: position after the last message. None is the present end.
        store: how the store is reached, as fields of `StoreOptions`.
    """

    topics: Sequence[str] = ()
    pattern: str | None = None
    broker: Broker | None = None
    tier: str | None = None
    cluster: str | None = None
    start: str = "earliest"
    end: str | None = None
    store: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.topics and self.pattern is not None:
            raise InvalidArgument("give topic or pattern, one of them", field="pattern", value=self.pattern)
        if self.pattern is not None:
            TopicPattern.parse(self.pattern)
        names = [str(TopicName.parse(name.strip())) for name in self.topics]
        if len(set(names)) < len(names):
            raise InvalidArgument("topic: the same one twice", field="topic", value=",".join(names))
        object.__setattr__(self, "topics", tuple(names))
        for name, text in (("start", self.start), ("end", self.end)):
            if text is not None and offsets_in(text, field=name) is None:
                Position.parse(text, now_ms=0, field=name)

    @property
    def title(self) -> str:
        """The topics as they were given."""
        return ",".join(self.topics) or str(self.pattern)


def offsets_in(text: str, *, field: str) -> dict[str, int] | None:
    """Return offsets of partitions from JSON, `{"0": 23, "1": -2}`. None for a text that is no JSON object.

    A partition is its number or its own name, -2 the earliest offset, -1 the latest.

    Raises `InvalidArgument`: it is none of this.
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = {"": None}
    if not all(type(offset) is int and offset >= -2 for offset in found.values()):
        raise InvalidArgument(
            f'{field}: write offsets of partitions as {{"0": 23, "1": -2}}, not {text:.100}',
            field=field,
            value=text[:100],
        )
    return dict(found)
