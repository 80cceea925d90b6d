"""The named steps of tiering, and the test hook that ends a process at one of them.

`PYDANUBE_TEST_KILL_AT` names a folder. The process that reaches a step, broker or child, and finds a file of the step's
name there, removes the file and ends itself by SIGKILL: once per file, whichever process comes first. After each kill,
acknowledged messages must be readable and each offset be there once.
"""

from __future__ import annotations

import contextlib
import os
import signal
from enum import StrEnum
from typing import Final

HOOK: Final = "PYDANUBE_TEST_KILL_AT"


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


def reached(step: TierStep) -> None:
    """Note that a step is done."""
    folder = os.environ.get(HOOK)
    if folder is None:
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, step.value))
        os.kill(os.getpid(), signal.SIGKILL)
