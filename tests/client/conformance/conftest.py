"""Each test of this folder runs against a broker with a data directory; those of consumers also over several topics,
against one in memory and through the transport that can fail (`pydanube.testing`)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pydanube
import pytest
from pydanube import Client, Retry
from pydanube.admin import connect_admin
from pydanube.testing import InMemoryCluster

_numbers = itertools.count(1)


class Connect(Protocol):
    def __call__(self, *, retry: Retry | None = None) -> Client: ...


@dataclass(frozen=True)
class Cluster:
    """What a conformance test gets. `topic()` gives a name that nobody has used."""

    connect: Connect
    delete: Callable[[str], Coroutine[Any, Any, None]]

    def several(self, *, patterns: bool) -> Cluster:
        """The same, whose consumers of a topic take it as one of several: by a list and by a pattern in turn."""
        return Cluster(lambda *, retry=None: _severally(self.connect(retry=retry), patterns), self.delete)

    def topic(self) -> str:
        return f"/default/conformance-{next(_numbers)}-{time.time_ns()}"


@pytest.fixture(scope="session")
def broker(start_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return start_broker(tmp_path_factory.mktemp("broker"), 0)


@pytest.fixture(scope="session")
def shared_memory() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as cluster:
        yield cluster


# A pattern is never "not found": it waits for topics.
_BY_NAME = (
    "test_a_topic_that_does_not_exist_is_not_found",
    "test_a_consumer_may_come_before_the_first_producer",
)


def _severally(client: Client, patterns: bool) -> Client:
    plain = client.consumer
    turns = itertools.cycle((True, False) if patterns else (False,))

    def consumer(topic: str, subscription: str, *args: Any, **changes: Any) -> Any:
        if changes.get("create") or not topic.startswith("/default/conformance") or not next(turns):
            return plain([topic], subscription, *args, **changes)
        return plain(None, subscription, *args, pattern=f"{topic}*", **changes)

    client.consumer = consumer  # type: ignore[method-assign, assignment]
    return client


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" in metafunc.fixturenames:
        ways = ["broker"]
        if metafunc.module.__name__.rpartition(".")[2] in ("test_consuming", "test_taking"):
            ways.append("testing-several")
        metafunc.parametrize("cluster", ways, indirect=True)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Cluster:
    where, _, several = request.param.partition("-")
    one = _one(request, where)
    return one.several(patterns=request.node.originalname not in _BY_NAME) if several else one


def _one(request: pytest.FixtureRequest, where: str) -> Cluster:
    if where == "testing":
        memory = request.getfixturevalue("shared_memory")

        async def forget(topic: str) -> None:
            memory.delete_topic(topic)

        return Cluster(memory.connect, forget)
    broker = request.getfixturevalue("broker")

    def connect(*, retry: Retry | None = None) -> Client:
        return pydanube.connect(broker.url, retry=retry)

    async def delete(topic: str) -> None:
        async with connect_admin(broker.admin_url) as admin:
            plan = await admin.topics.plan_delete(topic=topic)
            await plan.apply()

    return Cluster(connect, delete)
