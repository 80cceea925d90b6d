"""The suite of every object store, on servers of Google's and Azure's kind."""

from __future__ import annotations

import pytest

from tests.storage.objects import test_object_store_conformance as suite

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    # Azure's client hands aiohttp its pieces as bytes, in fsspec's own thread.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]

globals().update({name: test for name, test in vars(suite).items() if name.startswith("test_")})
