"""How much the tier's process gives way, while it writes, while a backlog grows, while a consumer waits for it.

Two knobs, since either alone may do nothing. Linux nices each thread by itself, and the threads that write are niced.
Where it groups processes by session (`sched_autogroup`, usual outside of containers) it shares the processor between
sessions first: the value of a session, `/proc/self/autogroup`, counts then. Anybody may set that to 0 and above, up and
down. The session is as nice as the least patient of its calls, and for a while after it: the kernel takes a change
every 100 ms. Elsewhere than on Linux the first thread that writes nices the process, for good.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

READING: Final = 0  # a consumer waits
URGENT: Final = 4  # a backlog that must not grow for ever takes its share
WRITING: Final = 19  # producers and consumers come first: 1/70 of what they get, or what they leave
_LINGER_S: Final = 1.0
_FILE: Final = Path("/proc/self/autogroup")


def nice_thread(value: int) -> None:
    """Nice the calling thread (Linux) or the process; never back, which needs rights that nobody should have."""
    who = threading.get_native_id() if sys.platform == "linux" else 0
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, who) < value:
            os.setpriority(os.PRIO_PROCESS, who, value)


class Session:
    """`with session.at(value)` around each call, from any thread."""

    def __init__(self, file: Path = _FILE, *, linger_s: float = _LINGER_S) -> None:
        self._file = file
        self._linger_s = linger_s
        self._changed = threading.Condition()
        self._active: Counter[int] = Counter()
        self._last_s: dict[int, float] = {}  # when a call of that value ended
        self._shown: int | None = None
        if file.exists():
            threading.Thread(target=self._follow, name="tier-priority", daemon=True).start()

    @contextlib.contextmanager
    def at(self, value: int) -> Iterator[None]:
        with self._changed:
            self._active[value] += 1
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._active[value] -= 1
                self._last_s[value] = time.monotonic()

    def _wanted(self, now_s: float) -> int:
        recent = (value for value, at_s in self._last_s.items() if now_s - at_s < self._linger_s)
        return min((*(value for value, count in self._active.items() if count), *recent), default=WRITING)

    def _follow(self) -> None:
        while True:
            with self._changed:
                wanted = self._wanted(time.monotonic())
                if wanted == self._shown:
                    self._changed.wait(self._linger_s if wanted < WRITING else None)
                    continue
            try:
                self._file.write_text(str(wanted))
                self._shown = wanted
            except BlockingIOError:
                time.sleep(self._linger_s / 8)  # somebody on this machine was first within the last 100 ms
            except OSError:
                return
