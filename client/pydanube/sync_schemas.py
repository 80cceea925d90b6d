"""The registry without await."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydanube.facts import SchemaRef
from pydanube.schemas import Registered, Schema
from pydanube.schemas import Schemas as _Schemas
from pydanube.sync_loop import Loop


class Schemas:
    """As `pydanube.Schemas`."""

    def __init__(self, loop: Loop, inner: _Schemas) -> None:
        self._loop = loop
        self._inner = inner

    def register(
        self,
        subject: str,
        schema_type: str,
        definition: bytes | str,
        *,
        description: str = "",
        created_by: str = "",
        tags: tuple[str, ...] = (),
    ) -> Registered:
        """As `pydanube.Schemas.register`."""
        return self._loop.call(
            self._inner.register(
                subject, schema_type, definition, description=description, created_by=created_by, tags=tags
            )
        )

    def latest(self, subject: str) -> Schema:
        """As `pydanube.Schemas.latest`."""
        return self._loop.call(self._inner.latest(subject))

    def get(self, ref: SchemaRef) -> Schema:
        """As `pydanube.Schemas.get`."""
        return self._loop.call(self._inner.get(ref))

    def decode(self, message: Any, *, into: Callable[..., Any] | None = None) -> Any:
        """As `pydanube.Schemas.decode`."""
        return self._loop.call(self._inner.decode(message, into=into))
