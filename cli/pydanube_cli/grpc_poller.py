"""Which of its two ways of doing socket I/O gRPC is to take in a process of the `danube` command.

Since 1.80 grpcio hands each read and write to a pool of threads (its EventEngine) where the thread that waits did it
itself before. On two cores that costs a message and its answer on a stream 0.42-0.47 ms instead of 0.28-0.31, and a
third more processor time on both sides. The old way is still there, behind two experiments that can be switched off.

Said through the environment, because gRPC has no other door, and before grpc is imported. Only the command does it: a
library does not choose for its application's process, which may set the same variable itself.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

VARIABLE: Final = "GRPC_EXPERIMENTS"
EXPERIMENTS: Final = "-event_engine_client,-event_engine_listener"
# Versions that were seen to know both names. gRPC means to remove them, and then complains of them on stderr.
_FIRST: Final = (1, 78)
_LAST: Final = (1, 85)


def choose_grpc_poller(environ: MutableMapping[str, str], *, grpcio: str | None = None) -> None:
    """Set what gRPC reads when it is first used; a variable that is set already is left alone.

    Args:
        grpcio: its version; the installed one's if left out.
    """
    if VARIABLE in environ:
        return
    try:
        major, minor = map(int, (grpcio or version("grpcio")).split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return
    if _FIRST <= (major, minor) <= _LAST:
        environ[VARIABLE] = EXPERIMENTS
