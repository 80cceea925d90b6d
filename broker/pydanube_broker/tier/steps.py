"""The named steps of tiering, at which a test can kill the broker or its child (`pydanube_core.kill_steps`).

After each kill, acknowledged messages must be readable and each offset be there once.
"""

from __future__ import annotations

from enum import StrEnum


class TierStep(StrEnum):
    PLANNED = "planned"  # broker: the range is chosen, nothing is written
    ENCODED = "encoded"  # child: the object is in the spool
    UPLOADED = "uploaded"  # child: it is in the store
    VERIFIED = "verified"  # child: it was read back
    ANSWERED = "answered"  # broker: it has the child's answer
    COMMITTED = "committed"  # broker: the catalog has it
    TRIMMED = "trimmed"  # broker: journal segments were given up
    MERGED = "merged"  # child: the compacted object is in the store
    REPLACED = "replaced"  # broker: the catalog has it in place of its sources
    DROPPED = "dropped"  # broker: retention has taken objects out of the catalog
    RETAINED = "retained"  # broker: the topic begins behind them
    DELETED = "deleted"  # child: an object that counts no more is gone
    FORGOTTEN = "forgotten"  # broker: the catalog has no record of those any more
    DISCARDED = "discarded"  # broker: a deleted topic's objects are gone, the catalog still has its head
