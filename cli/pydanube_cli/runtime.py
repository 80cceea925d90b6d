"""The runtime of a command: an event loop, with SIGTERM treated as an interrupt, and the installed packages."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

import anyio
from pydanube_core.errors import MissingExtra
from pydanube_core.extras import install_command

from pydanube_cli.fitness import PARTS

T = TypeVar("T")


def run_async(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run `function` to its end on a new event loop. An interrupt cancels it and raises KeyboardInterrupt."""
    uvloop = sys.platform != "win32" and find_spec("uvloop") is not None
    return anyio.run(function, *args, backend_options={"use_uvloop": uvloop})


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, or None without it."""
    # slow to load, and only for `doctor` and `bench`
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


@contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """Let SIGTERM end a client command as Ctrl-C does: cancelled, with its summary, exit code 130."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = signal.signal(signal.SIGTERM, lambda _signal, _frame: _interrupt())
    ignored = sys.platform != "win32" and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        # SIGINT is ignored at the start of a script's background job (`danube consume … &`). It stays
        # ignored, because the signal is blocked. But asyncio must find a handler to take over, or SIGTERM
        # would have nothing to raise.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def require(*extras: str, what: str) -> None:
    """Check that optional parts are installed.

    Raises:
        MissingExtra: naming what to install.
    """
    missing = [extra for extra in extras if any(find_spec(name) is None for name in PARTS[extra].modules)]
    if missing:
        wanted = ",".join(extras)
        raise MissingExtra(
            f"{what} needs more than the base install: {install_command(wanted)}", extras=missing
        )
