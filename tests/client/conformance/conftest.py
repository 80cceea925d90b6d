"""The seam: each test of this folder runs over the in-memory cluster and over a real broker in its own process."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any, Protocol

import pydanube
import pytest
from pydanube import Client, Retry
from pydanube.testing import InMemoryCluster

_numbers = itertools.count(1)


class Connect(Protocol):
    def __call__(self, *, retry: Retry | None = None) -> Client: ...


@dataclass(frozen=True)
class Cluster:
    """What a conformance test gets. `topic()` gives a name that nobody has used."""

    connect: Connect

    def topic(self) -> str:
        return f"/default/conformance-{next(_numbers)}-{time.time_ns()}"


@pytest.fixture(scope="session")
def broker_url(start_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    url: str = start_broker(tmp_path_factory.mktemp("broker"), 0).url
    return url


@pytest.fixture(params=["memory", "broker"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    if request.param == "memory":
        return Cluster(InMemoryCluster().connect)
    url: str = request.getfixturevalue("broker_url")

    def connect(*, retry: Retry | None = None) -> Client:
        return pydanube.connect(url, retry=retry)

    return Cluster(connect)
