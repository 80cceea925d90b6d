"""Every adapter of the metadata store, under one suite: a test that takes `store` runs on each.

On etcd a test has a prefix of its own and shares the members, whose revisions count on: it speaks of revisions
relative to `start`, the one before its first change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
from pydanube_storage.metadata import EmbeddedStore, MetadataStore, Revision

from tests.storage.metadata.adapters import LetPass, OpenStore, opened, options, revision
from tests.support.etcd import EtcdMembers
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_ms=1_000)


@pytest.fixture(scope="session")
def etcd_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    with EtcdMembers(tmp_path_factory.mktemp("etcd-1")) as etcd:
        yield etcd


@pytest.fixture(scope="session")
def etcd_trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    with EtcdMembers(tmp_path_factory.mktemp("etcd-3"), 3) as etcd:
        yield etcd


@pytest.fixture(
    params=["memory", "embedded", "etcd", pytest.param("etcd-trio", marks=pytest.mark.long)],
)
def adapter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_store(request: pytest.FixtureRequest, adapter: str, tmp_path: Path, clock: ManualClock) -> OpenStore:
    """Open the adapter's store; embedded: the same file at each call; etcd: the same prefix."""
    if adapter.startswith("etcd"):
        members: EtcdMembers = request.getfixturevalue("etcd_member" if adapter == "etcd" else "etcd_trio")
        fixed = options(members)
        return lambda *, history_revisions=1000: opened(fixed)
    if adapter == "memory":
        return lambda *, history_revisions=1000: MemoryStore(clock=clock, history_revisions=history_revisions)
    path = tmp_path / "metadata.sqlite"
    return lambda *, history_revisions=1000: EmbeddedStore(
        path, clock=clock, history_revisions=history_revisions
    )


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[MetadataStore]:
    async with open_store() as opened_store:
        yield opened_store


@pytest.fixture
async def start(store: MetadataStore) -> Revision:
    """The revision before the test's first change: 0 but on etcd, where others came before."""
    return await revision(store)


@pytest.fixture
def let_pass(adapter: str, clock: ManualClock) -> LetPass:
    """Let so many milliseconds go by for the leases: by our clock, or truly, as etcd has its own."""

    async def wait(ms: int) -> None:
        if adapter.startswith("etcd"):
            await anyio.sleep(ms / 1000)
        else:
            clock.advance(ms)

    return wait
