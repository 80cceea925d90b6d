"""Records of the catalog: pure values and their JSON.

A head says how far a topic is tiered, in which epochs, and what else a new owner must know; every change of the
topic's objects goes through a guarded change of its head. An entry says all that a reader needs to open an object and
to know that it is the right one.
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
_Json: TypeAlias = bytes  # the records have a field of that name


def _load(data: bytes, key: str, record: type[Any]) -> dict[str, Any]:
    """Parse a record and return its known fields."""
    try:
        body = json.loads(data)
        version = int(body.pop("version"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptMetadata(f"metadata key {key} cannot be read: {error!r}", key=key) from error
    if version > _VERSION:
        raise FormatTooNew(
            f"metadata key {key} has record version {version}, this broker knows {_VERSION}: upgrade it",
            key=key,
            value=version,
            limit=_VERSION,
        )
    return known_fields(record, body)


def _dump(record: Any) -> bytes:
    return json.dumps({"version": _VERSION, **asdict(record)}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One committed object, which has the topic's offsets `[start, end)`."""

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

    def to_json(self) -> _Json:
        return _dump(self)

    @classmethod
    def from_json(cls, data: _Json, *, key: str) -> Self:
        body = _load(data, key, cls)
        try:
            return cls(**body)
        except (TypeError, AssertionError) as error:
            raise CorruptMetadata(f"metadata key {key} cannot be read: {error!r}", key=key) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A retired object in a head of the first version. New ones are `Resting`."""

    name: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment whose age can be told although the wall clock may step meanwhile.

    `boot_ms` counts from the start of the machine whose run is `boot`; in another run, or on another machine, it says
    nothing, and `wall_ms` is for people.
    """

    wall_ms: int
    boot: str
    boot_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """Objects that one change retired; readers that listed them before have a grace period to finish.

    A key of its own for each change, so that the head stays small however many objects rest.
    """

    group: str
    names: tuple[str, ...]
    since: Moment

    def to_json(self) -> _Json:
        return _dump(self)

    @classmethod
    def from_json(cls, data: _Json, *, key: str) -> Self:
        body = _load(data, key, cls)
        try:
            return cls(group=body["group"], names=tuple(body["names"]), since=Moment(**body["since"]))
        except (TypeError, KeyError) as error:
            raise CorruptMetadata(f"metadata key {key} cannot be read: {error!r}", key=key) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogHead:
    """The state of a topic's cold part. Objects cover `[start_offset, tiered_offset)` without a gap.

    `folder`: where its objects lie, fixed when the topic got its first. `epochs`: (epoch, first offset), ascending.
    `producers`: sessions of idempotent producers at `tiered_offset`. `subscriptions`, `schemas`: as of the last
    commit. `epoch`: the owner that may change this; a change by a lower one is refused. `resumes_at`: where above
    `tiered_offset` the log goes on, where what lay between was lost with a broker that was removed.
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
        """The offset from which on the journal has the messages."""
        return max(self.tiered_offset, self.resumes_at)

    def to_json(self) -> _Json:
        return _dump(self)

    @classmethod
    def from_json(cls, data: _Json, *, key: str) -> Self:
        body = _load(data, key, cls)
        try:
            body["epochs"] = tuple((int(epoch), int(first)) for epoch, first in body["epochs"])
            body["retired"] = tuple(Retired(**each) for each in body["retired"])
            body["producers"] = tuple(body["producers"])
            return cls(**body)
        except (TypeError, KeyError, ValueError, AssertionError) as error:
            raise CorruptMetadata(f"metadata key {key} cannot be read: {error!r}", key=key) from error
