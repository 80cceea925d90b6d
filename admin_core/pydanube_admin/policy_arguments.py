"""The argument `policies`, which operations on topics and on namespaces take, and which of its changes destroy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydanube_core.errors import InvalidArgument

from pydanube_admin.models import Policies
from pydanube_admin.policy_names import POLICIES

_KEPT: Final = ("retention_bytes", "retention_age_s")  # 0: everything


def plain(policies: Policies | None) -> dict[str, int | None]:
    return {str(name): value for name, value in (policies or {}).items()}


def check_some(policies: Policies) -> None:
    if not policies:
        raise InvalidArgument(
            f"policies is empty; name at least one of {', '.join(POLICIES)}",
            field="policies",
            value={},
        )


def shortens_retention(
    effective: Mapping[str, int], given: Mapping[str, int | None], above: Mapping[str, int]
) -> bool:
    """Whether messages that are kept now need not be kept then.

    Args:
        effective: what holds now.
        given: the changes; None takes a policy away.
        above: what holds where nothing is set: the namespace's, or the broker's.
    """
    after = dict(effective)
    for name, value in given.items():
        after[name] = above.get(name, 0) if value is None else value
    shorter = any(
        after.get(name, 0) and (not effective.get(name, 0) or after[name] < effective[name]) for name in _KEPT
    )
    further = after.get("retention_offset", 0) > effective.get("retention_offset", 0)
    limited = any(after.get(name, 0) for name in (*_KEPT, "retention_offset"))
    unread = limited and after.get("drop_unread", 0) > effective.get("drop_unread", 0)
    return shorter or further or unread


def restoring(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that put back what `given` has changed."""
    return {name: before.get(name) for name in given}
