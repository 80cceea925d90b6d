"""The blast radius of a plan, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydanube_core.units import counted, human_bytes

_TAKEN: Final = ("messages", "bytes")


def loss_text(radius: Mapping[str, int | None], later: str | None) -> str:
    """Return the loss of a plan, in words. With a `later`, topics and subscriptions stay: they are only touched."""
    if later is None:
        return radius_text(radius)
    gone = radius_text({name: radius[name] for name in _TAKEN})
    touched = radius_text({name: count for name, count in radius.items() if name not in _TAKEN})
    return f"{gone if any(radius[name] for name in _TAKEN) else 'no message'} now, of {touched}. {later}"


def radius_text(radius: Mapping[str, int | None]) -> str:
    """Return a radius in words: `1 topic, 2 subscriptions, 1,200 messages, 3.4 MiB`."""
    parts = [
        human_bytes(count) if name == "bytes" else counted(count, name.removesuffix("s"), spec=",")
        for name, count in radius.items()
        if count
    ]
    return ", ".join(parts) or "nothing that holds data"
