"""The forecast of a change, computed without making it: the substance of a plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydanube_core.facts import SubscriptionFacts
from pydanube_core.refusals import reused

from pydanube_admin.engine.models import Effect

LIVE_MS: Final = 300_000  # the default of diagnosis.window


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The effects of a change, and the state that a plan for it depends on.

    `effect` and `reversible` are set where this call differs from its operation's declaration: a policy that
    shortens retention destroys. `image` is the state before, as far as an undo needs it, JSON values only.
    `basis` must be equal when the plan is applied. Its default is the differences and the blast radius.
    `counts` is what producers and consumers change. It must be equal, too, unless `was_live`: they changed it
    within the last `LIVE_MS`, so a plan would be stale at once. `pinned` is the present meaning of the request, JSON values only:
    the call that applies the plan finds it in `Context.pinned` and acts on nothing else. Its `topics`, concrete topic → id,
    tell a topic from a later one of the same name. `later` is a
    sentence about later consequences. `messages` and `bytes` of the blast radius are only the immediate loss.
    """

    diff: Sequence[Mapping[str, Any]]  # {path, before, after}
    blast_radius: Mapping[str, int | None] = field(default_factory=lambda: blast_radius())
    effect: Effect | None = None
    reversible: bool | None = None
    image: Mapping[str, Any] | None = None
    basis: Any = None
    counts: Any = None
    was_live: bool | None = None  # None: the plan depends on no counts
    later: str | None = None
    pinned: Mapping[str, Any] | None = None

    @property
    def ground(self) -> list[Any]:
        """Return the state that a plan for it depends on, apart from what producers and consumers change."""
        basis = [list(self.diff), dict(self.blast_radius)] if self.basis is None else self.basis
        return [basis, self.effect]

    @property
    def revision(self) -> str:
        """Return a digest of the ground and, unless clients are at work, one of the counts. See `is_stale`."""
        quiet = self.was_live is False
        return _digest(self.ground) + (f".{_digest(self.counts)}" if quiet else "")


def is_stale(planned: str, now: Forecast) -> bool:
    """Return whether a plan of that revision no longer matches a forecast."""
    ground, _, counts = planned.partition(".")
    return ground != _digest(now.ground) or bool(counts and counts != _digest(now.counts))


def pinned_ids(pinned: Mapping[str, Any] | None) -> Mapping[str, str | None]:
    """Return the concrete topics that a plan pins → their ids. A plan of an earlier build has none: it is stale."""
    topics = (pinned or {}).get("topics")
    return topics if isinstance(topics, Mapping) else {}


def made_again(planned: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return a change {path, planned, now} for each pinned topic in whose place another one of its name is now."""
    before, after = pinned_ids(planned), pinned_ids(now)
    return [
        {"path": f"topics{topic}/topic_id", "planned": topic_id, "now": after[topic]}
        for topic, topic_id in before.items()
        if after.get(topic, topic_id) not in (None, topic_id)
    ]


def is_live(now_ms: int, *times_ms: int | None) -> bool:
    """Return whether any of these times, None for never, is within the last `LIVE_MS`."""
    return any(each is not None and now_ms - each < LIVE_MS for each in times_ms)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12, person=b"pydanube plan").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The traces of a change: the image of its forecast, and its result as JSON (None: unknown)."""

    image: Mapping[str, Any]
    result: Mapping[str, Any] | None

    def check_topic(self, topic: str, topic_id: int) -> None:
        """Raise `NameReused` unless the topic of that name is the one that was changed."""
        if self.image["topic_id"] != str(topic_id):
            raise reused("topic", topic)

    def check_subscription(self, subscription: str, found: Sequence[SubscriptionFacts]) -> None:
        """Raise `NameReused` unless the subscriptions of that name are the ones that were changed."""
        if self.image["subscription_ids"] != [str(facts.subscription_id) for facts in found]:
            raise reused("subscription", subscription)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """How a change is undone in the present state.

    `act` does it. `forecast` describes its effect where that is more than the reverse of the change's
    differences. An undo is an operation like others, and a destructive one requires a plan.
    """

    act: Callable[[], Awaitable[object]]
    forecast: Forecast | None = None


async def nothing_left() -> None:
    """Do nothing: the `act` of an undo that finds nothing to undo."""


MOST_DIFFERENCES: Final = 20  # that a plan lists


def blast_radius(
    *,
    topics: int = 0,
    subscriptions: int = 0,
    consumers: int = 0,
    messages: int | None = 0,
    bytes: int | None = 0,
) -> dict[str, int | None]:
    """Return the numbers of things that a change deletes or else touches. `messages`, `bytes` None: unknown."""
    return {
        "topics": topics,
        "subscriptions": subscriptions,
        "consumers": consumers,
        "messages": messages,
        "bytes": bytes,
    }


def entry(path: str, before: Any, after: Any) -> dict[str, Any]:
    """Return one difference of a plan."""
    return {"path": path, "before": before, "after": after}


def bounded(diff: Sequence[Mapping[str, Any]], *, most: int = MOST_DIFFERENCES) -> list[dict[str, Any]]:
    """Return the first `most` differences, and one entry with count and digest of the others.

    A plan's revision still depends on each difference, and a plan stays small however many subscriptions a
    topic has.
    """
    first = [dict(each) for each in diff[:most]]
    others = list(diff[most:])
    if len(others) > 1:
        return [*first, entry(f"and {len(others):,} more", {"digest": _digest(others)}, None)]
    return [*first, *map(dict, others)]


def changes(path: str, before: Mapping[str, Any], given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one entry for each value that changes. None means not set."""
    return [
        entry(f"{path}/{name}", before.get(name), value)
        for name, value in sorted(given.items())
        if before.get(name) != value
    ]
