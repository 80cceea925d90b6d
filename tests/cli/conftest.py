from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pydanube_cli.main import run

from tests.admin.real_broker import Administered, administered
from tests.cli.running import Danube, Ran
from tests.support.broker_process import BrokerProcess
from tests.support.default_ports import ADDRESSES
from tests.support.filled_cluster import add_subscription, add_topic, emptied
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No DANUBE_ variable of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("DANUBE_") and name not in ADDRESSES:
            monkeypatch.delenv(name)


@pytest.fixture
def danube(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Iterator[Danube]:
    """Run a command line in this process: `danube("produce", "t", stdin=b"…")`."""
    stdin = os.dup(0)

    def call(*words: str, stdin: bytes = b"") -> Ran:
        (tmp_path / "stdin").write_bytes(stdin)
        with (tmp_path / "stdin").open("rb") as source, pytest.MonkeyPatch.context() as patch:
            os.dup2(source.fileno(), 0)
            patch.setattr("sys.stdin", os.fdopen(0, closefd=False))
            # A command may send its process's log to the stderr of this test, which is closed when the test ends.
            patch.setattr(logging.getLogger(), "handlers", list(logging.getLogger().handlers))
            code = run(list(words))
        captured = capfdbinary.readouterr()
        return Ran(code, captured.out, captured.err.decode())

    yield call
    os.dup2(stdin, 0)
    os.close(stdin)


@pytest.fixture
def live(danube: Danube, broker: BrokerProcess) -> Danube:
    """The same, against a real broker."""

    def call(*words: str, stdin: bytes = b"") -> Ran:
        return danube(*words, *broker.client_arguments(), stdin=stdin)

    return call


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """A loop in a thread of its own: commands run in this one."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="session")
def shared(portal: BlockingPortal) -> Iterator[Administered]:
    """One broker in memory for all tests that want one with few things in it, known to the last."""
    with portal.wrap_async_context_manager(administered()) as cluster:
        yield cluster


@pytest.fixture
def cluster(portal: BlockingPortal, shared: Administered) -> Administered:
    """A topic with a subscription that is behind."""

    async def fill() -> None:
        await emptied(shared)
        await add_topic(shared, "/default/orders", messages=500)
        await add_subscription(shared, "/default/orders", "billing", next_unacked=460)

    portal.call(fill)
    return shared


@pytest.fixture
def admin_url(cluster: Administered) -> str:
    return cluster.url


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests of commands; each test uses topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker
