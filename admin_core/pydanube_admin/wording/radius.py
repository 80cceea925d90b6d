"""The blast radius of a plan, in words."""

from __future__ import annotations

from collections.abc import Mapping
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
    taken = {name: count for name, count in radius.items() if name in _TAKEN and count}
    touched = {name: count for name, count in radius.items() if name not in _TAKEN and count}
    now = f"{radius_text(taken) if taken else 'no message'} now"
    return f"{now}, of {radius_text(touched)}" if touched else now


def radius_text(radius: Mapping[str, int | None]) -> str:
    """Return a radius in words: `1 topic, 2 subscriptions, 1,200 messages, 3.4 MiB`."""
    parts = [
        human_bytes(count) if name == "bytes" else counted(count, name.removesuffix("s"), spec=",")
        for name, count in radius.items()
        if count
    ]
    return ", ".join(parts) or "nothing that holds data"
