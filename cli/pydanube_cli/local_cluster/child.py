"""One process of a local cluster: started in a session of its own, so that Ctrl-C reaches the command alone."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LOG_TAIL: Final = 2000


class Child:
    """A process with its log; ends when this one does, where the system can see to that (Linux)."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process is not None and self.exit_code is None else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or before."""
        return None if self._process is None else self._process.returncode

    async def start(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it; what it writes goes to the log."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    async def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        assert self._process is not None, "it was not started"
        return await self._process.wait()

    async def end(self, number: signal.Signals, *, patience_s: float) -> int | None:
        """Send a signal and wait for the end; SIGKILL where that takes too long. None if it does not run."""
        process = self._process
        if process is None or process.returncode is not None:
            return None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            async with asyncio.timeout(patience_s):
                return await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return await process.wait()

    def tail(self) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")[-_LOG_TAIL:].strip()
        return ""


def _end_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
