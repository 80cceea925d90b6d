"""Why the tier is behind, for `/status`: the store's owner, its errors, a lack of disk space."""

from __future__ import annotations

from typing import Final

from pydanube_core.errors import DiskFull, StoreOwned, StoreUnavailable
from pydanube_core.facts import Reason

from pydanube_broker.tier.flushing import Flusher
from pydanube_broker.tier.holding import StoreHold
from pydanube_broker.tier.maintenance import Maintenance

_SILENT_TIMES: Final = 2  # times `tier.timeout`
_SILENT_S: Final = 30.0  # what writing an object may take beside, while everybody else comes first


def reasons_of(
    hold: StoreHold,
    flusher: Flusher,
    tending: Maintenance,
    *,
    url: str,
    waiting_s: float,
    timeout_s: float,
    no_room: DiskFull | None,
) -> tuple[Reason, ...]:
    """Return the reasons; each says what to do.

    Args:
        waiting_s: how long the oldest call of the store has had no answer.
        no_room: why flushes that are due wait.
    """
    found = []
    errors = [failure.error for failure in flusher.failures.values()]
    away = flusher.store_error()
    if not hold.held and hold.reason is not None:
        found.append(Reason(code=hold.code, message=hold.reason.message))
    if hold.held and away is not None:
        found.append(Reason(code="TIER_STORE_UNAVAILABLE", message=away.message))
    elif hold.held and waiting_s > _SILENT_TIMES * timeout_s + _SILENT_S:
        found.append(  # a call that has no end: no error, and nothing gets on
            Reason(
                code="TIER_STORE_UNAVAILABLE",
                message=f"the object store {url} has not answered for {waiting_s:.0f} s: check the disk or the network "
                "behind it; the broker goes on when it does",
            )
        )
    too_large = next((error for error in errors if isinstance(error, DiskFull)), None)
    full = no_room or too_large or tending.no_room()
    if full is not None:
        found.append(Reason(code="TIER_DISK_GUARD", message=full.message))
    others = [error for error in errors if not isinstance(error, StoreUnavailable | StoreOwned | DiskFull)]
    if others:
        found.append(Reason(code="TIER_TOPIC_FAILING", message=f"{len(others)} topics: {others[0].message}"))
    troubles = [trouble.error for trouble in tending.troubles.values()]
    if troubles:
        found.append(
            Reason(code="TIER_UPKEEP_FAILING", message=f"{len(troubles)} topics: {troubles[0].message}")
        )
    return tuple(found)
