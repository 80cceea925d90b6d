"""Errors of payloads that do not match their schema. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from pydanube_core.schema_formats.fault import Fault as Fault

_FIRST_US: Final = -62_135_596_800_000_000  # 0001-01-01, the first day that Spark and Python both support
_END_US: Final = 253_402_300_800_000_000  # 10000-01-01
_DAY_US: Final = 86_400_000_000


#: exceptions of decoders for invalid payloads, which are untrusted bytes
FAULTS: Final = (
    *(ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError),
    struct.error,
)


class Format(Protocol):
    """A schema in the reader's version. `type`: the column's Arrow type."""

    @property
    def type(self) -> Any: ...

    def reading(self, writer: bytes) -> Callable[[bytes], Any]:
        """Return the function that reads payloads of a definition as `type`. Raises `Fault` if that is impossible."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Text, bytes and numbers, whose content no schema describes."""

    type: Any
    read: Callable[[bytes], Any]

    def reading(self, writer: bytes) -> Callable[[bytes], Any]:
        return self.read


def micros_in_range(value: int) -> int:
    """Return microseconds since 1970 unchanged. Raises `Fault` outside of the years 1 to 9999."""
    if not _FIRST_US <= value < _END_US:
        raise Fault(f"{value} µs since 1970 is not between the years 1 and 9999")
    return value


def day_in_range(value: int) -> int:
    """Return days since 1970 unchanged. Raises `Fault` outside of the years 1 to 9999."""
    micros_in_range(value * _DAY_US)
    return value


def micros_of(value: datetime) -> int:
    """Return whole microseconds since 1970. A time without a zone counts as UTC."""
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    past = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds


def text(value: str) -> str:
    """Return a string unchanged. Raises `ValueError` for a lone surrogate, which UTF-8 cannot encode."""
    if not value.isascii():
        value.encode()
    return value
