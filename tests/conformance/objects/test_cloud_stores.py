"""The suite of every object store, on servers of Google's and Azure's kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydanube_storage.objects import ObjectStore

from tests.storage.objects import test_object_store_conformance as suite

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    # Azure's client hands aiohttp its pieces as bytes, in fsspec's own thread.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]

_HERE = "test_an_object_is_created_only_where_there_is_none"  # the suite has it for the stores that it opens itself
globals().update(
    {name: test for name, test in vars(suite).items() if name.startswith("test_") and name != _HERE}
)


def test_an_object_is_created_only_where_there_is_none(
    store: ObjectStore, open_again: Callable[[], ObjectStore]
) -> None:
    suite.check_that_an_object_is_created_once(store, open_again)
