"""Points of Qdrant. An id is a UUID made of the record's id, which stays readable as `danube_id` of the payload."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from pydanube_core.errors import InvalidArgument, Unauthenticated
from qdrant_client import AsyncQdrantClient
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse
from qdrant_client.http.models import Distance, PointIdsList, PointStruct, VectorParams

from pydanube_connect.records import RetryLater
from pydanube_connect.values import json_payload
from pydanube_connect.vectors.points import Point

_NAMESPACE: Final = uuid.UUID("3f0a8a4e-5c0b-4b5e-9f43-6c0d5d0d7a11")
_DISTANCES: Final = {"cosine": Distance.COSINE, "l2": Distance.EUCLID, "dot": Distance.DOT}
_ANSWER_S: Final = 30


class Qdrant:
    """A collection with one unnamed vector for each point."""

    def __init__(self, url: str, collection: str, distance: str, api_key: str | None) -> None:
        self._url = url
        self._collection = collection
        self._distance = _DISTANCES[distance]
        self._api_key = api_key
        self._client: AsyncQdrantClient | None = None

    async def open(self) -> None:
        where: dict[str, Any] = {"url": self._url, "api_key": self._api_key, "timeout": _ANSWER_S}
        if urlsplit(self._url).scheme == "file":
            where = {"path": urlsplit(self._url).path}
        self._client = AsyncQdrantClient(**where, check_compatibility=False)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def dimensions(self) -> int | None:
        assert self._client is not None
        try:
            if not await self._client.collection_exists(self._collection):
                return None
            found = (await self._client.get_collection(self._collection)).config.params.vectors
        except (ApiException, OSError) as error:
            raise self._failed(error) from None
        if not isinstance(found, VectorParams):
            raise InvalidArgument(
                f"collection {self._collection} has named vectors, and this sink writes one without a name. Choose another "
                "settings.collection.", field="settings.collection", value=self._collection,
            )  # fmt: skip
        return found.size

    async def make(self, dimensions: int) -> None:
        assert self._client is not None
        try:
            await self._client.create_collection(
                self._collection, vectors_config=VectorParams(size=dimensions, distance=self._distance)
            )
        except (ApiException, OSError) as error:
            raise self._failed(error) from None

    async def write(self, points: Sequence[Point]) -> None:
        assert self._client is not None
        gone: list[Any] = [_id(point) for point in points if point.payload is None]
        kept = [
            PointStruct(id=_id(point), vector=point.vector, payload=_plain(point)) for point in points if point.payload is not None
        ]  # fmt: skip
        try:
            if gone:
                await self._client.delete(self._collection, PointIdsList(points=gone), wait=True)
            if kept:
                await self._client.upsert(self._collection, kept, wait=True)
        except (ApiException, OSError) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> Exception:
        text = f"Qdrant at {self._url}: {' '.join(str(error).split())[:300]}"
        if isinstance(error, UnexpectedResponse) and error.status_code in (401, 403):
            return Unauthenticated(f"{text}. Correct settings.api_key.")
        return RetryLater(reason=text)


def _id(point: Point) -> str:
    return str(uuid.uuid5(_NAMESPACE, point.id))


def _plain(point: Point) -> dict[str, Any]:
    return {**json.loads(json_payload(point.payload)), "danube_id": point.id}
