"""The tier's status: why it is behind (the store's owner, its errors, a lack of disk space), and its progress."""

from __future__ import annotations

from typing import Any, Final

from pydanube_core.errors import DiskFull, StoreOwned, StoreUnavailable
from pydanube_core.facts import Reason
from pydanube_core.secrets import without_passwords

from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.topic import now_ms

_SILENT_TIMES: Final = 2  # times `tier.timeout`
_SILENT_S: Final = 30.0  # additional time for writing an object at low priority


def reasons_of(tier: Tier) -> tuple[Reason, ...]:
    """Return the reasons why the tier is behind, with remedies. The broker stays ready."""
    if tier.missing is not None:
        return (Reason(code="TIER_OFF", message=tier.missing.message),)
    hold, flusher, tending = tier.hold, tier.flusher, tier.tending
    waiting_s = tier.child.longest_wait_s()
    found = []
    errors = [failure.error for failure in flusher.failures.values()]
    away = flusher.store_error()
    if not hold.held and hold.reason is not None:
        found.append(Reason(code=hold.code, message=hold.reason.message))
    if hold.held and away is not None:
        found.append(Reason(code="TIER_STORE_UNAVAILABLE", message=away.message))
    elif hold.held and waiting_s > _SILENT_TIMES * tier.options.timeout_s + _SILENT_S:
        found.append(  # a call that does not end raises no error
            Reason(
                code="TIER_STORE_UNAVAILABLE",
                message=f"the object store {tier.options.url} has not answered for {waiting_s:.0f} s: check the disk "
                "or the network behind it. The broker goes on when it does",
            )
        )
    too_large = next((error for error in errors if isinstance(error, DiskFull)), None)
    full = tier.no_room or too_large or tending.no_room()
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


def status_of(tier: Tier) -> dict[str, Any]:
    """Return the `tier` part of `brokers.status`."""
    if tier.missing is not None:
        return {"enabled": False, "reason": tier.missing.message}
    options, oldest = tier.options, tier.oldest_due_ms
    return {
        "enabled": True,
        "url": without_passwords(options.url),
        "cluster": tier.cluster,
        "endpoint": without_passwords(options.endpoint or "") or None,
        "region": options.region,
        "path_style": options.path_style,
        "profile": options.profile,
        "role": options.role,
        **{f"objects_{event}": count for event, count in tier.object_counts().items()},
        "bytes_in": tier.flusher.bytes_in,
        "bytes_out": tier.flusher.bytes_out,
        "backlog_bytes": tier.backlog_bytes,
        "oldest_due_age_s": None if oldest is None else round((now_ms() - oldest) / 1000, 1),
        "errors": tier.errors,
        "failing_topics": len(tier.flusher.failures),
        "cold_reads": tier.cold.reads,
        "cold_cache_bytes": tier.cold.cache.used_bytes,
        "process_id": tier.child.pid,
        "process_deaths": tier.child.deaths,
        "work": tier.long_work.status(now_ms()),
        "reasons": [reason.code for reason in reasons_of(tier)],
    }
