"""The commit point: up to which position a topic's log is safe, and may be acknowledged and read.

One pure rule (docs/design.md#4-the-journal), for records of every kind: batches, cursors, sessions, trims. A single
broker uses its own disk. With replicas, a record is safe when every member of the in-sync set *recorded in metadata*
holds it. Clocks decide nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def safe_position(
    *, safe: int, local_durable: int, replicas: Mapping[str, int] | None = None, in_sync: Collection[str] = ()
) -> int:
    """Return the position up to which a topic's records are safe. Positions are addresses in its owner's journal.

    Args:
        safe: the position so far. It never falls.
        local_durable: end of the owner's journal on its stable storage: its disk, or for a topic that is to be stored,
            the object store.
        replicas: the same for each other broker, as it reported for its copy of the topic.
        in_sync: the other members of the recorded in-sync set. One without a report holds nothing new.
    """
    held = local_durable
    for member in in_sync:
        held = min(held, (replicas or {}).get(member, safe))
    return max(safe, held)
