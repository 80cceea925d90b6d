"""Places in the object stores of Google and Azure, for the suite of `tests/storage/objects`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from pydanube_storage.objects import StoreOptions

from tests.conformance.objects import servers
from tests.storage.objects.conftest import open_again, store

__all__ = ["open_again", "store"]


@pytest.fixture(scope="session")
def google() -> Iterator[str]:
    with servers.google() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azure() -> Iterator[None]:
    adlfs = pytest.importorskip("adlfs", reason="NOT RUN: install pydanube[azure]")
    with servers.azure() as connection, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        adlfs.AzureBlobFileSystem(skip_instance_cache=True).mkdir(servers.BUCKET)
        yield


@pytest.fixture(params=["gs", "az"])
def options(request: pytest.FixtureRequest) -> StoreOptions:
    """An empty place of each kind."""
    url = f"{request.param}://{servers.BUCKET}/at-{uuid.uuid4().hex}"
    if request.param == "az":
        request.getfixturevalue("azure")
        return StoreOptions(url=url)
    if find_spec("gcsfs") is None:
        pytest.skip("NOT RUN: install pydanube[gcs]")
    return StoreOptions(url=url, endpoint=request.getfixturevalue("google"), anonymous=True)
