"""Frozen dataclasses that the metadata store keeps as JSON objects of their fields."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Self


class StoredJson:
    """Mix-in of a record without a version."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        made: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return json.dumps(made, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a stored record. Raises `ValueError`, `LookupError`, `TypeError`, `InvalidArgument`: it is damaged."""
        return cls(**json.loads(data))


class VersionedJson:
    """Mix-in of a record with a version. A record of another version is not read."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        made: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return json.dumps({"version": 1, **made}, default=str).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a stored record. Raises `ValueError`, `TypeError`, `LookupError`, `AttributeError`: it is damaged."""
        body = json.loads(data)
        body.pop("version")
        return cls(**body)
