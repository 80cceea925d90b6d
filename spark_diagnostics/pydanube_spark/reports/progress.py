"""The progress of a report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

#: called with the current step and the progress from 0 to 1
Progress = Callable[[str, float], None]


def no_progress(what: str, share: float) -> None: ...


def say_progress(what: str, share: float) -> None:
    """Print a line of JSON on stderr for each step, for a process that runs this one."""
    print(json.dumps({"progress": share, "doing": what}), file=sys.stderr, flush=True)
