"""The blast radius of a plan, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydanube_core.units import counted, human_bytes

_TAKEN: Final = ("messages", "bytes")


def loss_text(radius: Mapping[str, int | None], later: str | None) -> str:
    """Return the loss of a plan, in words, with the sentence about later consequences."""
    lost = lost_text(radius, later)
    return lost if later is None else f"{lost}. {later}"


def lost_text(radius: Mapping[str, int | None], later: str | None) -> str:
    """Return the immediate loss. With a `later`, topics and subscriptions stay, and only messages of them go."""
    if later is None:
        return radius_text(radius)
    taken = {name: count for name, count in radius.items() if name in _TAKEN}
    touched = {name: count for name, count in radius.items() if name not in _TAKEN and count}
    now = f"{_text(taken) or 'no message'} now"
    return f"{now}, of {radius_text(touched)}" if touched else now


def radius_text(radius: Mapping[str, int | None]) -> str:
    """Return a radius in words: `1 topic, 2 subscriptions, 1,200 messages, 3.4 MiB`."""
    return _text(radius) or "nothing that holds data"


def sums_of(radii: Sequence[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Return the sums of radii. One is unknown if it is unknown in one radius."""
    sums: dict[str, int | None] = {}
    for name in radii[0]:
        counts = [radius[name] for radius in radii]
        sums[name] = None if None in counts else sum(count for count in counts if count is not None)
    return sums


def _text(radius: Mapping[str, int | None]) -> str:
    return ", ".join(
        _part(name, count) for name, count in radius.items() if count or _is_unknown(name, count)
    )


def _is_unknown(name: str, count: int | None) -> bool:
    return name != "bytes" and count is None  # the text leaves out unknown bytes, beside their messages


def _part(name: str, count: int | None) -> str:
    if count is None:
        return f"an unknown number of {name}"
    return human_bytes(count) if name == "bytes" else counted(count, name.removesuffix("s"), spec=",")
