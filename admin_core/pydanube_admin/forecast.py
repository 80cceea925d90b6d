"""What a change would do, worked out without doing it: the substance of a plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydanube_admin.effect import Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What would be another after a change, and what a plan for it stands on.

    `effect` and `reversible` are set where this very call is not what the operation usually is: a policy that
    shortens retention destroys. `image` is what an undo needs of the state before, JSON values only. `basis` is what
    must still be so when the plan is applied; without it, the differences and the blast radius.
    """

    diff: Sequence[Mapping[str, Any]]  # {path, before, after}
    blast_radius: Mapping[str, int]
    effect: Effect | None = None
    reversible: bool | None = None
    image: Mapping[str, Any] | None = None
    basis: Any = None

    @property
    def revision(self) -> str:
        """A digest of the basis: another one means that the plan is stale."""
        basis = [list(self.diff), dict(self.blast_radius)] if self.basis is None else self.basis
        text = json.dumps([basis, self.effect], sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=12, person=b"pydanube plan").hexdigest()


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


def radius_text(radius: Mapping[str, int]) -> str:
    """`1 topic, 2 subscriptions, 1200 messages`."""
    parts = [f"{count} {name[:-1] if count == 1 else name}" for name, count in radius.items() if count]
    return ", ".join(parts) or "nothing that holds data"


def entry(path: str, before: Any, after: Any) -> dict[str, Any]:
    """One difference."""
    return {"path": path, "before": before, "after": after}


def changes(path: str, before: Mapping[str, Any], given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry for each value that would be another; None is not set."""
    return [
        entry(f"{path}/{name}", before.get(name), value)
        for name, value in sorted(given.items())
        if before.get(name) != value
    ]
