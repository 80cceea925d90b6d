"""Children that move a broker's data, each killed when it says its n-th step."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial
from typing import Final

import anyio
from pydanube_broker.home.adoption import adopt
from pydanube_broker.home.cluster_recovery import recover
from pydanube_broker.home.release import release
from pydanube_broker.settings.sections import Settings

WORK: Final = {"adopt": adopt, "recover": recover, "release": partial(release, copy=True)}
# Forked from a process that has imported everything: a test has dozens of them
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([work.__module__ for work in (adopt, recover, release)])


async def killed_at(step: int, work: str, settings: Settings) -> int:
    """Do `work` up to its step `step`; return the exit code: 0 where it has fewer."""
    child = _FORKS.Process(target=_carry_out, args=(step, work, settings))
    child.start()
    await anyio.to_thread.run_sync(child.join)
    assert child.exitcode is not None
    return child.exitcode


def _carry_out(left: int, work: str, settings: Settings) -> None:
    def say(line: str) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    anyio.run(partial(WORK[work], settings, say=say))
