"""Key and attributes of a message made for sending, in the place of a delivery."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from pydanube_core.errors import Misuse


class _NoAcks:
    """Stands in for a received message's gatherer. Acknowledges nothing."""

    __slots__ = ()
    next = -2

    def note(self, first: int, end: int) -> None:
        raise Misuse("this message was made to be sent. Only received messages can be acked")


class OutgoingFields:
    """Key and attributes of a message made by `Message.new`, in the place of a delivery."""

    __slots__ = ("attributes", "key")
    acks = _NoAcks()

    def __init__(self, key: str | None, attributes: Mapping[str, str]) -> None:
        self.key = key
        self.attributes = attributes


@lru_cache(maxsize=4096)
def outgoing_with(key: str | None) -> OutgoingFields:
    """Return an object shared by messages with one key, which saves making one each."""
    return OutgoingFields(key, MappingProxyType({}))
