"""Every object store under one suite: a test that takes `store` runs on a folder, on memory, on a real S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydanube_storage.objects import ObjectStore, StoreOptions, open_store

from tests.support.s3_server import S3Server, running_s3_server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["local", "memory", "s3"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> StoreOptions:
    """An empty place of each kind."""
    pytest.importorskip("fsspec")
    if request.param == "local":
        return StoreOptions(url=str(tmp_path / "objects"))
    if request.param == "memory":
        return StoreOptions(url=f"memory://{uuid.uuid4().hex}")
    server: S3Server = request.getfixturevalue("s3_server")
    return server.options(f"at-{uuid.uuid4().hex}")


@pytest.fixture
def open_again(options: StoreOptions) -> Iterator[Callable[[], ObjectStore]]:
    """Opens another client of the same place."""
    opened: list[ObjectStore] = []

    def open_one() -> ObjectStore:
        opened.append(open_store(options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def store(open_again: Callable[[], ObjectStore]) -> ObjectStore:
    return open_again()
