"""The argument `policies`, which operations on topics and on namespaces take."""

from __future__ import annotations

from pydanube_core.errors import InvalidArgument

from pydanube_admin.models import Policies
from pydanube_admin.policy_names import POLICIES

__all__ = ["check_some", "plain"]


def plain(policies: Policies | None) -> dict[str, int | None]:
    return {str(name): value for name, value in (policies or {}).items()}


def check_some(policies: Policies) -> None:
    if not policies:
        raise InvalidArgument(
            f"policies is empty; name at least one of {', '.join(POLICIES)}",
            field="policies",
            value={},
        )
