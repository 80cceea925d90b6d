"""A child process that moves a broker's data, and is killed when it says its n-th step: a program, and who starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
from pydanube_broker.adoption import adopt
from pydanube_broker.cluster_recovery import recover
from pydanube_broker.release import release
from pydanube_broker.settings import Data, Journal, Metadata, Settings, Tier

WORK = {"adopt": adopt, "recover": recover, "release": partial(release, copy=True)}


async def killed_at(step: int, work: str, settings: Settings) -> subprocess.CompletedProcess[str]:
    """Do `work` up to its step `step`; one that has fewer ends by itself."""
    places = (settings.data.dir, settings.metadata.url, settings.tier.url)
    command = [sys.executable, __file__, work, *map(str, places), str(step)]
    return await anyio.to_thread.run_sync(
        lambda: subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    )


def main(work: str, folder: str, metadata: str, tier: str, step: str) -> None:
    left = int(step)

    def say(line: str) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    settings = Settings(
        data=Data(dir=Path(folder)),
        journal=Journal(segment_bytes=16 << 20),
        metadata=Metadata(url=metadata),
        tier=Tier(url=tier),
    )
    anyio.run(partial(WORK[work], settings, say=say))


if __name__ == "__main__":
    main(*sys.argv[1:])
