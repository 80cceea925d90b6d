"""Delays and lifetimes of messages: two attributes, in milliseconds from the append time.

They are attributes and no column, so that every client, the cold tier and Spark keep them. A batch without attributes is
not read. Otherwise only the names are read, unless one of the two is among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydanube_core.batch.layout import BatchColumn
from pydanube_core.batch.view import BatchView

DELAY_MS: Final = "danube-delay-ms"
TTL_MS: Final = "danube-ttl-ms"
NAMES: Final = (DELAY_MS, TTL_MS)
MOST_MS: Final = 366 * 86_400_000
_WORDS: Final = tuple(name.encode() for name in NAMES)
_COLUMNS_AT: Final = 12  # position of the column bitmap in the producer part
_ATTRIBUTES: Final = int(BatchColumn.ATTRIBUTES)

assert _ATTRIBUTES < 256, "one byte of the bitmap is looked at"


def has_attributes(batch: bytes | memoryview) -> bool:
    """Return whether a batch, passed from its producer part on, has attributes."""
    return bool(batch[_COLUMNS_AT] & _ATTRIBUTES)


def timings(view: BatchView) -> list[tuple[int, int | None]] | None:
    """Return (delay, time to live or None) of each message, None if no message of the batch has either."""
    if len(view) == 1:  # reading its attributes costs no more than reading their names
        (only,) = view.attributes() or ({},)
        if DELAY_MS not in only and TTL_MS not in only:
            return None
        return [(_whole(only, DELAY_MS) or 0, _whole(only, TTL_MS))]
    names = view.attribute_names()
    if not any(word in names for word in _WORDS):
        return None
    return [
        (_whole(each, DELAY_MS) or 0, _whole(each, TTL_MS)) if each else (0, None)
        for each in view.attributes() or ()
    ]


def _whole(attributes: Mapping[str, str], name: str) -> int | None:
    """Return the number in an attribute, None if it is missing or not in the form that our clients send."""
    text = attributes.get(name)
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= 12):
        return None
    return min(int(text), MOST_MS)
