"""Records of the catalog: pure values and their JSON.

A head records how far a topic is tiered, in which epochs, and the other state that a new owner needs. Every change of
the topic's objects includes a guarded change of its head. An entry has all that a reader needs to open an object and to
verify that it is the right one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self, TypeAlias

from pydanube_core.errors import FormatTooNew
from pydanube_core.known_fields import known_fields

from pydanube_storage.metadata import CorruptMetadata

_VERSION: Final = 1
_Json: TypeAlias = bytes  # because the records have a field `bytes`


class _Record:
    """A frozen dataclass that is stored as JSON with a version."""

    __slots__ = ()

    def to_json(self) -> _Json:
        record: Any = self
        return json.dumps({"version": _VERSION, **asdict(record)}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: _Json, *, key: str) -> Self:
        """Parse a record. Unknown fields are ignored. Raises `CorruptMetadata`, `FormatTooNew`."""
        try:
            body = json.loads(data)
            version = int(body.pop("version"))
            if version <= _VERSION:
                return cls(**cls._converted(known_fields(cls, body)))
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
            raise CorruptMetadata(f"metadata key {key} cannot be read: {error!r}", key=key) from error
        raise FormatTooNew(
            f"metadata key {key} has record version {version}, this broker reads up to {_VERSION}: upgrade it",
            key=key,
            value=version,
            limit=_VERSION,
        )

    @classmethod
    def _converted(cls, body: dict[str, Any]) -> dict[str, Any]:
        """Return the fields with the types of the dataclass."""
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry(_Record):
    """One committed object with the topic's offsets `[start, end)`."""

    name: str  # last part of its key in the object store
    start: int
    end: int
    messages: int
    bytes: int
    min_append_time_ms: int
    max_append_time_ms: int
    epoch: int
    generation: int
    digest: str
    footer_bytes: int
    footer_crc: int
    committed_at_ms: int

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end
        assert self.bytes > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A retired object in a head of the first version. New ones are `Resting`."""

    name: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment whose age can be computed even if the wall clock steps.

    `boot_ms` counts from the boot `boot` of one machine. It is meaningless after another boot or on another machine.
    `wall_ms` is for people.
    """

    wall_ms: int
    boot: str
    boot_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting(_Record):
    """Objects that one change retired. Readers that listed them before have a grace period to finish.

    Each change has a key of its own, so that the head stays small with any number of retired objects.
    """

    group: str
    names: tuple[str, ...]
    since: Moment

    @classmethod
    def _converted(cls, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "names": tuple(body["names"]), "since": Moment(**body["since"])}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogHead(_Record):
    """The state of a topic's cold part. Objects cover `[start_offset, tiered_offset)` without a gap.

    `folder`: the folder of its objects, fixed with the first one. `epochs`: (epoch, first offset), ascending.
    `producers`: sessions of idempotent producers at `tiered_offset`. `subscriptions`, `schemas`: as of the last
    commit. `epoch`: of the owner. Changes by a lower epoch are refused. `resumes_at`: the offset above `tiered_offset`
    at which the log continues if the messages between were lost with a removed broker.
    """

    epoch: int
    folder: str
    start_offset: int
    tiered_offset: int
    objects: int = 0
    bytes: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    producers: tuple[Any, ...] = ()
    subscriptions: Mapping[str, Any] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    retired: tuple[Retired, ...] = ()
    resumes_at: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.start_offset <= self.tiered_offset
        assert self.objects >= 0
        assert self.bytes >= 0

    @property
    def goes_on_at(self) -> int:
        """The first offset whose messages are in the journal."""
        return max(self.tiered_offset, self.resumes_at)

    @classmethod
    def _converted(cls, body: dict[str, Any]) -> dict[str, Any]:
        return {
            **body,
            "epochs": tuple((int(epoch), int(first)) for epoch, first in body["epochs"]),
            "retired": tuple(Retired(**each) for each in body["retired"]),
            "producers": tuple(body["producers"]),
        }
