"""Policies of topics and namespaces: their names, the argument that sets them, and which of its changes destroy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field
from pydanube_core.errors import InvalidArgument
from pydanube_core.facts import RetentionFacts
from pydanube_core.refusals import changed_since
from pydanube_core.units import counted, format_time

PolicyName = Literal[
    "max_producers_per_topic",
    "max_subscriptions_per_topic",
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_publish_rate",
    "max_subscription_dispatch_rate",
    "max_message_size",
    "retention_bytes",
    "retention_age_s",
    "retention_offset",
    "drop_unread",
    "alert_unread_messages",
    "alert_unread_age_s",
]


POLICIES: tuple[str, ...] = get_args(PolicyName)


# A map and not a field each: models read the schema with every turn, and the names say what there is to say.
Policies = dict[PolicyName, Annotated[int, Field(ge=0)] | None]


PoliciesArgument = Annotated[
    Policies,
    Field(
        description="0: no limit, null: not set here. Rates are messages a second. Retention waits for "
        "the slowest cursor unless drop_unread is 1. alert_…: per subscription"
    ),
]


_KEPT: Final = ("retention_bytes", "retention_age_s")  # 0: everything


def plain(policies: Policies | None) -> dict[str, int | None]:
    return {str(name): value for name, value in (policies or {}).items()}


def check_some(policies: Policies) -> None:
    if not policies:
        raise InvalidArgument(
            f"policies is empty; name at least one of {', '.join(POLICIES)}", field="policies", value={}
        )


def with_changes(
    effective: Mapping[str, int], given: Mapping[str, int | None], above: Mapping[str, int]
) -> dict[str, int]:
    """The policies that hold after a change: None takes one away, and what is `above` holds in its place."""
    return {
        **effective,
        **{name: above.get(name, 0) if value is None else value for name, value in given.items()},
    }


def shortens_retention(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Whether messages that are kept by the policies before need not be kept by those after."""
    shorter = any(
        after.get(name, 0) and (not before.get(name, 0) or after[name] < before[name]) for name in _KEPT
    )
    further = after.get("retention_offset", 0) > before.get("retention_offset", 0)
    limited = any(after.get(name, 0) for name in (*_KEPT, "retention_offset"))
    unread = limited and after.get("drop_unread", 0) > before.get("drop_unread", 0)
    return shorter or further or unread


def later_text(loss: RetentionFacts) -> str:
    """Say what retention may take after what it takes at once."""
    when = "" if loss.later_from_ms is None else f", the first not before {format_time(loss.later_from_ms)}"
    reading = " once every subscription has acknowledged them" if loss.waits_for_cursors else ", read or not"
    stored = (
        f"{counted(loss.later_messages, 'more message' if loss.messages else 'message')} stored now may go "
        f"later{reading}{when}; so may "
        if loss.later_messages
        else ""
    )
    return f"{stored or 'Later, so may '}what is published from now on"


def restored(
    now: Mapping[str, Any], given: Mapping[str, Any], before: Mapping[str, Any], of: str
) -> dict[str, Any]:
    """The changes that take `given` back. Raises `Conflict` where something has set those policies since."""
    if restoring(now, given) not in (given, restoring(before, given)):
        raise changed_since(f"a policy of {of}")
    return restoring(before, given)


def restoring(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that put back what `given` has changed."""
    return {name: before.get(name) for name in given}
