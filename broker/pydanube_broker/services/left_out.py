"""Refuses fields of a request that have no effect there, so that no caller relies on them."""

from __future__ import annotations

from collections.abc import Container

from google.protobuf.message import Message
from pydanube_core.errors import InvalidArgument


def check_left_out(request: Message, fields: Container[str], because: str) -> None:
    """Check that none of these fields is set. Raises `InvalidArgument` for the first one that is."""
    for field, value in request.ListFields():
        if field.name in fields:
            raise InvalidArgument(
                f"{field.name} {because}: leave it out", field=field.name, value=str(value)[:100]
            )
