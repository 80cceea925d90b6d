"""Check arguments of callers before the broker is called. An error names field and value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from pydanube_core.errors import InvalidArgument

MOST: Final = (1 << 53) - 1  # largest integer that JSON and every client language represent exactly


def check_choice(field: str, value: object, choices: Any) -> None:
    """Check that a value is one of the words of a `Literal`."""
    words = get_args(choices)
    if not isinstance(value, str) or value not in words:
        listed = f"{', '.join(words[:-1])} or {words[-1]}"
        raise InvalidArgument(f"{field} {shown(value)!r}: use {listed}", field=field, value=shown(value))


def check_flag(field: str, value: object) -> None:
    """Check that a value is True or False, and not just equal to it."""
    if not isinstance(value, bool):
        raise InvalidArgument(
            f"{field} is True or False, got {shown(value)!r}", field=field, value=shown(value)
        )


def check_number(field: str, value: object, low: float, high: float) -> None:
    """Check that a value is a number within bounds, and not NaN."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:  # type: ignore[operator]
        raise _out_of_bounds(field, value, "", low, high)


def check_whole(field: str, value: object, low: int, high: int = MOST) -> None:
    """Check that a value is a whole number within bounds."""
    if type(value) is not int or not low <= value <= high:
        raise _out_of_bounds(field, value, "a whole number ", low, high)


def check_text(field: str, value: object) -> None:
    """Check that a value is text that can be encoded as UTF-8."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"{field} has a lone surrogate at {error.start}, which no UTF-8 can hold",
                field=field,
                value=repr(value)[:200],
            ) from None
    else:
        raise InvalidArgument(f"{field} is text, got {shown(value)!r}", field=field, value=shown(value))


def check_texts(field: str, value: object, most: int) -> None:
    """Check a list of texts, at most so many. A single text is refused."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidArgument(
            f"{field} is a list of texts, got {shown(value)!r}", field=field, value=shown(value)
        )
    if len(value) > most:
        raise InvalidArgument(
            f"{field} has {len(value)} texts, {most} at most", field=field, value=len(value)
        )
    for each in value:
        check_text(field, each)


def with_timing(
    attributes: Mapping[str, str] | None,
    delay_ms: int | None,
    ttl_ms: int | None,
    dispatch_strategy: str | None = None,
) -> dict[str, str]:
    """Return the attributes of a message, with its delay and its time to live."""
    from pydanube_core.batch.timing import DELAY_MS, MOST_MS, TTL_MS

    timed = dict(attributes or {})
    for field, name, value in (("delay_ms", DELAY_MS, delay_ms), ("ttl_ms", TTL_MS, ttl_ms)):
        if value is not None:
            check_whole(field, value, 0, MOST_MS)
            timed[name] = str(value)
    if delay_ms and dispatch_strategy == "non_reliable":
        raise InvalidArgument(
            "delay_ms: a non-reliable topic keeps nothing for later", field="delay_ms", value=delay_ms
        )
    return timed


def with_null(attributes: Mapping[str, str] | None, key: str | None) -> dict[str, str]:
    """Return the attributes of a message whose payload is null. Raises `InvalidArgument` if it has no key."""
    from pydanube_core.batch.nulls import NULL

    if key is None:
        raise InvalidArgument(
            "a payload is bytes, got None. A null payload marks its key as deleted, and takes key=. An empty payload is b''",
            field="payload",
            value=None,
        )
    return {**(attributes or {}), NULL: "1"}


def _out_of_bounds(field: str, value: object, kind: str, low: float, high: float) -> InvalidArgument:
    bounds = f"at least {low}" if high in (MOST, math.inf) else f"from {low} to {high}"
    return InvalidArgument(
        f"{field} is {kind}{bounds}, got {shown(value)!r}", field=field, value=shown(value)
    )


def shown(value: object) -> object:
    """Return the value in a form that an error can carry."""
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= MOST):
        return value
    if isinstance(value, int):
        return f"a number of {value.bit_length()} bits"
    return value[:200] if isinstance(value, str) else repr(value)[:200]
