"""SecurityAdmin: there are no roles yet, and no method pretends."""

from __future__ import annotations

from google.protobuf.message import Message
from pydanube_core.errors import NotImplementedYet


async def refuse(_: Message) -> Message:
    """The answer of every method."""
    raise NotImplementedYet(
        "roles, bindings and tokens come with authentication; until then everybody may do all"
    )
