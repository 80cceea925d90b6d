"""The points that `vectors-sink` writes, and what a vector database has to offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Point(NamedTuple):
    """A point to write. `payload` is None for a deletion."""

    id: str
    vector: list[float]
    payload: dict[str, Any] | None


class Target(Protocol):
    """A vector database."""

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Disconnect."""

    async def dimensions(self) -> int | None:
        """Return the dimensions of the collection, or None if it does not exist."""

    async def make(self, dimensions: int) -> None:
        """Make the collection."""

    async def write(self, points: Sequence[Point]) -> None:
        """Upsert and delete points with distinct ids. They are on stable storage when this returns."""
