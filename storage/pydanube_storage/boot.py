"""The boot of this machine. Apart from the clocks, because `danube doctor` needs it and loads little."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def boot_id() -> str:
    """Return an id of this boot of the machine, "" if unknown.

    Times of `metadata.BootClock` are comparable between processes with the same id.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
