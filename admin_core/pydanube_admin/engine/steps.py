"""The named steps of a change, and the test hook that ends the process at one of them.

`PYDANUBE_TEST_KILL_AT` names a folder, as for the steps of tiering. The process that reaches a step and finds a file
of the step's name there removes the file and ends itself by SIGKILL. After each the state is the one of before or the
one of after, the audit says which, and the undo leads back.
"""

from __future__ import annotations

import contextlib
import os
import signal
from enum import StrEnum
from typing import Final

HOOK: Final = "PYDANUBE_TEST_KILL_AT"


class Step(StrEnum):
    CHECKED = "change-checked"  # the token and what it stands on are right, nothing is written
    RECORDED = "change-recorded"  # the audit's `call` is on stable storage
    # What the undo needs is written down where it is large, and nothing refers to it
    IMAGE_KEPT = "change-image-kept"
    BEGUN = "change-begun"  # what the undo needs is kept and the plan is used
    MADE = "change-made"  # the effect
    KEPT = "change-kept"  # its result
    TOLD = "change-told"  # the audit's `outcome` is on stable storage
    TAKEN_BACK = "change-taken-back"  # of an undo: the state is the one of before, the change not yet marked


def reached(step: Step) -> None:
    """Note that a step is done."""
    folder = os.environ.get(HOOK)
    if folder is None:
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, step.value))
        os.kill(os.getpid(), signal.SIGKILL)
