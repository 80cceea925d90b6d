"""For every test: async ones end at a deadline of their own, and a failure can always be reported."""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Generator, Iterator
from inspect import iscoroutinefunction
from typing import Any

import anyio
import pytest
import pytest_timeout
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from tests.support import warm_commands
from tests.support.default_ports import ADDRESSES, watch
from tests.support.etcd import EtcdMembers

# Of pytest-timeout's limit: the deadline must come first. Its signal strikes anywhere in the loop and leaves the
# test's task running there; under a deadline the test itself ends, with its clean-up, and the next one is undisturbed.
DEADLINE_SHARE = 0.75
# pytest-timeout's signal strikes once. Where a test or its clean-up hangs after it, the process ends half of the limit later, and
# at least these seconds: clean-up stops brokers. `tools/gate.py ci` runs again what was not reached.
END_AFTER_S = 60.0
LIMIT_S = pytest.StashKey[float]()  # pytest-timeout's, of a test that has one
STDERR = 2

# `nohup make test &` starts its processes with SIGINT ignored, and what they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before any module of the product is imported.
os.environ.update(ADDRESSES)
_default_ports_used = watch()
warm_commands.forking = True
warm_commands.fork_helpers()

# How quickly examples are made and run is a matter of the machine, and no property of ours. The same examples each time:
# a change is judged by what it did. `make fuzz` looks for new ones.
settings.register_profile(
    "house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
if settings.get_current_profile_name() == "default":  # not where `make fuzz` has set its own
    settings.load_profile("house")


def under_deadline(test: Callable[..., Awaitable[Any]], limit_s: float) -> Callable[..., Awaitable[Any]]:
    """The same test, ended by TimeoutError after `limit_s`.

    In the test's own coroutine and not in a fixture: a scope that a fixture holds over its `yield` belongs to the task
    that runs *all* tests of the loop, so that its end would cancel them all.
    """

    @functools.wraps(test)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        with anyio.fail_after(limit_s):
            return await test(*args, **kwargs)

    limited.__dict__["limited"] = True
    return limited


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> None:
    """Note pytest-timeout's limit for a test, however it is set; not under a debugger."""
    item.stash[LIMIT_S] = 0.0 if pytest_timeout.is_debugging() else settings.timeout


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Name the event loop of async tests; a folder that needs another one has a fixture of its own."""
    return "asyncio"


@pytest.fixture(autouse=True)
def no_default_port() -> Iterator[None]:
    """Fail a test that dials or binds a default port, where the user's own broker may be running."""
    _default_ports_used.clear()
    yield
    assert not _default_ports_used, _default_ports_used


@pytest.fixture
def cold_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a broker's helpers as a user's broker does, not forked: for tests of these programs themselves."""
    monkeypatch.setattr(warm_commands, "forking", False)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    """Run one etcd for the tests of a module, which have prefixes of their own."""
    with EtcdMembers(tmp_path_factory.mktemp("etcd")) as members:
        yield members


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the process, with the stacks of its threads, if the test hangs where its limit does not end it."""
    if limit := item.stash.get(LIMIT_S, 0.0):
        file = item.config.stash.get(fault_handler_stderr_fd_key, STDERR)  # not there with -p no:faulthandler
        faulthandler.dump_traceback_later(limit + max(END_AFTER_S, limit / 2), exit=True, file=file)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The same for its clean-up: pytest stops the clock when a test fails."""
    pytest_runtest_setup(item)


@pytest.hookimpl
def pytest_runtest_logfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """End the process if a thread that a test left keeps it from ending: the interpreter waits for threads."""
    faulthandler.dump_traceback_later(END_AFTER_S, exit=True, file=STDERR)


@pytest.hookimpl
def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Put async tests under their deadline; a property test, each example."""
    limit = pyfuncitem.stash.get(LIMIT_S, 0.0) * DEADLINE_SHARE
    if not limit:
        return
    if (property_test := getattr(pyfuncitem.obj, "hypothesis", None)) is not None:
        inner = property_test.inner_test
        if iscoroutinefunction(inner) and not hasattr(inner, "limited"):
            property_test.inner_test = under_deadline(inner, limit)
    elif iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = under_deadline(pyfuncitem.obj, limit)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Format a failure without the garbage collector.

    CPython 3.11 counts the depth of `ast.parse` in one place for all that run. Tracebacks are formatted with it; a
    collection amid that may end a forgotten generator, whose complaint is a traceback too, and the outer one dies
    with "SystemError: AST constructor recursion depth mismatch": pytest with it, and nobody learns what failed.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if was_enabled:
            gc.enable()
