"""The commit point: which part of a topic's log may be acknowledged, read and moved on from.

One pure rule (docs/design.md#4-the-journal). Alone, a broker commits what its own disk holds. With replicas, a
message is committed when every member of the in-sync set *recorded in metadata* holds it; clocks decide nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def commit_offset(
    *,
    committed: int,
    local_durable: int,
    replicas: Mapping[str, int] | None = None,
    in_sync: Collection[str] = (),
) -> int:
    """One past the last committed offset.

    Args:
        committed: the commit offset so far; it never falls.
        local_durable: one past the last offset that is on this broker's stable storage.
        replicas: the same, as each other broker has reported it.
        in_sync: the other members of the recorded in-sync set; one that has reported nothing holds nothing new.
    """
    held = local_durable
    for member in in_sync:
        held = min(held, (replicas or {}).get(member, committed))
    return max(committed, held)
