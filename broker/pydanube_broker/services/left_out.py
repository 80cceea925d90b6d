"""Refuse fields of a request that have no effect where they stand, so that no caller relies on them."""

from __future__ import annotations

from collections.abc import Container

from google.protobuf.message import Message
from pydanube_core.errors import InvalidArgument


def check_left_out(request: Message, fields: Container[str], because: str) -> None:
    """Check that none of these fields is set. Raises `InvalidArgument` that names the first one."""
    for field, value in request.ListFields():
        if field.name in fields:
            raise InvalidArgument(
                f"{field.name} {because}: leave it out", field=field.name, value=str(value)[:100]
            )
