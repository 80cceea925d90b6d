"""The columns of an object, and its footer.

==============  ===========================  =====================================================================
column          type                         meaning
==============  ===========================  =====================================================================
offset          int64                        ascending. Gaps are offsets without a message
append_time     timestamp[ms, UTC]           the broker's clock, never decreasing in a topic
publish_time    timestamp[ms, UTC]           the producer's clock
producer        struct<id: uint64, name>     name is "" if the batch has none
sequence        int64                        number of the message within its producer
key             string, nullable             "" is a key, null is none
attributes      map<string, string>          empty if the message has none
schema_id       uint64, nullable             null: no schema
schema_version  uint32, nullable
payload         binary                       in format 2 nullable: null is a null payload, and has its attribute
==============  ===========================  =====================================================================

The keys of our metadata in the footer begin with `danube.`. `Meta` is that part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import pyarrow as pa
from pydanube_core.errors import CorruptObject, FormatTooNew

FORMAT_VERSION: Final = 1  # of an object without a null payload
READS_VERSION: Final = 2  # in format 2 a null payload is also null in its column, beside its attribute
_PREFIX: Final = "danube."
_TIME: Final = pa.timestamp("ms", tz="UTC")

PRODUCER: Final = pa.struct(
    [pa.field("id", pa.uint64(), nullable=False), pa.field("name", pa.string(), nullable=False)]
)
ATTRIBUTES: Final = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("append_time", _TIME, nullable=False),
        pa.field("publish_time", _TIME, nullable=False),
        pa.field("producer", PRODUCER, nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("attributes", ATTRIBUTES, nullable=False),
        pa.field("schema_id", pa.uint64()),
        pa.field("schema_version", pa.uint32()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
SCHEMA_2: Final = SCHEMA.set(SCHEMA.get_field_index("payload"), SCHEMA.field("payload").with_nullable(True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The facts in an object's footer. Offsets are the covered range `[start, end)`, as in its name.

    `epochs`: (epoch, its first offset in this object), ascending. `subscriptions` and `schemas` are as of the time of
    writing, to restore them if the metadata is lost. `format_version` of an object to write is the highest allowed one.
    `durability`: at which the messages were acknowledged, in lost+found. "" in other objects.
    """

    cluster: str
    topic: str
    topic_id: int
    start: int
    end: int
    epochs: tuple[tuple[int, int], ...] = ()
    subscriptions: Mapping[str, Any] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    durability: str = ""

    def to_footer(self) -> dict[str, str]:
        acknowledged = {f"{_PREFIX}durability": self.durability} if self.durability else {}
        return acknowledged | {
            f"{_PREFIX}format_version": str(self.format_version),
            f"{_PREFIX}cluster": self.cluster,
            f"{_PREFIX}topic": self.topic,
            f"{_PREFIX}topic_id": str(self.topic_id),
            f"{_PREFIX}start_offset": str(self.start),
            f"{_PREFIX}end_offset": str(self.end),
            f"{_PREFIX}epochs": json.dumps(self.epochs),
            f"{_PREFIX}subscriptions": json.dumps(self.subscriptions),
            f"{_PREFIX}schemas": json.dumps(self.schemas),
        }

    @classmethod
    def from_footer(cls, footer: Mapping[bytes, bytes] | None, *, key: str) -> Self:
        """Parse a footer. Raises `CorruptObject` if it is not ours, `FormatTooNew` for a later version."""
        try:
            said = {name.decode(): value.decode() for name, value in (footer or {}).items()}
            version = int(said[f"{_PREFIX}format_version"])
            if version > READS_VERSION:
                raise FormatTooNew(
                    f"object {key} has format {version}, this version reads up to {READS_VERSION}: use a newer one",
                    key=key,
                    format_version=version,
                    supported=READS_VERSION,
                )
            return cls(
                cluster=said[f"{_PREFIX}cluster"],
                topic=said[f"{_PREFIX}topic"],
                topic_id=int(said[f"{_PREFIX}topic_id"]),
                start=int(said[f"{_PREFIX}start_offset"]),
                end=int(said[f"{_PREFIX}end_offset"]),
                epochs=tuple(
                    (int(epoch), int(first)) for epoch, first in json.loads(said[f"{_PREFIX}epochs"])
                ),
                subscriptions=json.loads(said[f"{_PREFIX}subscriptions"]),
                schemas=json.loads(said[f"{_PREFIX}schemas"]),
                format_version=version,
                durability=said.get(f"{_PREFIX}durability", ""),
            )
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise CorruptObject(
                f"object {key} has a footer that is not ours: {error!r}", key=key, cause="footer"
            ) from error
