"""How a report says how far it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

#: told what is being done, and how far it is: 0 to 1
Progress = Callable[[str, float], None]


def no_progress(what: str, share: float) -> None:
    """For callers that show none."""


def say_progress(what: str, share: float) -> None:
    """A line of JSON on stderr for each step: for whoever runs this as a process of its own."""
    print(json.dumps({"progress": share, "doing": what}), file=sys.stderr, flush=True)
