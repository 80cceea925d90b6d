"""What previews are made of: differences, and how much a change touches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["blast_radius", "changes"]


def blast_radius(
    *, topics: int = 0, subscriptions: int = 0, consumers: int = 0, messages: int = 0, bytes: int = 0
) -> dict[str, int]:
    """What a change touches, or for one that destroys: what it takes away."""
    return {
        "topics": topics,
        "subscriptions": subscriptions,
        "consumers": consumers,
        "messages": messages,
        "bytes": bytes,
    }


def changes(path: str, before: Mapping[str, Any], given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry for each value that would be another; None is not set."""
    return [
        {"path": f"{path}/{name}", "before": before.get(name), "after": value}
        for name, value in sorted(given.items())
        if before.get(name) != value
    ]
