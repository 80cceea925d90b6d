"""The named steps of tiering, and the test hook that ends a process at one of them.

`PYDANUBE_TEST_KILL_AT=step` or `step:3` (its third time) sends SIGKILL to the process that reaches it, broker or
child: after each, acknowledged messages must be readable and each offset be there once.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from enum import StrEnum
from typing import Final

__all__ = ["HOOK", "Step", "reached"]

HOOK: Final = "PYDANUBE_TEST_KILL_AT"


class Step(StrEnum):
    PLANNED = "planned"  # broker: the range is chosen, nothing is written
    ENCODED = "encoded"  # child: the object is in the spool
    UPLOADED = "uploaded"  # child: it is in the store
    VERIFIED = "verified"  # child: it was read back
    ANSWERED = "answered"  # broker: it knows of the object
    COMMITTED = "committed"  # broker: the catalog has it
    TRIMMED = "trimmed"  # broker: journal segments were given up
    MERGED = "merged"  # child: the compacted object is in the store
    REPLACED = "replaced"  # broker: the catalog has it in place of its sources
    DROPPED = "dropped"  # broker: retention has taken objects out of the catalog
    DELETED = "deleted"  # child: objects that count no more are gone


_seen: Counter[str] = Counter()


def reached(step: Step) -> None:
    """Note that a step is done."""
    wanted = os.environ.get(HOOK)
    if wanted is None:
        return
    name, _, times = wanted.partition(":")
    if name == step.value:
        _seen[name] += 1
        if _seen[name] == int(times or "1"):
            os.kill(os.getpid(), signal.SIGKILL)
