"""Null payloads: an empty payload beside an attribute. A null marks its key as deleted, and is not an empty payload.

It is an attribute and no column, as delays are (`timing`), so that every client, old build, mirror and object carries it.
The attribute beside a payload that is not empty has no meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydanube_core.batch.view import BatchView

NULL: Final = "danube-null"
_WORD: Final = NULL.encode()


def is_null(payload: bytes | memoryview, attributes: Mapping[str, str] | None) -> bool:
    """Return whether a message with this payload and these attributes has a null payload."""
    return not payload and attributes is not None and NULL in attributes


def nulls(view: BatchView, payloads: Sequence[bytes]) -> list[bool] | None:
    """Return for each message of a batch whether its payload is null. None if none is.

    Without attributes of that name, no message is looked at.
    """
    if _WORD not in view.attribute_names():
        return None
    found = [is_null(payload, own) for payload, own in zip(payloads, view.attributes() or (), strict=True)]
    return found if any(found) else None
