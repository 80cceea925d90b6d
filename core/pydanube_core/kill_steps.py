"""The hook of tests that end a process by SIGKILL between two named steps.

`PYDANUBE_TEST_KILL_AT` names a folder. The process that reaches a step and finds a file of the step's name there removes
the file and ends itself: once per file, whichever process comes first.
"""

from __future__ import annotations

import contextlib
import os
import signal
from enum import StrEnum
from typing import Final

HOOK: Final = "PYDANUBE_TEST_KILL_AT"


def reached(step: StrEnum) -> None:
    """Note that a step is done."""
    folder = os.environ.get(HOOK)
    if folder is None:
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, step.value))
        os.kill(os.getpid(), signal.SIGKILL)
