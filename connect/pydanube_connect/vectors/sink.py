"""`vectors-sink`: upsert and delete points of pgvector or Qdrant.

The id of a point is the record's key, or its topic, partition and offset. A record that is written again replaces its own point, so
the sink is idempotent. The vector is a field of the record, or comes from a function of the user's.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

import anyio
from pydantic import Field, SecretStr, model_validator
from pydanube_core.errors import InvalidArgument

from pydanube_connect.connector import Guarantee, Settings, Sink
from pydanube_connect.records import Batch, Record, Refused
from pydanube_connect.shaping import function_of
from pydanube_connect.vectors.points import Point, Target

_MOST_DIMENSIONS: Final = 16_000


class VectorsSettings(Settings):
    """Settings of `vectors-sink`."""

    url: str = Field(
        description="postgresql://… for pgvector, http(s)://host:6333 for Qdrant, file:///folder for Qdrant in this process"
    )
    collection: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^\w+(\.\w+)?$",
        description="table or collection, made if missing",
    )
    id: Literal["key", "offset"] = Field(
        default="key",
        description="a point for each key, deleted by a record without a value, or for each record",
    )
    vector_field: str | None = Field(default=None, description="the field that holds the vector")
    embed: str | None = Field(
        default=None,
        description="module:function, from a list of values to a list of vectors, also asynchronous",
    )
    dimensions: int | None = Field(
        default=None, ge=1, le=_MOST_DIMENSIONS, description="unset: those of the first vector"
    )
    distance: Literal["cosine", "l2", "dot"] = Field(
        default="cosine", description="of a collection that is made"
    )
    api_key: SecretStr | None = Field(default=None, description="of Qdrant")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.vector_field is None) == (self.embed is None):
            raise ValueError("give either vector_field or embed")
        if urlsplit(self.url).scheme not in ("postgresql", "postgres", "http", "https", "file"):
            raise ValueError("url: write postgresql://…, http://…, https://… or file:///folder")
        return self


class VectorsSink(Sink[VectorsSettings]):
    """Writes points."""

    def __init__(self, settings: VectorsSettings, *, name: str) -> None:
        super().__init__(settings, name=name)
        self._embed = function_of(settings.embed, "./", "settings.embed") if settings.embed else None
        self._target = _target_of(settings)
        self._dimensions: int | None = None

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.IDEMPOTENT

    async def open(self) -> None:
        await self._target.open()
        self._dimensions = await self._target.dimensions()
        wanted = self.settings.dimensions
        if wanted is not None and self._dimensions not in (None, wanted):
            raise InvalidArgument(
                f"settings.dimensions = {wanted}, and {self.settings.collection} has {self._dimensions}. Correct one of them.",
                field="settings.dimensions", value=wanted,
            )  # fmt: skip

    async def close(self) -> None:
        await self._target.close()

    async def check(self) -> list[str]:
        await self.open()
        if self._dimensions is None:
            return [f"{self.settings.collection} does not exist: it is made from the first batch"]
        return [f"{self.settings.collection} has {self._dimensions} dimensions"]

    async def write(self, batch: Batch) -> None:
        newest = {self._id(record): record for record in batch}
        points = [Point(identity, [], None) for identity, record in newest.items() if record.value is None]
        kept = {identity: record for identity, record in newest.items() if record.value is not None}
        vectors = await self._vectors(list(kept.values()))
        wanted = self._dimensions or self.settings.dimensions or (len(vectors[0]) if vectors else None)
        wrong = [
            record for record, vector in zip(kept.values(), vectors, strict=True) if len(vector) != wanted
        ]
        if wrong:
            raise Refused(
                wrong, f"the vector does not have the {wanted} dimensions of {self.settings.collection}"
            )
        for (identity, record), vector in zip(kept.items(), vectors, strict=True):
            points.append(Point(identity, vector, self._payload(record)))
        if self._dimensions is None and wanted is not None:
            await self._target.make(wanted)
            self._dimensions = wanted
        if self._dimensions is not None:
            await self._target.write(points)

    def _id(self, record: Record) -> str:
        if self.settings.id == "offset":
            return record.id
        if record.key is None:
            raise Refused(
                [record], 'the record has no key. Set key in [shape], or id = "offset" in [settings].'
            )
        return record.key

    def _payload(self, record: Record) -> dict[str, Any]:
        value = record.value if isinstance(record.value, dict) else {"value": record.value}
        return {name: field for name, field in value.items() if name != self.settings.vector_field}

    async def _vectors(self, records: Sequence[Record]) -> list[list[float]]:
        if not records:
            return []
        if self._embed is None:
            found = [record.field(str(self.settings.vector_field)) for record in records]
        else:
            found = await self._embedded([record.value for record in records])
        bad = [record for record, vector in zip(records, found, strict=True) if not _is_vector(vector)]
        if bad:
            raise Refused(bad, "the vector is no list of finite numbers")
        return [[float(number) for number in vector] for vector in found]

    async def _embedded(self, values: list[Any]) -> list[Any]:
        assert self._embed is not None
        answer: Any
        if inspect.iscoroutinefunction(self._embed):
            answer = await self._embed(values)
        else:
            answer = await anyio.to_thread.run_sync(self._embed, values)
        found = [vector.tolist() if hasattr(vector, "tolist") else vector for vector in answer]
        if len(found) != len(values):
            raise InvalidArgument(
                f"settings.embed = {self.settings.embed!r} returned {len(found)} vectors for {len(values)} values. Return one "
                "for each value, in their order.", field="settings.embed", value=self.settings.embed,
            )  # fmt: skip
        return found


def _is_vector(vector: Any) -> bool:
    if not isinstance(vector, list | tuple) or not vector or len(vector) > _MOST_DIMENSIONS:
        return False
    numbers = [
        number for number in vector if isinstance(number, int | float) and not isinstance(number, bool)
    ]
    return len(numbers) == len(vector) and all(math.isfinite(number) for number in numbers)


def _target_of(settings: VectorsSettings) -> Target:
    if urlsplit(settings.url).scheme.startswith("postgres"):
        from pydanube_connect.vectors.pgvector import PgVector

        return PgVector(settings.url, settings.collection, settings.distance)
    from pydanube_connect.vectors.qdrant import Qdrant

    key = settings.api_key.get_secret_value() if settings.api_key is not None else None
    return Qdrant(settings.url, settings.collection, settings.distance, key)
